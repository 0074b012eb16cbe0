/* Measures the small worlds of a prediction. */
#include "cli/predict_measure.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "cli/live.h"
#include "cli/predict.h"
#include "cli/predict_points.h"
#include "cli/progress_line.h"
#include "experiment/operation.h"
#include "result/result.h"
#include "run/run.h"
#include "run/stop_signals.h"

/* Adds a run of a world. Returns false with the reason in `why` if the run is not valid. */
static bool add_run(struct prediction *p, uint32_t ranks, uint32_t tokens, uint32_t copies,
                    bool checks, char why[RUNS_FAILURE])
{
    struct measured *m = &p->run[p->n];
    struct runs *runs = &p->read[p->n_read];
    const char **set = arena_alloc(p->arena, SETS_MOST * sizeof(*set));
    char wrong[RUNS_FAILURE];
    uint32_t n = 0;

    set[n++] = arena_printf(p->arena, "ranks=%u", ranks);
    set[n++] = "ranks_per_node=0";
    set[n++] = arena_printf(p->arena, "%s=%u", p->op->size_key, tokens);
    if (tokens != p->op->size(&p->x->problem) ||
        (p->x->problem.tokens.kind == TOKENS_LIST && !checks))
        set[n++] = "tokens=full";
    if (p->op->copies_key != NULL)
        set[n++] = arena_printf(p->arena, "%s=%u", p->op->copies_key, copies);
    p->n_read++;
    if (runs_read_text(p->cli, p->registry, p->text, set, n, runs, wrong, &p->err) != EPA_OK) {
        snprintf(why, RUNS_FAILURE, "%u ranks cannot be measured here: %.240s", ranks, wrong);
        runs_finish(runs);
        p->n_read--;
        return false;
    }
    *m = (struct measured){.ranks = ranks,
                           .set = set,
                           .n_sets = n,
                           .tokens = tokens,
                           .copies = copies,
                           .checks = checks,
                           .x = runs->run[0].x,
                           .total_ns = INFINITY,
                           .second_ns = INFINITY};
    prediction_count(m->x, p->source, m->load);
    for (uint32_t i = 0; i < p->op->n_phases; i++) {
        m->point[i] = prediction_point(p, m->x, &m->load[i], p->here);
        m->point[i].ns = INFINITY;
        m->point[i].weight = prediction_is_whole(p, m) ? 1 : SIDE_WEIGHT;
    }
    p->n++;
    return true;
}

/* Adds all runs of a world, or none. */
static bool add_world(struct prediction *p, uint32_t ranks, bool checks, char why[RUNS_FAILURE])
{
    uint32_t tokens = (uint32_t)p->op->size(&p->x->problem), copies = operation_copies(p->x),
             first = p->n;
    struct measured *all = &p->run[first];
    bool fewer;

    if (!add_run(p, ranks, tokens, copies, checks, why))
        return false;
    fewer = all->load[0].rows < all->load[0].entries && copies > 1 &&
            p->x->problem.routing.kind != ROUTING_FILE;
    if (!checks && tokens > 1 && !add_run(p, ranks, 1, copies, false, why)) {
        p->n = first;
        return false;
    }
    if (!checks && fewer)
        (void)add_run(p, ranks, tokens, copies > 4 ? copies / 4 : 1, false, why);
    if (!checks)
        p->world[p->n_worlds++] = ranks;
    return true;
}

enum epa_status prediction_choose_worlds(struct prediction *p)
{
    double threads = fmax(prediction_threads(p->x), 1);
    char why[RUNS_FAILURE] = "", first[RUNS_FAILURE] = "";
    bool known = false;

