/* bench by graphs: what is timed is one launch of many calls, as a program that serves a
 * model would launch them. Figures have graphs of their own: pairs of dispatch and combine, with
 * real experts between them, combines alone, dispatches alone, and real experts alone.
 *
 * An algorithm alternates between two buffer sets and chooses one when a call is recorded.
 * So that every launch begins with the set after the one that ended the last, whatever was
 * launched before, each figure is launched an even number of calls at a time: the calls of
 * a warm graph are even, and cold graphs, of one call each, take turns in twos. Blocks come
 * in the order in which graphs were recorded, pairs, experts, combines, dispatches: experts and
 * combines repeat the last of the pairs before them. An algorithm with one stage of kind WHOLE has
 * one figure, of whole iterations.
 *
 * Synthetic experts do not run in graphs: iterations before have left expert outputs in both
 * buffer sets. */
#include "session/rank.h"

#include <stdlib.h>

#include "base/stats.h"

enum { BLOCK = 8, TURNS = 2, KEPT = 2 };

struct figure {
    struct epa_graph *graph[TURNS]; /* launched in turn; all NULL: not measured */
    uint32_t graphs, calls;         /* calls of each stage in one graph */
    uint32_t turn;
    uint32_t stage; /* where a rank is that launches it */
};

struct graphs {
    struct rank *rank;
    struct figure figure[FIGURES];
    /* Of the pairs: where their last dispatches deliver, by slot. */
    struct epa_problem problem[KEPT];
};

static const struct bench_options *options_of(const struct graphs *g)
{
    return &experiment_of(g->rank)->bench;
}

static bool is_whole(const struct graphs *g)
{
    return last_kind(g->rank) == EPA_STAGE_WHOLE;
}

/* Of whole iterations: pairs of a dispatch and a combine, or the one stage. */
static struct figure *iterations_of(struct graphs *g)
{
    return &g->figure[is_whole(g) ? FIGURE_WHOLE : FIGURE_PAIR];
}

static bool is_cold(const struct graphs *g)
{
    return options_of(g)->cache == CACHE_COLD;
}

static bool is_isolated(const struct graphs *g)
{
    return options_of(g)->barrier;
}

/* ---- recording ---- */

/* Stages `first` to `last - 1`. */
static enum epa_status queue_stages(struct graphs *g, uint32_t slot, uint32_t first, uint32_t last,
                                    struct epa_error *err)
{
    struct rank *r = g->rank;
    enum epa_status status = EPA_OK;

    for (uint32_t i = first; i < last && status == EPA_OK; i++)
        status = rank_stage(r, i, slot, err);
    return status;
}

/* Call `call` of a figure. Expert outputs are where experts would have put them. */
static enum epa_status run_call(struct graphs *g, enum session_figure figure, uint32_t call,
                                struct epa_error *err)
{
    struct rank *r = g->rank;
    const struct figure *pair = iterations_of(g);
    uint32_t slot = call % options_of(g)->input_sets, first = r->first_stages;
    uint32_t last = (pair->graphs * pair->calls - 1) % options_of(g)->input_sets;
    uint32_t n = r->n_stages;
    enum epa_status status;

    if (!is_whole(g) && figure == FIGURE_EXPERTS)
        return queue_stages(g, last, first, first + 1, err);
    if (!is_whole(g) && figure == FIGURE_COMBINE)
        return queue_stages(g, last, first + is_kind(r, first, EPA_STAGE_EXPERTS), n, err);
    status = queue_stages(g, slot, 0, first, err);
    if (status != EPA_OK || is_whole(g))
        return status;
    if (figure == FIGURE_DISPATCH) {
        status = r->algorithm->discard(r->algorithm, problem_of(r, slot));
        if (status != EPA_OK && status != EPA_ERR_ABORTED)
            r->algorithm->explain(r->algorithm, err);
        return status;
    }
    r->op->operation->between_in_graph(r->op, slot);
    return queue_stages(g, slot, first, n, err);
}

static enum epa_status record_graph(struct graphs *g, enum session_figure which, uint32_t turn,
                                    struct epa_error *err)
{
    struct epa_backend *backend = g->rank->backend;
    struct figure *figure = &g->figure[which];
    enum epa_status ended,
        status = rank_explain(g->rank, backend->ops->capture_begin(backend), err);

