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
    char *memory[MLP_MATRICES]; /* weights, if the operation has none; or NULL */
    float *scale[MLP_MATRICES];
};

static struct layer *layer_of(struct epa_algorithm *a)
{
    return (struct layer *)(void *)a;
}

static enum epa_status run(struct epa_algorithm *a, struct epa_problem *problem)
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
    return caller_called(l->base.caller, epa2a_layer_run(l->object, &in, m->out, NULL));
}

static void destroy(struct epa_algorithm *a)
{
    struct layer *l = layer_of(a);

    epa2a_layer_destroy(l->object);
    l->base.caller->object = NULL;
    for (enum mlp_matrix m = MLP_UP; m < MLP_MATRICES; m++) {
        free(l->memory[m]);
        free(l->scale[m]);
    }
    free(l);
}

/* Makes the weights of this rank's experts. The operation keeps packed weights only, if it computes
 * the experts itself. */
static void make_weights(struct layer *l, const struct op_rank *op)
{
    uint32_t local = op->params->moe.experts / op->world.size;
    const struct mlp_shape *s;
    struct weights w;

    weights_init(op->params, &w);
    s = &w.shape;
    for (enum mlp_matrix m = MLP_UP; m < MLP_MATRICES; m++) {
        size_t row = mlp_columns(s, m) * mlp_element(s), scales = mlp_scales_of_row(s, m);

        l->memory[m] = memory_alloc((size_t)local * mlp_rows(s, m), row);
        l->scale[m] = memory_alloc((size_t)local * mlp_blocks(s, m), scales * sizeof(float));
        for (uint32_t e = 0; e < local; e++) {
            uint32_t expert = op->world.rank * local + e;
            size_t first = (size_t)e * mlp_rows(s, m), block = (size_t)e * mlp_blocks(s, m);

            for (uint32_t i = 0; i < mlp_rows(s, m); i++)
                weights_row(&w, expert, m, i, l->memory[m] + (first + i) * row);
            for (uint32_t b = 0; s->mlp.dtype == EPA_FP8_E4M3 && b < mlp_blocks(s, m); b++)
                weights_scales(&w, expert, m, b, l->scale[m] + (block + b) * scales);
        }
    }
}

static const struct epa_stage stage = {"layer", EPA_STAGE_WHOLE, run};

enum epa_status caller_layer_create(struct caller *c, const struct op_rank *op,
                                    struct caller_object **out, struct epa_error *err)
{
    struct layer *l = memory_alloc(1, sizeof(*l));
    const struct epa_mlp shape = weights_shape(op->params);
    struct epa_problem problem = {.op = EPA_OP_MOE};
    const struct epa_mlp *mlp = &problem.u.moe.mlp;
    EPA2A_STRUCT(epa2a_moe_shape, s);
    EPA2A_STRUCT(epa2a_experts, e);

    l->base = (struct caller_object){
        .base = {.stages = &stage, .n_stages = 1, .explain = caller_explain, .destroy = destroy},
        .caller = c,
        .calls = 1};
    *out = &l->base;
    op->operation->weights(op, &problem);
    if (mlp->up == NULL)
        make_weights(l, op);
    caller_shape(c, &s);
    e.ffn = shape.ffn;
    e.activation = shape.activation;
    e.dtype = shape.dtype;
    e.up = mlp->up != NULL ? mlp->up : l->memory[MLP_UP];
    e.down = mlp->up != NULL ? mlp->down : l->memory[MLP_DOWN];
    e.up_scale = mlp->up != NULL ? mlp->up_scale : l->scale[MLP_UP];
    e.down_scale = mlp->up != NULL ? mlp->down_scale : l->scale[MLP_DOWN];
    return caller_set_up(c, epa2a_layer_create(c->comm, &s, &e, &l->object), err);
}
