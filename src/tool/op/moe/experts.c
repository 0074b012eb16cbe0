/* Synthetic experts on hosts: each multiplies its rows by its factor. They use kernels for speed, since
 * they run between the stages of every iteration; the checks do not use them. Layout rank: the output of a
 * row is the weighted sum over its experts. Only used rows are written. */
#include "op/moe/experts.h"

#include "epa2a/quant.h"
#include "op/moe/inputs.h"
#include "op/moe/view.h"

static const struct epa_kernels *kernels_of(const struct op_moe *op)
{
    return epa_kernels_get((enum epa_dtype)op->r.params->moe.dtype, NULL);
}

/* Computes the output of one of this rank's experts for a received row. */
static void output_row(const struct op_moe *op, const struct epa_kernels *kernels,
                       const struct view *v, uint64_t row, uint32_t local_expert, uint16_t *y)
{
    const struct epa_moe *m = &v->m;
    const char *data = v->rows.data + row * m->recv_stride;
    float factor =
        op_moe_factor(op, v->iteration, op->r.world.rank * op->local_experts + local_expert);

    if (op->footprint.recv_dtype == EPA_FP8_E4M3) {
        const void *scale = v->rows.scale + row * m->scale_stride;

        kernels->output_fp8((const uint8_t *)data, scale, m->hidden, m->fp8_group_size, factor, y);
    } else {
        kernels->output((const void *)data, m->hidden, factor, y);
    }
}

/* Computes the weighted sum of the outputs of this rank's experts for each row. */
static enum epa_status output_shares(struct op_moe *op, const struct view *v, uint16_t *y,
                                     struct epa_error *err)
{
    const struct epa_kernels *kernels = kernels_of(op);
    const struct epa_moe *m = &v->m;
    const struct shares *s = &op->shares;
    enum epa_status status = shares_sort(&op->shares, m, v->first, op->local_experts, err);

    for (uint64_t row = 0; row < s->rows_end && status == EPA_OK; row++) {
        const struct share *share = s->share + s->first[row];
        uint32_t n = s->first[row + 1] - s->first[row];

        if (n > m->topk)
            return epa_fail(err, EPA_ERR_MISMATCH,
                            "rank %u: %u entries share row %llu; a token has %u choices",
                            op->r.world.rank, n, (unsigned long long)row, m->topk);
        for (uint32_t i = 0; i < n; i++) {
            uint16_t *output = op->output + (size_t)i * m->hidden;

            output_row(op, kernels, v, row, share[i].expert, output);
            op->part[i] = output;
            op->part_weight[i] = m->recv_weight[share[i].entry];
        }
        if (n > 0)
            kernels->reduce(op->part, op->part_weight, n, m->hidden, EPA_STORE_CACHED,
                            y + row * m->hidden);
    }
    return status;
}

/* Sends the factors to the synthetic experts of a device. */
static enum epa_status send_factors(struct op_moe *op, uint64_t iteration)
{
    if (op->weights.shape.mlp.ffn != 0)
        return EPA_OK;
    op_moe_factors(op, iteration, op->factor.here);
    return op_buffer_send(op->r.backend, &op->factor, op->r.params->moe.experts * sizeof(float));
}

enum epa_status op_moe_experts(struct op_rank *rank, uint32_t slot, struct epa_error *err)
{
    struct op_moe *op = op_moe_of(rank);
    const struct op_slot *s = &op->r.slot[slot];
    struct epa_moe *moe = &op->r.slot[slot].problem.u.moe;
    uint64_t bytes = op_moe_rows(&op->footprint) * moe->hidden * sizeof(uint16_t);
    bool apart = op->r.params->expert.output == OUTPUT_SEPARATE || moe->y_space == NULL;
    const struct epa_kernels *kernels;
    struct view v;
    uint16_t *y;
    enum epa_status status = EPA_OK;

    if (op->footprint.fused)
        return EPA_OK;
    if (op->y[slot] == NULL && apart && bytes != 0)
        status = op_alloc(op->r.backend, "expert outputs", bytes, &op->y[slot], err);
    if (status != EPA_OK)
        return status;
    y = apart ? op->y[slot] : moe->y_space;
    moe->y = y;
    if (op->device_experts != NULL) { /* the device reads the lists itself */
        status = send_factors(op, s->iteration);
        if (status == EPA_OK)
            status = op->r.backend->ops->experts_run(op->device_experts, moe, y);
        if (status != EPA_OK)
            op->r.backend->ops->explain(op->r.backend, err);
        return status;
    }
    status = op_moe_view(op, s, &v, err);
    if (status != EPA_OK)
        return status;
    if (op->mlp.ffn != 0)
        return host_experts_run(op->experts, moe, y, err);
    if (op->footprint.layout == EPA_LAYOUT_RANK)
        return output_shares(op, &v, y, err);
    kernels = kernels_of(op);
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint64_t i = v.m.recv_start[e]; i < v.m.recv_start[e] + v.m.recv_count[e]; i++)
            output_row(op, kernels, &v, i, e, y + i * moe->hidden);
    return EPA_OK;
}