    if (status != EPA_OK)
        return status;
    for (uint32_t i = 0; i < figure->calls && status == EPA_OK; i++)
        status = run_call(g, which, turn * figure->calls + i, err);
    /* Ended in any case: nothing else can be queued before. */
    ended = backend->ops->capture_end(backend, &figure->graph[turn]);
    return status != EPA_OK ? status : rank_explain(g->rank, ended, err);
}

static enum epa_status record_part_graph(struct graphs *g, uint32_t part, struct figure *figure,
                                         uint32_t turn, struct epa_error *err)
{
    struct rank *r = g->rank;
    struct epa_backend *backend = r->backend;
    enum epa_status ended, status = rank_explain(r, backend->ops->capture_begin(backend), err);

    if (status != EPA_OK)
        return status;
    for (uint32_t i = 0; i < figure->calls && status == EPA_OK; i++) {
        uint32_t slot = (turn * figure->calls + i) % options_of(g)->input_sets;

        status = r->algorithm->parts[part].run(r->algorithm, problem_of(r, slot));
        if (status != EPA_OK && status != EPA_ERR_ABORTED)
            r->algorithm->explain(r->algorithm, err);
    }
    ended = backend->ops->capture_end(backend, &figure->graph[turn]);
    return status != EPA_OK ? status : rank_explain(r, ended, err);
}

static enum epa_status record_figure(struct graphs *g, enum session_figure which, uint32_t stage,
                                     struct epa_error *err)
{
    struct figure *figure = &g->figure[which];
    enum epa_status status = EPA_OK;

    figure->stage = stage;
    figure->calls = session_calls(g->rank->session);
    figure->graphs = is_cold(g) ? TURNS : 1;
    rank_at_stage(g->rank, stage);
    for (uint32_t i = 0; i < figure->graphs && status == EPA_OK; i++)
        status = record_graph(g, which, i, err);
    return status;
}

static enum epa_status record_all(struct graphs *g, struct epa_error *err)
{
    struct rank *r = g->rank;
    uint32_t last = r->n_stages - 1;
    bool whole = is_whole(g);
    enum epa_status status = whole ? record_figure(g, FIGURE_WHOLE, last, err)
                                   : record_figure(g, FIGURE_PAIR, SESSION_PAIR, err);

    for (uint32_t i = 0; i < KEPT && i < options_of(g)->input_sets; i++)
        g->problem[i] = *problem_of(r, i);
    if (status == EPA_OK && !whole && is_kind(r, r->first_stages, EPA_STAGE_EXPERTS))
        status = record_figure(g, FIGURE_EXPERTS, r->first_stages, err);
    if (status == EPA_OK && !whole && r->algorithm->combines_again)
        status = record_figure(g, FIGURE_COMBINE, last, err);
    if (status == EPA_OK && !whole && r->algorithm->discard != NULL)
        status = record_figure(g, FIGURE_DISPATCH, r->first_stages - 1, err);
    if (!whole && r->boot->world.rank == 0) {
        r->session->notes->not_alone[FIGURE_COMBINE] = !r->algorithm->combines_again;
        r->session->notes->not_alone[FIGURE_DISPATCH] = r->algorithm->discard == NULL;
    }
    return status;
}

void rank_graphs_destroy(struct rank *r)
{
    struct graphs *g = r->graphs;
    struct epa_backend *backend = r->backend;

    if (g == NULL)
        return;
    for (uint32_t i = 0; i < FIGURES; i++)
        for (uint32_t turn = 0; turn < TURNS; turn++)
            if (g->figure[i].graph[turn] != NULL)
                backend->ops->graph_destroy(backend, g->figure[i].graph[turn]);
    free(g);
}

/* ---- launching ---- */

static enum epa_status launch(struct graphs *g, struct figure *f, struct epa_error *err)
{
    struct epa_backend *backend = g->rank->backend;
    struct epa_graph *graph = f->graph[f->turn++ % f->graphs];

    return rank_explain(g->rank, backend->ops->graph_launch(backend, graph), err);
}

/* Sample k of a block, between marks 2k and 2k + 1. The launch before it, which is not
 * timed, keeps the device busy while the host queues what follows. */
static enum epa_status launch_sample(struct graphs *g, struct figure *f, uint32_t k,
                                     struct epa_error *err)
{
    struct rank *r = g->rank;
    struct epa_backend *backend = r->backend;
    enum epa_status status = EPA_OK;

