/* Predicts worlds from fitted costs and from the traffic of their routing, and makes the document of
 * `epa2a predict`. */
#include "cli/predict_world.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cli/predict.h"
#include "cli/predict_points.h"
#include "config/diag.h"
#include "experiment/points.h"
#include "experiment/operation.h"
#include "report/origin_json.h"
#include "report/predict.h"

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

static json_t *time_json(const char *name, const struct predict_time *t, double low, double high,
                         double bytes)
{
    return json_object_of(
        "name", json_text(name), "ns", json_whole(t->ns), "low_ns", json_whole(low), "high_ns",
        json_whole(high), "local_ns", json_whole(t->local_ns), "bytes_ns", json_whole(t->bytes_ns),
        "messages_ns", json_whole(t->messages_ns), "latency_ns", json_whole(t->latency_ns),
        "link_bytes", json_whole(bytes), "bound", json_text(predict_bound_name(t->bound)), NULL);
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
static json_t *predict_stages(struct prediction *p, const struct experiment *x,
                              const struct op_load *load, json_t **total)
{
    const struct predict_link *link = x->problem.ranks_per_node != 0 ? &p->link : NULL;
    struct predict_time sum = {0};
    double low = 0, high = 0, bytes = 0, longest = 0, wide = exp(p->error);
    json_t *stages = json_array();

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
        json_array_append_new(stages,
                              time_json(p->op->phase[phase].name, &t, from, to, link_bytes));
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
    *total = time_json("total", &sum, low, high, bytes);
    return stages;
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

/* Returns the prediction of a world, or the reason "why" it is not possible. */
static json_t *predict_world(struct prediction *p, uint32_t ranks)
{
    uint32_t node = ranks < p->per_node ? ranks : p->per_node;
    json_t *out =
        json_object_of("ranks", json_count(ranks), "nodes", json_count(ranks / node), NULL);
    struct op_load load[OP_PHASES];
    struct experiment x;
    json_t *stages, *total;
    uint32_t planned;
    const char *why = prediction_resize(p, ranks, &x, &planned);

    if (why != NULL) {
        json_object_set_new(out, "why", json_text(why));
    } else {
        prediction_count(&x, p->source, load);
        stages = predict_stages(p, &x, load, &total);
        json_object_set_new(out, "planned_ranks", json_count(planned));
        json_object_set_new(out, "heap_bytes", json_count(x.footprint.heap_bytes));
        json_object_set_new(out, "memory_bytes", json_count(required_memory(&x)));
        json_object_set_new(out, "tokens_per_s",
                            json_number((double)ranks * (double)p->op->size(&x.problem) /
                                        json_number_at(total, "ns") * 1e9));
        json_object_set_new(out, "stages", stages);
        json_object_set_new(out, "total", total);
    }
    return out;
}

/* Finds the largest number of ranks whose iteration takes less than twice the time of the smallest
 * world, as number and text. */
static json_t *find_scale(struct prediction *p, uint32_t first, json_t *worlds)
{
    double base = NAN, ns = NAN;
    uint32_t ranks = first, before = 0;
    const char *text = NULL;

    for (; ranks <= (p->has_link ? RANKS_MOST : p->per_node) && text == NULL; ranks *= 2) {
        json_t *one = predict_world(p, ranks);

        ns = json_number_at(one, "total.ns");
        base = isnan(base) ? ns : base;
        if (*json_text_at(one, "why") != '\0')
            text = arena_printf(p->arena,
                                before != 0 ? "it scales to %u ranks: %u are %.200s"
                                            : "%u ranks, or %u, are %.200s",
                                before != 0 ? before : ranks, ranks, json_text_at(one, "why"));
        else if (ns > 2 * base)
            text = arena_printf(
                p->arena, "it scales to %u rank%s: %u take %.1f times as long as %u, by %s", before,
                before > 1 ? "s" : "", ranks, ns / base, first, json_text_at(one, "total.bound"));
        else
            before = ranks;
        json_decref(one);
    }
    for (struct json_walk world = {worlds}; json_next(&world);)
        json_object_set_new(world.value, "times",
                            json_number(json_number_at(world.value, "total.ns") / base));
    return json_object_of("ranks", json_count(before), "first", json_count(first), "text",
                          json_text(text != NULL  ? text
                                    : p->has_link ? "it scales to all predicted numbers of ranks"
                                                  : "--link adds other nodes"),
                          NULL);
}

/* ---- the document ---- */

static json_t *measured_json(const struct prediction *p)
{
    json_t *out = json_array();

    for (uint32_t i = 0; i < p->n; i++) {
        const struct measured *m = &p->run[i];
        json_t *stages = json_array();

        for (uint32_t k = 0; k < p->op->n_phases; k++)
            json_array_append_new(
                stages, json_object_of("name", json_text(p->op->phase[k].name), "measured_ns",
                                       json_whole(m->point[k].ns), "predicted_ns",
                                       json_whole(local_ns(p, 0, k, &m->point[k])), "rows",
                                       json_number(m->load[k].rows), "choices",
                                       json_number(m->load[k].entries), NULL));
        json_array_append_new(out,
                              json_object_of("ranks", json_count(m->ranks), "size",
                                             json_count(m->tokens), "topk", json_count(m->copies),
                                             "share", json_number(m->point[0].share), "fitted",
                                             json_boolean(!m->checks), "stages", stages, NULL));
    }
    return out;
}

static json_t *costs_json(const struct prediction *p)
{
    static const char *const key[PREDICT_TERMS] = {
        [PREDICT_CALL] = "call_ns",
        [PREDICT_PEER] = "peer_ns",
        [PREDICT_ROW] = "row_ns",
        [PREDICT_CHOICE] = "choice_ns",
        [PREDICT_FEW_ROW] = "few_row_ns",
        [PREDICT_SHARED_CALL] = "shared_call_ns",
        [PREDICT_SHARED_ROW] = "shared_row_ns",
    };
    json_t *out = json_array();

    for (uint32_t k = 0; k < p->op->n_phases; k++) {
        json_t *costs = json_object_of("name", json_text(p->op->phase[k].name), NULL);

        for (uint32_t t = 0; t < PREDICT_TERMS; t++)
            json_object_set_new(costs, key[t], json_number(p->cost[0][k][t]));
        json_array_append_new(out, costs);
    }
    return out;
}

/* Adds rows of predicted and measured time: the phases, then the total. */
static void add_comparison(const struct prediction *p, json_t *out, const json_t *world,
                           const double *measured_ns)
{
    json_auto_t *rows = json_copy(json_object_get(world, "stages"));

    json_array_append(rows, json_object_get(world, "total"));
    for (uint32_t k = 0; k <= p->op->n_phases; k++) {
        const json_t *row = json_array_get(rows, k);
        double ns = json_number_at(row, "ns");

        json_array_append_new(out, json_object_of("name", json_text(json_text_at(row, "name")),
                                                  "predicted_ns", json_whole(ns), "measured_ns",
                                                  json_whole(measured_ns[k]), "ratio",
                                                  json_number(ns / measured_ns[k]), NULL));
    }
}

/* --check: compares the predicted world with its measurement on this machine. */
static void compare_with_check(const struct prediction *p, const json_t *world, json_t *out)
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
    add_comparison(p, out, world, ns);
}

/* --measured: compares the predicted world with results of the same algorithm and size. */
static enum epa_status compare_with_results(struct prediction *p, const json_t *world, json_t *out)
{
    struct results results = {0};
    bool found = false;

    if (results_read(p->cli->predict.measured, &results, &p->err) != EPA_OK)
        return p->err.status;
    for (uint32_t i = 0; i < results.n && !found; i++) {
        const struct results_run *run = &results.run[i];
        const json_t *x = json_object_get(run->json, "experiment");
        double ns[OP_PHASES + 1];

        found = run->ok && json_number_at(run->json, "world.size") == p->ranks &&
                json_number_at(x, p->op->size_key) == (double)p->op->size(&p->x->problem) &&
                strcmp(json_text_at(x, "algorithm.name"), p->x->algorithm.plugin->name) == 0;
        for (uint32_t k = 0; k < p->op->n_phases; k++)
            ns[k] = prediction_phase_ns(run->stage, run->n_stages, p->op->phase[k].name);
        ns[p->op->n_phases] =
            run->n_stages > 0 ? run->stage[run->n_stages - 1].figures.ns.median : NAN;
        if (found)
            add_comparison(p, out, world, ns);
    }
    if (!found)
        epa_fail(&p->err, EPA_ERR_CONFIG,
                 "--measured %s: no successful run has %u ranks, %s %" PRIu64 " and %s",
                 p->cli->predict.measured, p->ranks, p->op->size_key, p->op->size(&p->x->problem),
                 p->x->algorithm.plugin->name);
    results_free(&results);
    return p->err.status;
}

static json_t *notes_json(const struct prediction *p)
{
    json_t *out = json_array();

    for (uint32_t i = 0; i < p->n_notes; i++)
        json_array_append_new(out, json_text(p->note[i]));
    return out;
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
    json_t *worlds = json_array(), *check = json_array(), *link = json_null(), *scales,
           *asked = NULL;
    const char *text;
    double times;

    for (uint32_t ranks = p->low; ranks <= p->ranks; ranks *= 2) {
        json_t *world = predict_world(p, ranks);

        if (*json_text_at(world, "why") == '\0')
            asked = world;
        json_array_append_new(worlds, world);
    }
    scales = find_scale(p, first, worlds);
    node = p->ranks < p->per_node ? p->ranks : p->per_node;
    times = fmax(1, node * prediction_threads(p->x) / p->cores);
    if (times > 1)
        p->note[p->n_notes++] = arena_printf(p->arena,
                                             "%u ranks of a node share %u cores: local work takes "
                                             "%g times as long; --cores sets the cores of a node",
                                             node, p->cores, times);
    if (json_number_at(asked, "planned_ranks") < json_number_at(asked, "ranks"))
        p->note[p->n_notes++] =
            arena_printf(p->arena,
                         "%s supports up to %.0f ranks: memory and messages of larger worlds are "
                         "extrapolated from its plan for these",
                         p->x->algorithm.plugin->name, json_number_at(asked, "planned_ranks"));
    if (p->n_worlds < 2)
        p->note[p->n_notes++] = "only one world could be measured: the cost of a peer is not known "
                                "and is taken as 0";
    if (p->cli->predict.check)
        compare_with_check(p, asked, check);
    if (p->cli->predict.measured != NULL)
        (void)compare_with_results(p, asked, check);
    if (p->has_link)
        link = json_object_of("rate", json_number(p->link.bytes_per_ns), "latency_ns",
                              json_whole(p->link.latency_ns), "message_ns",
                              json_whole(p->link.message_ns), "of",
                              json_text(p->link.node ? "node" : "rank"), NULL);
    text = arena_printf(p->arena,
                        "%.0f %%: largest error of the predictions for the measured worlds, by all "
                        "costs and with one world left out, and largest difference of rounds%s",
                        100 * expm1(p->error),
                        p->ranks > p->per_node ? "; the values of --link are not checked" : "");
    p->document = json_object_of(
        "schema", json_integer(1), "program", json_text("epa2a"), "file", json_text(p->cli->arg[0]),
        "sweep", json_boolean(p->cli->predict.sweep != NULL), "link", link, "cores",
        json_count(p->cores), "signal_ns", json_whole(p->signal_ns), "worlds", worlds, "scales",
        scales, "measured", measured_json(p), "measured_text", json_text(measured_text(p)), "costs",
        costs_json(p), "notes", notes_json(p), "error",
        json_object_of("part", json_number(expm1(p->error)), "text", json_text(text), NULL),
        "check", json_array_size(check) > 0 ? json_incref(check) : json_null(), "machine",
        machine_json(&p->machine), NULL);
    json_decref(check);
    return p->err.status;
}
