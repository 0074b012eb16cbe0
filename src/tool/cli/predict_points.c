/* Points of a prediction: traffic, cost terms and measured times of a run. */
#include "cli/predict_points.h"

#include <math.h>
#include <string.h>

#include "cli/predict.h"
#include "experiment/operation.h"

double prediction_threads(const struct experiment *x)
{
    return is_on_hosts(x) ? threads_of(x) : 0;
}

/* Returns the number of threads per core, at least 1; 1 on GPUs. */
static double threads_per_core(const struct experiment *x, uint32_t cores)
{
    uint32_t node = x->problem.ranks_per_node != 0 ? x->problem.ranks_per_node : x->problem.ranks;

    return fmax(1, node * prediction_threads(x) / cores);
}

void prediction_count(const struct experiment *x, const struct op_source *source,
                      struct op_load mean[OP_PHASES])
{
    const struct operation *op = operation_of_experiment(x);
    double choices =
        (double)x->problem.ranks * (double)op->size(&x->problem) * (double)operation_copies(x);
    uint32_t n = (uint32_t)fmax(1, fmin(COUNTED, CHOICES_MOST / choices));

    memset(mean, 0, OP_PHASES * sizeof(*mean));
    for (uint32_t i = 0; i < n; i++) {
        struct op_load load[OP_PHASES];

        op->load(&x->problem, &x->footprint, source, i, load);
        for (uint32_t k = 0; k < op->n_phases; k++) {
            mean[k].rows += load[k].rows / n;
            mean[k].entries += load[k].entries / n;
            mean[k].rank_bytes += load[k].rank_bytes / n;
            mean[k].node_bytes += load[k].node_bytes / n;
            mean[k].messages += load[k].messages / n;
        }
    }
}

struct predict_point prediction_point(const struct prediction *p, const struct experiment *x,
                                      const struct op_load *load, uint32_t cores)
{
    struct predict_point out = {.share = threads_per_core(x, cores)};
    bool few = p->op->size(&x->problem) != p->op->size(&p->x->problem), shared = out.share > 1;

    out.term[PREDICT_CALL] = 1;
    out.term[PREDICT_PEER] = x->problem.ranks - 1;
    out.term[few ? PREDICT_FEW_ROW : PREDICT_ROW] = load->rows;
    out.term[PREDICT_CHOICE] = few ? 0 : load->entries;
    out.term[PREDICT_SHARED_CALL] = shared;
    out.term[PREDICT_SHARED_ROW] = shared && !few ? load->rows : 0;
    return out;
}

bool prediction_is_whole(const struct prediction *p, const struct measured *m)
{
    return m->tokens == p->op->size(&p->x->problem) && m->copies == operation_copies(p->x);
}

double prediction_phase_ns(const struct run_stage *stage, uint32_t n, const char *phase)
{
    double ns = 0;

    for (uint32_t i = 0; i < n; i++)
        if (strncmp(stage[i].name, phase, strlen(phase)) == 0)
            ns += stage[i].figures.ns.median;
    return ns;
}
