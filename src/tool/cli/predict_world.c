/* Predicts worlds from fitted costs and from the traffic of their routing. */
#include "cli/predict_world.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/predict.h"
#include "cli/predict_points.h"
#include "config/diag.h"
#include "experiment/points.h"
#include "experiment/operation.h"
#include "report/predict.h"
#include "report/results_json.h"

/* Largest measured time of a stage in latencies, for the upper bound: a dispatch of ll_v2, which
 * exchanges counts first, took 4.0 to 4.2 with UCX over TCP and delays of 5 and 50 ms. The model has
 * no dependencies between messages. */
enum { LATENCIES = 4 };

/* ---- predicting ---- */

static double local_ns(const struct prediction *p, uint32_t fit, uint32_t phase,
                       const struct predict_point *point)
{
    return predict_local(p->cost[fit][phase], point);
}

/* Returns true if the world is the only one whose ranks do not share cores. The fit needs this world
 * to separate the cost of a call from the cost of sharing, so no fit leaves it out. */
static bool is_alone(const struct prediction *p, uint32_t ranks)
{
    bool alone = true;

    for (uint32_t i = 0; i < p->n; i++)
        if (!p->run[i].checks)
            alone = alone && (p->run[i].point[0].share > 1) == (p->run[i].ranks != ranks);
    return alone;
}

/* Fits the costs to all runs, and again without the runs of each world. The error covers only whole
 * iterations with all tokens, since predictions are for these. */
void prediction_fit(struct prediction *p)
{
    struct predict_point *some = arena_alloc(p->arena, p->n * sizeof(*some));

    for (uint32_t without = 0; without <= p->n_worlds; without++)
        for (uint32_t phase = 0; phase < p->op->n_phases; phase++) {
            uint32_t n = 0;

            for (uint32_t i = 0; i < p->n; i++)
                if (!p->run[i].checks &&
                    (without == 0 || p->n_worlds == 1 || p->run[i].ranks != p->world[without - 1] ||
                     is_alone(p, p->run[i].ranks)))
                    some[n++] = p->run[i].point[phase];
            predict_fit(some, n, p->cost[without][phase]);
        }
    for (uint32_t i = 0; i < p->n; i++) {
        const struct measured *m = &p->run[i];

        for (uint32_t f = 0; f <= p->n_worlds; f++) {
            double ns = 0;

            if (m->checks || !prediction_is_whole(p, m) || (f > 0 && p->world[f - 1] != m->ranks))
                continue;
            for (uint32_t phase = 0; phase < p->op->n_phases; phase++)
                ns += local_ns(p, f, phase, &m->point[phase]);
            p->error = fmax(p->error, fabs(log(ns / m->total_ns)));
            p->error = fmax(p->error, log(m->second_ns / m->total_ns));
        }
    }
}

