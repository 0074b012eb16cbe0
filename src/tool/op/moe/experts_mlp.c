/* Real experts of a rank: the experts of the host or of the backend, and their weights. */
#include "op/moe/experts_mlp.h"

#include "op/moe/expert_weights.h"
#include "op/moe/moe_shape.h"

/* Returns true if the options select oneDNN; auto selects the own kernels, which were never slower. */
static bool is_by_library(const struct problem_params *x)
{
    return x->expert.library == EXPERT_LIBRARY_ONEDNN;
}

static struct epa_experts_params params_of(const struct epa_moe *moe, uint32_t local,
                                           const struct epa_moe_footprint *f)
{
    return (struct epa_experts_params){.moe = moe,
                                       .experts = local,
                                       .recv_rows = f->recv_rows,
                                       .recv_entries = f->recv_entries,
                                       .layout = f->layout,
                                       .recv_dtype = f->recv_dtype};
}

static enum epa_status device_create(struct op_moe *op, const struct epa_experts_params *p,
                                     struct epa_error *err)
{
    const struct epa_backend_ops *ops = op->r.backend->ops;
    const float *factor = (const float *)op->factor.there + op->r.world.rank * op->local_experts;
    struct epa_experts_params params = *p;

    if (ops->experts_create == NULL)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "backend.name algorithm.name",
                            "backend '%s' computes no experts: use an algorithm that computes them",
                            op->r.backend_name);
    params.factor = op->mlp.ffn == 0 ? factor : NULL;
    return ops->experts_create(op->r.backend, &params, &op->device_experts, err);
}

enum epa_status op_moe_mlp_create(struct op_moe *op, struct epa_error *err)
{
    bool host = op->r.backend->memory == EPA_MEMORY_HOST, fused = op->footprint.fused;
    struct epa_problem problem;
    struct epa_experts_params params;
    enum epa_status status = EPA_OK;

    op->mlp = op->weights.shape.mlp;
    if (op->mlp.ffn != 0 && (fused || !host))
        status = op_moe_weights_place(op, err);
    if (status != EPA_OK || fused || (host && op->mlp.ffn == 0))
        return status;
    op_moe_shape(op->r.params, 0, &problem);
    problem.u.moe.mlp = op->mlp;
    params = params_of(&problem.u.moe, op->local_experts, &op->footprint);
    if (!host)
        return device_create(op, &params, err);
    return host_experts_create(op->r.backend,
                               &(struct host_experts_params){.experts = params,
                                                             .source = op_moe_weights_source(op),
                                                             .onednn = is_by_library(op->r.params)},
                               &op->experts, err);
}

void op_moe_mlp_by(const struct op_rank *rank, char *out, size_t room)
{
    const struct op_moe *op = op_moe_of(rank);

    if (op->device_experts != NULL && op->mlp.ffn != 0)
        snprintf(out, room, "%s", op->r.backend->ops->experts_name(op->device_experts));
    else if (op->experts != NULL)
        snprintf(out, room, "%s", host_experts_name(op->experts));
    else
        out[0] = '\0';
}

void op_moe_mlp_destroy(struct op_moe *op)
{
    if (op->device_experts != NULL)
        op->r.backend->ops->experts_destroy(op->device_experts);
    for (uint32_t i = 0; i < 4; i++)
        if (op->mlp_memory[i] != NULL)
            op->r.backend->ops->free(op->r.backend, op->mlp_memory[i]);
    host_experts_destroy(op->experts);
}

struct op_weights op_moe_mlp_bytes(const struct problem_params *x,
                                   const struct epa_footprint *footprint, enum epa_memory memory,
                                   uint32_t workers)
{
    const struct epa_moe_footprint *f = &footprint->u.moe;
    uint32_t local = x->moe.experts / x->ranks;
    struct op_weights out = {0};
    struct weights w;

    if (x->expert.kind != EXPERT_MLP)
        return out;
    weights_init(x, &w);
    if (!f->fused && memory == EPA_MEMORY_HOST) {
        struct epa_problem problem;

        op_moe_shape(x, 0, &problem);
        problem.u.moe.mlp = w.shape.mlp;
        out.host = host_experts_bytes(
            &(struct host_experts_params){.experts = params_of(&problem.u.moe, local, f),
                                          .onednn = is_by_library(x)},
            workers);
    } else if (memory == EPA_MEMORY_HOST) {
        out.host = weights_bytes(&w, local);
    } else {
        out.device = weights_bytes(&w, local);
        out.host = op_moe_weights_stage_bytes(&w);
    }
    return out;
}
