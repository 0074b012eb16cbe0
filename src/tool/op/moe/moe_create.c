/* Creation and memory of a rank. An algorithm uses backend memory. With a device backend each array has a
 * host copy, and backend->ops->write transfers it. */
#include "op/moe/moe_create.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/pool.h"
#include "op/moe/check_state.h"
#include "op/moe/experts_mlp.h"

static void lay_out_scratch(const struct problem_params *x, const struct epa_moe_footprint *f,
                            struct op_moe *op)
{
    const struct moe_options *moe = &x->moe;
    uint32_t local = moe->experts / x->ranks;
    struct pool *p = &op->scratch;

    op->row = pool_alloc(p, moe->hidden, sizeof(*op->row));
    op->run = pool_alloc(p, local, sizeof(*op->run));
    op->first = pool_alloc(p, local, sizeof(*op->first));
    if (f->layout != EPA_LAYOUT_RANK)
        return;
    op->output = pool_alloc(p, (size_t)moe->topk * moe->hidden, sizeof(*op->output));
    op->part = pool_alloc(p, moe->topk, sizeof(*op->part));
    op->part_weight = pool_alloc(p, moe->topk, sizeof(*op->part_weight));
}

enum epa_status op_moe_refuse(const struct problem_params *x, const struct epa_footprint *footprint,
                              struct epa_error *err)
{
    const struct epa_moe_footprint *f = &footprint->u.moe;
    const char *dtype = x->moe.dtype == EPA_F16 ? "f16" : "bf16";

    if (x->moe.dtype != EPA_BF16 && x->moe.dtype != EPA_F16)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "moe.dtype",
                            "moe.dtype: only bf16 and f16 can be verified");
    if (f->recv_dtype != (enum epa_dtype)x->moe.dtype && f->recv_dtype != EPA_FP8_E4M3)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "moe.dtype",
                            "the algorithm delivers rows that are neither %s (moe.dtype) nor FP8",
                            dtype);
    if (f->output_dtype != (enum epa_dtype)x->moe.dtype && f->output_dtype != EPA_FP8_E4M3 &&
        (f->output_dtype != EPA_F32 || !f->fused || f->sum != EPA_SUM_BY_RANK ||
         x->expert.kind != EXPERT_MLP))
        return epa_fail_key(
            err, EPA_ERR_UNSUPPORTED, "moe.dtype",
            "the algorithm sends expert outputs that are neither %s (moe.dtype) nor FP8", dtype);
    if (f->fused && f->layout != EPA_LAYOUT_EXPERT)
        return epa_fail_key(
            err, EPA_ERR_UNSUPPORTED, "algorithm.layout algorithm.name",
            "the algorithm computes the experts and delivers rows in layout rank; this "
            "needs layout expert");
    if (x->moe.input_dtype == MOE_INPUT_FP8 && f->recv_dtype != EPA_FP8_E4M3)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.input_dtype",
            "moe.input_dtype is fp8, the algorithm delivers %s rows; set moe.input_dtype: "
            "native",
            dtype);
    if ((f->recv_dtype == EPA_FP8_E4M3 || f->output_dtype == EPA_FP8_E4M3) &&
        x->moe.hidden % x->moe.fp8_group_size != 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.hidden moe.fp8_group_size",
                            "moe.hidden (%u) is not a multiple of moe.fp8_group_size (%u)",
                            x->moe.hidden, x->moe.fp8_group_size);
    if (f->recv_entries >= UINT32_MAX || f->recv_rows >= UINT32_MAX)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "moe.max_tokens",
                            "more than 2^32 received rows in a rank");
    return EPA_OK;
}

void op_moe_finish(struct op_rank *rank)
{
    struct op_moe *op = op_moe_of(rank);

    for (uint32_t i = 0; i < op->r.n_slots && op->y != NULL; i++)
        if (op->y[i] != NULL)
            op->r.backend->ops->free(op->r.backend, op->y[i]);
    free(op->y);
    op_buffer_free(op->r.backend, &op->factor);
    op_moe_mlp_destroy(op);
    for (uint32_t i = 0; i < STAGED; i++)
        free(op->staged[i].data);
    op_moe_check_destroy(op->check);
    pool_free(&op->scratch);
    shares_free(&op->shares);
    free(op->kept);
}

enum epa_status op_moe_init(struct op_rank *rank, const struct op_params *p, struct epa_error *err)
{
    struct op_moe *op = op_moe_of(rank);
    enum epa_status status = op_moe_refuse(p->problem, p->footprint, err);

    if (status != EPA_OK)
        return status;
    op->footprint = p->footprint->u.moe;
    op->local_experts = p->problem->moe.experts / p->world->size;
    op->y = memory_alloc(p->slots, sizeof(*op->y));
    op->kept = memory_alloc(p->slots, sizeof(*op->kept));
    if (p->problem->expert.kind == EXPERT_MLP)
        weights_init(p->problem, &op->weights);
    lay_out_scratch(p->problem, &op->footprint, op);
    if (op->scratch.failed)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the experts' work space");
    if (op->r.backend->memory != EPA_MEMORY_HOST && !op->footprint.fused)
        status = op_buffer_alloc(op->r.backend, "the experts' factors",
                                 p->problem->moe.experts * sizeof(float), &op->factor, err);
    return status == EPA_OK ? op_moe_mlp_create(op, err) : status;
}

/* Returns the maximum number of entries of a rank; the rest of the plan's capacity is gaps. */
static uint64_t most_entries(const struct problem_params *x, const struct epa_moe_footprint *f)
{
    uint64_t local = x->moe.experts / x->ranks;
    uint64_t most =
        (uint64_t)x->ranks * x->moe.max_tokens * (x->moe.topk < local ? x->moe.topk : local);

    return most < f->recv_entries ? most : f->recv_entries;
}

/* Returns the bytes of host copies of received rows and lists, for checks with a device. */
static uint64_t staged_bytes(const struct problem_params *x, const struct epa_moe_footprint *f)
{
    uint64_t entries = most_entries(x, f);

    if (f->layout == EPA_LAYOUT_EXPERT)
        return entries * f->dispatch_row_bytes;
    return f->recv_rows * f->dispatch_row_bytes + entries * (sizeof(uint32_t) + sizeof(float));
}

uint64_t op_moe_bytes(const struct problem_params *x, const struct epa_footprint *footprint,
                      enum epa_memory memory, uint32_t slots, bool checks)
{
    const struct epa_moe_footprint *f = &footprint->u.moe;
    struct op_moe op = {.scratch = {.counting = true}};
    uint64_t shared = x->moe.experts * sizeof(float);

    lay_out_scratch(x, f, &op);
    shared += op.scratch.bytes;
    if (x->expert.output == OUTPUT_SEPARATE && !f->fused && memory == EPA_MEMORY_HOST)
        shared += slots * op_moe_rows(f) * x->moe.hidden * sizeof(uint16_t);
    if (f->layout == EPA_LAYOUT_RANK)
        shared += (f->recv_rows + 1) * sizeof(uint32_t) + most_entries(x, f) * sizeof(struct share);
    if (memory != EPA_MEMORY_HOST && checks)
        shared += staged_bytes(x, f);
    return shared + (checks ? op_moe_check_bytes(x) : 0);
}