    if (is_isolated(g))
        status = rank_barrier(r, err);
    if (status == EPA_OK && (is_isolated(g) || k == 0))
        status = launch(g, f, err);
    if (status == EPA_OK && is_cold(g))
        status = rank_explain(r, backend->ops->flush_cache(backend), err);
    if (status == EPA_OK)
        status = rank_explain(r, backend->ops->mark(backend, 2 * k), err);
    if (status == EPA_OK)
        status = launch(g, f, err);
    if (status == EPA_OK)
        status = rank_explain(r, backend->ops->mark(backend, 2 * k + 1), err);
    if (status == EPA_OK && is_isolated(g))
        status = rank_sync(r, err);
    return status;
}

static enum epa_status launch_block(struct graphs *g, struct figure *f, uint32_t n,
                                    struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    rank_at_stage(g->rank, f->stage);
    for (uint32_t k = 0; k < n && rank_goes_on(g->rank, &status); k++)
        status = launch_sample(g, f, k, err);
    while (status == EPA_OK && f->turn % f->graphs != 0)
        status = launch(g, f, err);
    if (status == EPA_OK)
        status = rank_sync(g->rank, err);
    if (status == EPA_OK)
        rank_at_stage(g->rank, SESSION_ELSEWHERE);
    return status;
}

/* Times of a block's samples; `out` may be NULL: that was warm-up. */
static enum epa_status keep_block(struct graphs *g, const struct figure *f, uint32_t n, double *out,
                                  struct epa_error *err)
{
    struct rank *r = g->rank;

    for (uint32_t k = 0; k < n && out != NULL; k++) {
        double ns;
        enum epa_status status =
            rank_explain(r, r->backend->ops->elapsed(r->backend, 2 * k, 2 * k + 1, &ns), err);

        if (status != EPA_OK)
            return status;
        out[k] = ns / f->calls;
    }
    return EPA_OK;
}

/* `n` samples of each figure; the first of them is sample `first`, or warm-up. */
static enum epa_status measure_block(struct graphs *g, uint32_t n, bool warm_up, uint64_t first,
                                     struct epa_error *err)
{
    static const enum session_figure order[FIGURES] = {FIGURE_PAIR, FIGURE_EXPERTS, FIGURE_COMBINE,
                                                       FIGURE_DISPATCH};
    const struct session *s = g->rank->session;
    uint32_t me = g->rank->boot->world.rank;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < FIGURES && status == EPA_OK; i++) {
        struct figure *f = &g->figure[order[i]];
        double *ns = session_times(s, me, (uint32_t)order[i]) + first;

        if (f->graphs == 0)
            continue;
        status = launch_block(g, f, n, err);
        if (status == EPA_OK)
            status = keep_block(g, f, n, warm_up ? NULL : ns, err);
    }
    return status;
}

static enum epa_status measure(struct graphs *g, struct epa_error *err)
{
    struct rank *r = g->rank;
    const struct session *s = r->session;
    uint64_t all = (uint64_t)s->warmup + s->iterations;
    enum epa_status status = EPA_OK;
    bool ends = false;

    for (uint64_t i = 0; i < all && !ends && rank_goes_on(r, &status);) {
        bool warm_up = i < s->warmup;
        uint64_t end = warm_up ? s->warmup : all, first = warm_up ? 0 : i - s->warmup;
        uint32_t n = end - i < BLOCK ? (uint32_t)(end - i) : BLOCK;

        rank_at(r, i, SESSION_ELSEWHERE);
        status = measure_block(g, n, warm_up, first, err);
        i += n;
        if (status == EPA_OK && !warm_up)
            rank_keep_samples(r, first + n);
        if (status == EPA_OK)
            status = rank_stop_poll(r, warm_up ? 0 : first + n, &ends, err);
    }
    if (rank_goes_on(r, &status))
        rank_describe_device(r);
    return status;
}

/* ---- before and after ---- */

/* Iterations with experts, so that answers stand in each buffer set: to what graphs send
 * through it, where can_check() says so. An even number, as graphs begin with the first set.
 */
static enum epa_status prepare(struct graphs *g, struct epa_error *err)
{
    struct rank *r = g->rank;
    uint32_t inputs = options_of(g)->input_sets, n = (inputs + 1) / 2 * 2;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < inputs && status == EPA_OK; i++)
        status = rank_inputs(r, i, i, err);
    for (uint32_t i = 0; i < 2 * n && rank_goes_on(r, &status); i++) {
        rank_at(r, i, SESSION_ELSEWHERE);
        status = rank_iteration(r, i % inputs, true, false, err);
        if (status == EPA_OK && i == 0)
            status = rank_total_ns(r, &r->shared->first_ns, err);
    }
    return status;
}

