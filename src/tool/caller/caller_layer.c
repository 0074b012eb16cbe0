/* epa2a_layer_* as an algorithm with one stage. */
#include "caller/caller_layer.h"

#include <stdlib.h>

#include "base/memory.h"
#include "caller/caller_shape.h"
#include "caller/caller_status.h"
#include "op/moe/weights.h"

struct layer {
    struct caller_object base; /* first */
    struct epa2a_layer *object;
    /* Weights and scales, if the operation has none for the interface; or empty. */
    struct op_buffer memory[MLP_MATRICES], scale[MLP_MATRICES];
};

static struct layer *layer_of(struct epa_algorithm *a)
{
    return (struct layer *)(void *)a;
}

static enum epa_status run_layer(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct layer *l = layer_of(a);
    const struct epa_moe *m = &problem->u.moe;
    EPA2A_STRUCT(epa2a_tokens, in);

    in.tokens = m->tokens;
    in.x = m->x_dtype == EPA_FP8_E4M3 ? (const void *)m->x_fp8 : m->x;
    in.x_scale = m->x_dtype == EPA_FP8_E4M3 ? m->x_scale : NULL;
    in.topk_idx = m->expert;
    in.topk_idx_bytes = sizeof(*m->expert);
    in.topk_weight = m->weight;
    return caller_called(l->base.caller,
                         epa2a_layer_run(l->object, &in, m->out, l->base.caller->stream));
}

static void destroy_layer(struct epa_algorithm *a)
{
    struct layer *l = layer_of(a);

    epa2a_layer_destroy(l->object);
    l->base.caller->object = NULL;
    for (enum mlp_matrix m = MLP_UP; m < MLP_MATRICES; m++) {
        op_buffer_free(l->base.caller->params.backend, &l->memory[m]);
        op_buffer_free(l->base.caller->params.backend, &l->scale[m]);
    }
    free(l);
}

/* Makes one matrix of this rank's experts with its scales. */
static enum epa_status make_matrix(struct layer *l, const struct op_rank *op,
                                   const struct weights *w, enum mlp_matrix m,
                                   struct epa_error *err)
{
    struct epa_backend *b = l->base.caller->params.backend;
    const struct mlp_shape *s = &w->shape;
    uint32_t local = op->params->moe.experts / op->world.size;
    size_t row = mlp_columns(s, m) * mlp_element(s), scales = mlp_scales(s, m);
    uint64_t bytes = (uint64_t)local * mlp_rows(s, m) * row;
    uint64_t scale_bytes = local * scales * sizeof(float);
    enum epa_status status = op_buffer_alloc(b, "weights", bytes, &l->memory[m], err);

    if (status == EPA_OK)
        status = op_buffer_alloc(b, "scales of weights", scale_bytes, &l->scale[m], err);
    for (uint32_t e = 0; e < local && status == EPA_OK; e++) {
        uint32_t expert = op->world.rank * local + e;
        char *to = (char *)l->memory[m].here + (size_t)e * mlp_rows(s, m) * row;
        float *scale = (float *)l->scale[m].here + e * scales;

        for (uint32_t i = 0; i < mlp_rows(s, m); i++)
            weights_row(w, expert, m, i, to + i * row);
        for (uint32_t i = 0; scales != 0 && i < mlp_blocks(s, m); i++)
            weights_scales(w, expert, m, i, scale + mlp_scale_at(s, m, i));
    }
    if (status == EPA_OK)
        status = op_backend_done(b, op_buffer_send(b, &l->memory[m], bytes), err,
                                 "cannot write the weights");
    if (status == EPA_OK && scales != 0)
        status = op_backend_done(b, op_buffer_send(b, &l->scale[m], scale_bytes), err,
                                 "cannot write the scales of the weights");
    return status;
}

/* Makes the weights of this rank's experts. The operation keeps packed weights only, if it computes
 * the experts itself on hosts. */
static enum epa_status make_weights(struct layer *l, const struct op_rank *op,
                                    struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    struct weights w;

    weights_init(op->params, &w);
    for (enum mlp_matrix m = MLP_UP; m < MLP_MATRICES && status == EPA_OK; m++)
        status = make_matrix(l, op, &w, m, err);
    return status;
}

static const struct epa_stage layer_stage = {"layer", EPA_STAGE_WHOLE, run_layer};

enum epa_status caller_layer_create(struct caller *c, const struct op_rank *op,
                                    struct caller_object **out, struct epa_error *err)
{
    struct layer *l = memory_alloc(1, sizeof(*l));
    const struct epa_mlp shape = weights_shape(op->params);
    struct epa_problem problem = {.op = EPA_OP_MOE};
    const struct epa_mlp *mlp = &problem.u.moe.mlp;
    EPA2A_STRUCT(epa2a_moe_shape, s);
    EPA2A_STRUCT(epa2a_experts, e);
    enum epa_status status = EPA_OK;

    l->base = (struct caller_object){.base = {.stages = &layer_stage,
                                              .n_stages = 1,
                                              .explain = caller_explain,
                                              .destroy = destroy_layer},
                                     .caller = c,
                                     .calls = 1};
    *out = &l->base;
    op->operation->weights(op, &problem);
    if (mlp->up == NULL)
        status = make_weights(l, op, err);
    if (status != EPA_OK)
        return status;
    caller_shape(c, &s);
    e.ffn = shape.ffn;
    e.activation = shape.activation;
    e.dtype = shape.dtype;
    e.up = mlp->up != NULL ? mlp->up : l->memory[MLP_UP].there;
    e.down = mlp->up != NULL ? mlp->down : l->memory[MLP_DOWN].there;
    e.up_scale = mlp->up != NULL ? mlp->up_scale : l->scale[MLP_UP].there;
    e.down_scale = mlp->up != NULL ? mlp->down_scale : l->scale[MLP_DOWN].there;
    return caller_set_up(c, epa2a_layer_create(c->comm, &s, &e, &l->object), err);
}
