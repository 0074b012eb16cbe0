/* The runs that a prediction measures. Small worlds have 2, 4, 8 ... ranks, or the next number that the file
 * allows, each with the file's number of tokens, with one token and, if rows are sent once for several choices,
 * with fewer choices. */
#include "cli/predict_runs.h"

#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "cli/predict_worlds.h"
#include "experiment/operation.h"

/* Settings of a measured run. */
static const char *const bench_sets[] = {"bench.check=false", "bench.iterations=200",
                                         "bench.max_time=200ms"};

/* Returns the number of threads per core, at least 1; 1 on GPUs. */
static double threads_per_core(const struct experiment *x, uint32_t cores)
{
    return fmax(1, x->problem.ranks * predict_threads(x) / cores);
}

/* Adds a run of a world. Returns false with the reason in `why` if the run is not valid. */
static bool add_run(struct predict_plan *p, uint32_t ranks, uint32_t tokens, uint32_t copies,
                    bool checks, char why[RUNS_FAILURE])
{
    struct predict_run *run = &p->run[p->n_runs];
    char wrong[RUNS_FAILURE];
    struct runs runs = {0};
    bool good;

    *run =
        (struct predict_run){.ranks = ranks, .tokens = tokens, .copies = copies, .checks = checks};
    run->set[run->n_sets++] = arena_printf(p->arena, "ranks=%u", ranks);
    run->set[run->n_sets++] = "ranks_per_node=0";
    run->set[run->n_sets++] = arena_printf(p->arena, "%s=%u", p->op->size_key, tokens);
    if (tokens != p->op->size(&p->x->problem) ||
        (p->x->problem.tokens.kind == TOKENS_LIST && !checks))
        run->set[run->n_sets++] = "tokens=full";
    if (p->op->copies_key != NULL)
        run->set[run->n_sets++] = arena_printf(p->arena, "%s=%u", p->op->copies_key, copies);
    good = runs_read_text(p->cli, p->registry, p->text, run->set, run->n_sets, &runs, wrong,
                          &p->err) == EPA_OK;
    if (good) {
        run->share = threads_per_core(runs.run[0].x, p->cores);
        predict_count(runs.run[0].x, p->source, run->load);
        for (size_t i = 0; i < sizeof(bench_sets) / sizeof(bench_sets[0]); i++)
            run->set[run->n_sets++] = bench_sets[i];
        p->n_runs++;
    } else {
        snprintf(why, RUNS_FAILURE, "%u ranks cannot be measured here: %.240s", ranks, wrong);
    }
    runs_finish(&runs);
    return good;
}

/* Adds all runs of a world, or none. */
static bool add_world(struct predict_plan *p, uint32_t ranks, bool checks, char why[RUNS_FAILURE])
{
    uint32_t tokens = (uint32_t)p->op->size(&p->x->problem), copies = operation_copies(p->x),
             first = p->n_runs;
    struct predict_run *all = &p->run[first];
    bool fewer;

    if (!add_run(p, ranks, tokens, copies, checks, why))
        return false;
    fewer = all->load[0].rows < all->load[0].entries && copies > 1 &&
            p->x->problem.routing.kind != ROUTING_FILE;
    if (!checks && tokens > 1 && !add_run(p, ranks, 1, copies, false, why)) {
        p->n_runs = first;
        return false;
    }
    if (!checks && fewer)
        (void)add_run(p, ranks, tokens, copies > 4 ? copies / 4 : 1, false, why);
    if (!checks)
        p->measured[p->n_measured++] = ranks;
    return true;
}

enum epa_status predict_choose_runs(struct predict_plan *p)
{
    double threads = fmax(predict_threads(p->x), 1);
    char why[RUNS_FAILURE] = "", first[RUNS_FAILURE] = "";
    bool known = false;

    /* Doubles the ranks after a valid world; else tries the next number, which may divide the
     * experts. */
    for (uint32_t ranks = 2; ranks <= CORES_MOST && p->n_measured + 1 < WORLDS_MOST;) {
        bool wanted = ranks * threads <= p->cores || p->n_measured < WORLDS_WANTED;

        ranks = wanted && add_world(p, ranks, false, first[0] == '\0' ? first : why) ? ranks * 2
                                                                                     : ranks + 1;
    }
    if (p->n_measured == 0 && p->err.status == EPA_OK)
        return epa_fail(&p->err, EPA_ERR_CONFIG,
                        "%s: the prediction needs a measured run of 2 to %d ranks: %s",
                        p->cli->arg[0], CORES_MOST, first);
    for (uint32_t i = 0; i < p->n_measured; i++)
        known = known || (p->measured[i] == p->ranks && p->x->problem.tokens.kind != TOKENS_LIST);
    if (p->cli->predict.check && p->ranks > p->per_node)
        return epa_fail(
            &p->err, EPA_ERR_CONFIG,
            "--check: %u ranks on %u nodes cannot run on this single node; compare with "
            "results of the cluster by --measured",
            p->ranks, p->ranks / p->per_node);
    if (p->cli->predict.check && !known && !add_world(p, p->ranks, true, why))
        return epa_fail(&p->err, EPA_ERR_CONFIG, "--check: %s", why);
    return p->err.status;
}
