/* Traffic and memory of worlds. No rank of a world is started, and no memory of its size is allocated. */
#include "cli/predict_worlds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "config/diag.h"
#include "experiment/operation.h"
#include "experiment/points.h"

enum { ITERATIONS_MOST = 8 }; /* maximum number of iterations whose traffic is counted */
static const double iterations_most = 4e6; /* maximum number of choices in several iterations */
/* Maximum number of choices of a world that is not requested: 0.3 s. */
static const double unrequested_most = 32e6;

double predict_threads(const struct experiment *x)
{
    return is_on_hosts(x) ? threads_of(x) : 0;
}

/* Returns the number of choices of an iteration. */
static double choices_of(const struct experiment *x, uint32_t ranks)
{
    return (double)ranks * (double)operation_of_experiment(x)->size(&x->problem) *
           (double)operation_copies(x);
}

void predict_count(const struct experiment *x, const struct op_source *source,
                   struct op_load mean[OP_PHASES])
{
    const struct operation *op = operation_of_experiment(x);
    uint32_t n =
        (uint32_t)fmax(1, fmin(ITERATIONS_MOST, iterations_most / choices_of(x, x->problem.ranks)));

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

static uint64_t required_memory(const struct experiment *x)
{
    const struct epa_footprint *f = &x->footprint;
    uint32_t threads = threads_of(x);

    return f->heap_bytes + f->private_bytes + f->worker_bytes * (threads > 0 ? threads - 1 : 0) +
           f->device_bytes +
           op_bytes(operation_of_experiment(x), &x->problem, f, backend_of(x)->memory,
                    x->bench.input_sets, false);
}

/* Counts a world. Returns false if it is not possible. */
static bool plan_world(struct predict_plan *p, uint32_t ranks)
{
    struct predict_world *world = &p->world[p->n_worlds];
    struct diag *diag = diag_create();
    struct experiment x;

    *world = (struct predict_world){.ranks = ranks,
                                    .nodes = ranks / (ranks < p->per_node ? ranks : p->per_node)};
    if (experiment_resize(p->x, ranks, p->per_node, diag, &x, &world->planned_ranks) != EPA_OK)
        world->why = arena_printf(p->arena, "rejected: %s", diag_first_text(diag));
    diag_destroy(diag);
    if (world->why == NULL) {
        predict_count(&x, p->source, world->load);
        world->heap_bytes = x.footprint.heap_bytes;
        world->memory_bytes = required_memory(&x);
    }
    p->n_worlds++;
    return world->why == NULL;
}

static bool has_world(const struct predict_plan *p, uint32_t ranks)
{
    for (uint32_t i = 0; i < p->n_worlds; i++)
        if (p->world[i].ranks == ranks)
            return true;
    return false;
}

static int compare_worlds(const void *a, const void *b)
{
    const struct predict_world *left = a, *right = b;

    return compare_whole(left->ranks, right->ranks);
}

enum epa_status predict_count_worlds(struct predict_plan *p)
{
    uint32_t first = p->per_node < p->low ? p->per_node : p->low;

    if (!plan_world(p, p->low))
        return epa_fail(&p->err, EPA_ERR_CONFIG, "%s: %u ranks are %s", p->cli->arg[0], p->low,
                        p->world[0].why);
    for (uint32_t ranks = first; ranks <= RANKS_MOST; ranks *= 2)
        if (!has_world(p, ranks) &&
            ((ranks > p->ranks && choices_of(p->x, ranks) > unrequested_most) ||
             !plan_world(p, ranks)))
            break;
    for (uint32_t ranks = p->low; ranks <= p->ranks; ranks *= 2)
        if (!has_world(p, ranks))
            (void)plan_world(p, ranks);
    qsort(p->world, p->n_worlds, sizeof(p->world[0]), compare_worlds);
    return EPA_OK;
}