    /* Doubles the ranks after a valid world; else tries the next number, which may divide the
     * experts. */
    for (uint32_t ranks = 2; ranks <= CORES_MOST && p->n_worlds + 1 < WORLDS_MOST;) {
        bool wanted = ranks * threads <= p->here || p->n_worlds < WORLDS_WANTED;

        ranks = wanted && add_world(p, ranks, false, first[0] == '\0' ? first : why) ? ranks * 2
                                                                                     : ranks + 1;
    }
    if (p->n_worlds == 0 && p->err.status == EPA_OK)
        return epa_fail(&p->err, EPA_ERR_CONFIG,
                        "%s: the prediction needs a measured run of 2 to %d ranks: %s",
                        p->cli->arg[0], CORES_MOST, first);
    for (uint32_t i = 0; i < p->n_worlds; i++)
        known = known || (p->world[i] == p->ranks && p->x->problem.tokens.kind != TOKENS_LIST);
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

/* Adds the times of a result. Returns the name of a phase without times, or NULL. */
static const char *add_times(struct prediction *p, struct measured *m, const struct run_figures *f)
{
    double signal = f->links.latency_ns, total = 0;

    for (uint32_t i = 0; i < p->op->n_phases; i++) {
        double ns = prediction_phase_ns(f->stage, f->n_stages, p->op->phase[i].name);

        if (!(ns > 0))
            return p->op->phase[i].name;
        m->point[i].ns = fmin(m->point[i].ns, ns);
        total += ns;
    }
    m->second_ns = fmin(m->second_ns, fmax(m->total_ns, total));
    m->total_ns = fmin(m->total_ns, total);
    if (signal > 0 && (p->signal_ns <= 0 || signal < p->signal_ns))
        p->signal_ns = signal;
    return NULL;
}

/* Measures a run; returns the exit code of bench. */
static int measure_run(struct prediction *p, struct measured *m, struct live *live, int stop_fd)
{
    const struct run_how how = {.machine = &p->machine, .stop_fd = stop_fd};
    const struct live_run shown = {
        .file = p->cli->arg[0], .label = "", .number = 1, .of = 1, .stop_fd = stop_fd};
    const struct run_observer observer = live_observe(live, &shown);
    char why[RUNS_FAILURE] = "";
    struct result result = {.status = EPA_OK};
    struct runs runs = {0};
    uint32_t n = m->n_sets;
    int code, signal;

    m->set[n++] = "bench.check=false";
    m->set[n++] = "bench.iterations=200";
    m->set[n++] = "bench.max_time=200ms";
    code = exit_code(
        runs_read_text(p->cli, p->registry, p->text, m->set, n, &runs, why, &result.error), SIGINT);
    if (code == EXIT_OK) {
        result = run_experiment(runs.run[0].x, VERB_BENCH, &how, &observer);
        code = exit_code(result.status, result.signal != 0 ? result.signal : SIGINT);
    }
    if (code == EXIT_OK) {
        const struct run_figures *f = result.figures;
        const char *missing = add_times(p, m, f);

        code = missing == NULL ? f->exit_code : EXIT_USAGE;
        if (missing != NULL)
            snprintf(why, sizeof(why), "the result has no stage '%s'", missing);
        else
            snprintf(why, sizeof(why), "%.*s", RUNS_FAILURE - 1,
                     f->error != NULL ? f->error_text : "");
    } else if (result.error.text[0] != '\0') {
        snprintf(why, sizeof(why), "%.*s", RUNS_FAILURE - 1, result.error.text);
    }
    if (result_finish(&result))
        runs_finish(&runs);
    signal = stop_signals_read(stop_fd);
    if (signal != 0 && code == EXIT_OK)
        code = exit_code(EPA_ERR_INTERRUPTED, signal);
    if (code != EXIT_OK && code != exit_code(EPA_ERR_INTERRUPTED, SIGINT) &&
        code != exit_code(EPA_ERR_INTERRUPTED, SIGTERM))
        epa_fail(&p->err, EPA_ERR_CONFIG, "%s: %u ranks could not be measured: %s", p->cli->arg[0],
                 m->ranks, why);
    return code;
}

/* Removes a failed world and all larger ones. Returns false if no smaller world is left or --check
 * needs one of them. */
static bool drop_worlds(struct prediction *p, uint32_t ranks)
{
    uint32_t kept = 0;

    if (p->n_worlds == 0 || p->world[0] >= ranks || (p->cli->predict.check && p->ranks >= ranks))
        return false;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->run[i].ranks < ranks)
            p->run[kept++] = p->run[i];
    p->n = kept;
    while (p->world[p->n_worlds - 1] >= ranks)
        p->n_worlds--;
    p->note[p->n_notes++] = arena_printf(p->arena, "%s", p->err.text);
    p->err = (struct epa_error){EPA_OK, ""};
    return true;
}

int prediction_measure(struct prediction *p)
{
    bool progress = progress_is_on(p->cli);
    struct live *live = live_create(false);
    int code = EXIT_OK, stop_fd = -1;
    sigset_t stops;

    stop_signals_catch(&stops);
    if (stop_signals_open(&stops, &stop_fd, &p->err) != EPA_OK)
        code = exit_code(p->err.status, SIGINT);

    for (uint32_t round = 0; round < ROUNDS && code == EXIT_OK; round++)
        for (uint32_t i = 0; i < p->n && code == EXIT_OK; i++) {
            if (progress)
                (void)progress_show("round %u of %d: %u ranks", round + 1, ROUNDS, p->run[i].ranks);
            code = measure_run(p, &p->run[i], live, stop_fd);
            if (code != EXIT_OK && round == 0 && !p->run[i].checks &&
                drop_worlds(p, p->run[i].ranks)) {
                code = EXIT_OK;
                i--; /* the next run took the place of the removed one */
            }
        }
    if (progress)
        progress_clear();
    live_destroy(live);
    if (stop_fd >= 0)
        close(stop_fd);
    return code;
}
