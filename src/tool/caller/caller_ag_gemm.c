/* epa2a_ag_gemm_* as an algorithm with one stage. */
#include "caller/caller_ag_gemm.h"

#include <stdlib.h>

#include "base/memory.h"
#include "caller/caller_status.h"
#include "experiment/operation.h"

struct ag_gemm {
    struct caller_object base; /* first */
    struct epa2a_ag_gemm *object;
};

static struct ag_gemm *ag_gemm_of(struct epa_algorithm *a)
{
    return (struct ag_gemm *)(void *)a;
}

static enum epa_status run_ag_gemm(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ag_gemm *g = ag_gemm_of(a);
    const struct epa_ag_gemm *in = &problem->u.ag_gemm;
    void *stream = g->base.caller->stream;

    if (in->out_fp8)
        return caller_called(g->base.caller,
                             epa2a_ag_gemm_run_fp8(g->object, in->rows, in->a, in->a_scale, in->c,
                                                   in->c_scale, stream));
    return caller_called(g->base.caller,
                         epa2a_ag_gemm_run(g->object, in->rows, in->a, in->a_scale, in->c, stream));
}

static void destroy_ag_gemm(struct epa_algorithm *a)
{
    struct ag_gemm *g = ag_gemm_of(a);

    epa2a_ag_gemm_destroy(g->object);
    g->base.caller->object = NULL;
    free(g);
}

static const struct epa_stage ag_gemm_stage = {"ag_gemm", EPA_STAGE_WHOLE, run_ag_gemm};

enum epa_status caller_ag_gemm_create(struct caller *c, const struct op_rank *op,
                                      struct caller_object **out, struct epa_error *err)
{
    struct ag_gemm *g = memory_alloc(1, sizeof(*g));
    struct epa_problem problem = operation_problem(c->x, op->world.rank);
    const struct epa_ag_gemm *from = &problem.u.ag_gemm;
    EPA2A_STRUCT(epa2a_ag_gemm_params, p);

    op->operation->weights(op, &problem);
    g->base = (struct caller_object){.base = {.stages = &ag_gemm_stage,
                                              .n_stages = 1,
                                              .explain = caller_explain,
                                              .destroy = destroy_ag_gemm},
                                     .caller = c,
                                     .calls = 1};
    *out = &g->base;
    p.max_rows = from->max_rows;
    p.n = from->n;
    p.k = from->k;
    p.dtype = from->dtype;
    p.out_dtype = from->out_fp8 ? EPA2A_FP8_E4M3 : 0;
    p.b = from->b;
    p.b_scale = from->dtype == EPA_FP8_E4M3 ? from->b_scale : NULL;
    p.bias = from->bias ? from->bias_of : NULL;
    p.options = c->options.data;
    return caller_set_up(c, epa2a_ag_gemm_create(c->comm, &p, &g->object), err);
}