/* Whether the expert outputs that stand in the buffer sets are those to what graphs send. */
static bool can_check(struct graphs *g)
{
    uint32_t open = g->rank->session->footprint.in_flight, inputs = options_of(g)->input_sets;
    struct session_notes *notes = g->rank->session->notes;

    if (!options_of(g)->check)
        return false;
    if (inputs <= open && inputs <= KEPT)
        return true;
    if (g->rank->boot->world.rank == 0)
        snprintf(notes->unchecked, sizeof(notes->unchecked),
                 "bench.input_sets is %u, and expert outputs of %u are left in place "
                 "between graphs; set it to %u or less",
                 inputs, open, open);
    return false;
}

static enum epa_status check_slot(struct graphs *g, uint32_t slot, struct epa_error *err)
{
    struct rank *r = g->rank;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < r->n_stages && status == EPA_OK; i++)
        status = rank_check(r, r->stage[i].kind, slot, err);
    return status;
}

/* Launches whole iterations once more over outputs that were spoilt, and compares what their
 * last calls left. */
static enum epa_status check(struct graphs *g, struct epa_error *err)
{
    struct rank *r = g->rank;
    struct figure *f = iterations_of(g);
    uint32_t inputs = options_of(g)->input_sets;
    enum epa_status status = EPA_OK;

    if (!can_check(g))
        return EPA_OK;
    for (uint32_t i = 0; i < inputs; i++) {
        status = rank_make(r, i, i, err);
        if (status != EPA_OK)
            return status;
        *problem_of(r, i) = g->problem[i];
    }
    rank_at_stage(r, f->stage);
    for (uint32_t i = 0; i < f->graphs && status == EPA_OK; i++)
        status = launch(g, f, err);
    if (status == EPA_OK)
        status = rank_sync(r, err);
    rank_at_stage(r, status == EPA_OK ? (uint32_t)SESSION_ELSEWHERE : f->stage);
    for (uint32_t i = 0; i < inputs && status == EPA_OK; i++)
        status = check_slot(g, i, err);
    if (status == EPA_OK)
        r->shared->checked++;
    return status;
}

/* ---- parts of a stage, alone ---- */

/* In graphs as the whole: launched one by one a part would begin on a device that has rested,
 * and would take the host's time, too. */
static enum epa_status time_part(struct graphs *g, uint32_t part, struct epa_error *err)
{
    struct rank *r = g->rank;
    uint32_t n = r->session->iterations < BLOCK ? r->session->iterations : BLOCK;
    struct figure f = {.calls = session_calls(r->session),
                       .graphs = is_cold(g) ? TURNS : 1,
                       .stage = r->n_stages - 1};
    enum epa_status status = EPA_OK;
    double ns[BLOCK] = {0};

    for (uint32_t i = 0; i < f.graphs && status == EPA_OK; i++)
        status = record_part_graph(g, part, &f, i, err);
    if (status == EPA_OK)
        status = launch_block(g, &f, n < 2 ? n : 2, err); /* warm-up */
    if (status == EPA_OK)
        status = launch_block(g, &f, n, err);
    if (status == EPA_OK && rank_goes_on(r, &status)) {
        status = keep_block(g, &f, n, ns, err);
        stats_sort(ns, n);
        r->shared->part_ns[part] = stats_percentile(ns, n, 500);
    }
    for (uint32_t i = 0; i < f.graphs; i++)
        if (f.graph[i] != NULL)
            r->backend->ops->graph_destroy(r->backend, f.graph[i]);
    return status;
}

enum epa_status rank_bench_graph(struct rank *r, struct epa_error *err)
{
    struct graphs *g = calloc(1, sizeof(*g));
    enum epa_status status;

    if (g == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for graphs");
    r->graphs = g;
    g->rank = r;
    status = prepare(g, err);
    if (status == EPA_OK)
        status = record_all(g, err);
    if (status == EPA_OK)
        status = measure(g, err);
    rank_trace_pause(r);
    if (status == EPA_OK)
        status = check(g, err);
    for (uint32_t i = 0;
         i < r->algorithm->n_parts && r->session->iterations > 0 && status == EPA_OK; i++)
        status = time_part(g, i, err);
    return status;
}
