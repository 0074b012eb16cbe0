/* The stand-in for experts: multiplies each row by a factor that tells which expert
 * answered. Fast, by kernels, as it runs between the stages of every iteration; the
 * checks do not use it. Layout rank: a row's answer is the weighted sum over the experts
 * that want it. */
#include "moe/op_moe.h"

#include <string.h>

#include "base/dtype.h"
#include "kernels/kernels.h"
#include "moe/op_moe_state.h"

/* The answer of one of this rank's experts to a received row. */
static void answer_row(const struct op_moe *op, const struct epa_moe *m, uint64_t row,
                       uint32_t local_expert, uint16_t *y)
{
    const struct kernels *kernels = kernels_get(NULL);
    const char *data = (const char *)m->recv + row * m->recv_stride;
    float factor = expert_factor(op->world.rank * op->local_experts + local_expert);

    if (op->footprint.recv_dtype == EPA_FP8_E4M3) {
        const void *scale = (const char *)m->recv_scale + row * m->scale_stride;

        kernels->answer_fp8((const uint8_t *)data, scale, m->hidden, m->group, factor, y);
    } else {
        kernels->answer_bf16((const void *)data, m->hidden, factor, y);
    }
}

static void answer_entries(const struct op_moe *op, const struct epa_moe *m, uint16_t *y)
{
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++) {
            uint64_t entry = m->recv_start[e] + i;

            answer_row(op, m, entry, e, y + entry * m->hidden);
        }
}

/* Entries by row, experts ascending: a counting sort. */
static void sort_shares(struct op_moe *op, const struct epa_moe *m)
{
    uint32_t *first = op->row_first, sum = 0;

    memset(first, 0, (m->recv_rows + 1) * sizeof(*first));
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++)
            first[m->recv_row[m->recv_start[e] + i] + 1]++;
    for (uint64_t row = 0; row <= m->recv_rows; row++) {
        sum += first[row];
        first[row] = sum;
    }
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++) {
            uint32_t entry = (uint32_t)m->recv_start[e] + i;

            op->share[first[m->recv_row[entry]]++] =
                (struct share){.entry = entry, .expert = e};
        }
    /* Each first has moved on to the next row's; back again. */
    memmove(first + 1, first, m->recv_rows * sizeof(*first));
    first[0] = 0;
}

static enum epa_status answer_rows(struct op_moe *op, const struct epa_moe *m, uint16_t *y,
                                   struct epa_error *err)
{
    const struct kernels *kernels = kernels_get(NULL);

    sort_shares(op, m);
    for (uint64_t row = 0; row < m->recv_rows; row++) {
        const struct share *share = op->share + op->row_first[row];
        uint32_t n = op->row_first[row + 1] - op->row_first[row];

        if (n > m->topk)
            return epa_fail(err, EPA_ERR_MISMATCH,
                            "rank %u: %u entries share row %llu; a token has %u choices",
                            op->world.rank, n, (unsigned long long)row, m->topk);
        for (uint32_t i = 0; i < n; i++) {
            uint16_t *answer = op->answer + (size_t)i * m->hidden;

            answer_row(op, m, row, share[i].expert, answer);
            op->part[i] = answer;
            op->part_weight[i] = m->recv_weight[share[i].entry];
        }
        if (n != 0)
            kernels->reduce(op->part, op->part_weight, n, m->hidden, KERNELS_STORE_CACHED,
                            y + row * m->hidden);
    }
    return EPA_OK;
}

enum epa_status op_moe_experts(struct op_moe *op, uint32_t slot, struct epa_error *err)
{
    struct slot *s = &op->slot[slot];
    struct epa_moe *moe = &s->problem.u.moe, m;
    struct epa_backend *b = op->backend;
    size_t bytes = op_moe_rows(&op->footprint) * moe->hidden * sizeof(uint16_t);
    bool apart = op->x->expert.answer == ANSWER_APART || moe->y_space == NULL;
    bool on_host = b->memory == EPA_MEMORY_HOST;
    enum epa_status status = op_moe_view(op, s, &m, err);
    uint16_t *y;

    if (status == EPA_OK && s->y.there == NULL && (apart || !on_host) && bytes != 0)
        status = op_moe_alloc(op, "answers", bytes, &s->y, err);
    if (status != EPA_OK)
        return status;
    moe->y = apart ? s->y.there : moe->y_space;
    y = apart || !on_host ? s->y.here : moe->y_space;
    if (op->footprint.layout == EPA_LAYOUT_EXPERT)
        answer_entries(op, &m, y);
    else
        status = answer_rows(op, &m, y, err);
    if (status == EPA_OK && !on_host && bytes != 0)
        status = b->ops->write(b, (void *)(uintptr_t)moe->y, y, bytes);
    return status;
}