/* Returns a stage with whole nanoseconds and bytes. */
static struct predict_stage stage_of(const char *name, const struct predict_time *t, double low,
                                     double high, double bytes)
{
    return (struct predict_stage){name,
                                  {round(t->ns), round(t->local_ns), round(t->bytes_ns),
                                   round(t->messages_ns), round(t->latency_ns), t->bound},
                                  round(low),
                                  round(high),
                                  round(bytes)};
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

/* Predicts the phases of a world by the costs of all runs. The fits without one world give the
 * bounds. */
static void predict_stages(struct prediction *p, const struct experiment *x,
                           const struct op_load *load, struct predict_world *out)
{
    const struct predict_link *link = x->problem.ranks_per_node != 0 ? &p->link : NULL;
    struct predict_time sum = {0};
    double low = 0, high = 0, bytes = 0, longest = 0, wide = exp(p->error);

    for (uint32_t phase = 0; phase < p->op->n_phases; phase++) {
        struct predict_point point = prediction_point(p, x, &load[phase], p->cores);
        struct predict_time t, one;
        double from = INFINITY, to = 0, link_bytes = 0;

        t = predict_time(local_ns(p, 0, phase, &point), &load[phase], link, p->signal_ns);
        for (uint32_t f = 0; f <= p->n_worlds; f++) {
            double ns = local_ns(p, f, phase, &point);

            one = predict_time(ns / wide, &load[phase], link, p->signal_ns);
            from = fmin(from, one.ns);
            one = predict_time(ns * wide, &load[phase], link, p->signal_ns);
            to = fmax(to, one.ns + (LATENCIES / PREDICT_LATENCIES - 1) * one.latency_ns);
        }
        if (link != NULL)
            link_bytes = link->node ? load[phase].node_bytes : load[phase].rank_bytes;
        out->stage[out->n_stages] = stage_of(p->op->phase[phase].name, &t, from, to, link_bytes);
        out->stage[out->n_stages++].load = load[phase];
        if (t.ns > longest)
            sum.bound = t.bound;
        longest = fmax(longest, t.ns);
        sum.ns += t.ns;
        sum.local_ns += t.local_ns;
        sum.bytes_ns += t.bytes_ns;
        sum.messages_ns += t.messages_ns;
        sum.latency_ns += t.latency_ns;
        low += from;
        high += to;
        bytes += link_bytes;
    }
    out->total = stage_of("total", &sum, low, high, bytes);
}

const char *prediction_resize(struct prediction *p, uint32_t ranks, struct experiment *out,
                              uint32_t *planned)
{
    struct diag *diag = diag_create();
    const char *why = NULL;

    if (experiment_resize(p->x, ranks, p->per_node, diag, out, planned) != EPA_OK)
        why = arena_printf(p->arena, "rejected: %s", diag_first_text(diag));
    diag_destroy(diag);
    return why;
}

/* Returns the prediction of a world, or the reason why it is not possible. */
static struct predict_world predict_world(struct prediction *p, uint32_t ranks)
{
    uint32_t node = ranks < p->per_node ? ranks : p->per_node;
    struct predict_world out = {.ranks = ranks, .nodes = ranks / node, .times = NAN};
    struct op_load load[OP_PHASES];
    struct experiment x;

    out.why = prediction_resize(p, ranks, &x, &out.planned_ranks);
    if (out.why != NULL)
        return out;
    prediction_count(&x, p->source, load);
    predict_stages(p, &x, load, &out);
    out.heap_bytes = x.footprint.heap_bytes;
    out.memory_bytes = required_memory(&x);
    out.tokens_per_s = (double)ranks * (double)p->op->size(&x.problem) / out.total.time.ns * 1e9;
    return out;
}

/* Finds the largest number of ranks whose iteration takes less than twice the time of the smallest
 * world, as number and text. */
static void find_scale(struct prediction *p, uint32_t first)
{
    struct predict_report *report = &p->report;
    double base = NAN;
    uint32_t ranks = first, before = 0;
    const char *text = NULL;

    for (; ranks <= (p->has_link ? RANKS_MOST : p->per_node) && text == NULL; ranks *= 2) {
        const struct predict_world one = predict_world(p, ranks);
        double ns = one.why == NULL ? one.total.time.ns : NAN;

        base = isnan(base) ? ns : base;
        if (one.why != NULL)
            text = arena_printf(p->arena,
                                before != 0 ? "it scales to %u ranks: %u are %.200s"
                                            : "%u ranks, or %u, are %.200s",
                                before != 0 ? before : ranks, ranks, one.why);
        else if (ns > 2 * base)
            text = arena_printf(p->arena,
                                "it scales to %u rank%s: %u take %.1f times as long as %u, by %s",
                                before, before > 1 ? "s" : "", ranks, ns / base, first,
                                predict_bound_name(one.total.time.bound));
        else
            before = ranks;
    }
    for (uint32_t i = 0; i < report->n_worlds; i++)
        if (report->world[i].why == NULL)
            report->world[i].times = report->world[i].total.time.ns / base;
    report->scales_to = before;
    report->scales_from = first;
    report->scales = text != NULL  ? text
                     : p->has_link ? "it scales to all predicted numbers of ranks"
                                   : "--link adds other nodes";
}

/* ---- the report ---- */

/* Adds rows of predicted and measured time: the phases, then the total. */
static void add_comparison(struct prediction *p, const struct predict_world *world,
                           const double *measured_ns)
{
    for (uint32_t k = 0; k <= p->op->n_phases; k++) {
        const struct predict_stage *stage = k < p->op->n_phases ? &world->stage[k] : &world->total;

        p->report.check[p->report.n_checks++] = (struct predict_check){
            stage->name, stage->time.ns, round(measured_ns[k]), stage->time.ns / measured_ns[k]};
    }
}

/* --check: compares the predicted world with its measurement on this machine. */
static void compare_with_check(struct prediction *p, const struct predict_world *world)
{
    const struct measured *m = p->run;
    double ns[OP_PHASES + 1] = {0};

    while (m < p->run + p->n && (m->ranks != p->ranks || !prediction_is_whole(p, m) ||
                                 (p->x->problem.tokens.kind == TOKENS_LIST && !m->checks)))
        m++;
    if (m == p->run + p->n)
        return;
    for (uint32_t k = 0; k < p->op->n_phases; k++)
        ns[p->op->n_phases] += ns[k] = m->point[k].ns;
    add_comparison(p, world, ns);
}

/* --measured: compares the predicted world with results of the same algorithm and size. */
static enum epa_status compare_with_results(struct prediction *p, const struct predict_world *world)
{
    struct results results = {0};
    bool found = false;

    if (results_read(p->cli->predict.measured, &results, &p->err) != EPA_OK)
        return p->err.status;
    for (uint32_t i = 0; i < results.n && !found; i++) {
        const struct results_run *run = &results.run[i];
        const char *algorithm = results_value(run, "algorithm", "name");
        double ns[OP_PHASES + 1];

        found = run->ok && run->ranks == p->ranks &&
                results_key_number(run, p->op->size_key) == (double)p->op->size(&p->x->problem) &&
                algorithm != NULL && strcmp(algorithm, p->x->algorithm.plugin->name) == 0;
        for (uint32_t k = 0; k < p->op->n_phases; k++)
            ns[k] = prediction_phase_ns(run->stage, run->n_stages, p->op->phase[k].name);
        ns[p->op->n_phases] =
            run->n_stages > 0 ? run->stage[run->n_stages - 1].figures.ns.median : NAN;
        if (found)
            add_comparison(p, world, ns);
    }
    if (!found)
        epa_fail(&p->err, EPA_ERR_CONFIG,
                 "--measured %s: no successful run has %u ranks, %s %" PRIu64 " and %s",
                 p->cli->predict.measured, p->ranks, p->op->size_key, p->op->size(&p->x->problem),
                 p->x->algorithm.plugin->name);
    results_free(&results);
    return p->err.status;
}

static const char *measured_text(const struct prediction *p)
{
    struct text text = {0};
    const char *out;

    for (uint32_t i = 0; i < p->n_worlds; i++) {
        const struct measured *m = NULL;

        for (uint32_t k = 0; k < p->n && m == NULL; k++)
            m = p->run[k].ranks == p->world[i] ? &p->run[k] : NULL;
        text_add(&text, "%s%u ranks %.1f us%s", i > 0 ? ", " : "", m->ranks, m->total_ns / 1e3,
                 m->point[0].share > 1
                     ? arena_printf(p->arena, " (%g to a core)", m->point[0].share)
                     : "");
    }
    text_add(&text, "; the fastest of %d rounds", ROUNDS);
    out = arena_strndup(p->arena, text.data, text.bytes);
    text_free(&text);
    return out;
}

enum epa_status prediction_make(struct prediction *p)
{
    uint32_t first = p->per_node < p->low ? p->per_node : p->low, node;
    struct predict_report *report = &p->report;
    const struct predict_world *asked = NULL;
    double times;

    *report = (struct predict_report){
        .file = p->cli->arg[0],
        .sweep = p->cli->predict.sweep != NULL,
        .link = p->has_link ? &p->link : NULL,
        .world = arena_alloc(p->arena, 32 * sizeof(*report->world)), /* twice the ranks each */
        .note = p->note};
    for (uint32_t ranks = p->low; ranks <= p->ranks; ranks *= 2) {
        struct predict_world *world = &report->world[report->n_worlds++];

        *world = predict_world(p, ranks);
        asked = world->why == NULL ? world : asked;
    }
    find_scale(p, first);
    node = p->ranks < p->per_node ? p->ranks : p->per_node;
    times = fmax(1, node * prediction_threads(p->x) / p->cores);
    if (times > 1)
        p->note[p->n_notes++] = arena_printf(p->arena,
                                             "%u ranks of a node share %u cores: local work takes "
                                             "%g times as long; --cores sets the cores of a node",
                                             node, p->cores, times);
    if (asked != NULL && asked->planned_ranks < asked->ranks)
        p->note[p->n_notes++] =
            arena_printf(p->arena,
                         "%s supports up to %u ranks: memory and messages of larger worlds are "
                         "extrapolated from its plan for these",
                         p->x->algorithm.plugin->name, asked->planned_ranks);
    if (p->n_worlds < 2)
        p->note[p->n_notes++] = "only one world could be measured: the cost of a peer is not known "
                                "and is taken as 0";
    report->n_notes = p->n_notes;
    if (p->cli->predict.check && asked != NULL)
        compare_with_check(p, asked);
    if (p->cli->predict.measured != NULL && asked != NULL)
        (void)compare_with_results(p, asked);
    report->measured = measured_text(p);
    report->error_part = expm1(p->error);
    report->error =
        arena_printf(p->arena,
                     "%.0f %%: largest error of the predictions for the measured worlds, by all "
                     "costs and with one world left out, and largest difference of rounds%s",
                     100 * report->error_part,
                     p->ranks > p->per_node ? "; the values of --link are not checked" : "");
    return p->err.status;
}
