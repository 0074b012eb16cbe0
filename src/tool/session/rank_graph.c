/* bench with graphs: a sample is one launch of many calls, as in a program that serves a model. Each
 * figure has its own graphs: pairs of dispatch and combine with real experts between them, combines
 * alone, dispatches alone, and real experts alone.
 *
 * An algorithm alternates between two buffer sets and chooses the set during the recording of a call.
 * Every launch must begin with the set that follows the last set of the previous launch. Therefore each
 * figure launches an even number of calls at a time: a warm graph has an even number of calls, and cold
 * graphs, of one call each, are launched in pairs. Blocks run in the order of recording: pairs,
 * experts, combines, dispatches. Experts and combines repeat the last pair before them. An algorithm
 * with one stage of kind WHOLE has one figure, the whole iteration.
 *
 * Graphs do not contain synthetic experts: iterations before the recording leave expert outputs in both
 * buffer sets.
 *
 * Another graph of pairs, whose kernels store time stamps, splits pairs: a dispatch lasts from the end of
 * the combine before it to its own end, and a combine from the end of its dispatch to its own end. It
 * is launched after each block of pairs. A graph of kernels without work gives the floor of
 * launches.
 *
 * With the public interface, graphs of whole iterations through the interface and graphs without it take
 * turns after the samples. */
#include "session/rank_graph.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/stats.h"
#include "session/rank_loop.h"
#include "session/rank_overhead.h"
#include "session/rank_stages.h"
#include "session/rank_status.h"
#include "session/rank_trace.h"

enum { BLOCK = 8, TURNS = 2, KEPT = 2 };

struct figure {
    struct epa_graph *graph[TURNS]; /* launched alternately; all NULL: not measured */
    uint32_t graphs, calls;         /* number of graphs; calls of each stage in one graph */
    uint32_t turn;                  /* number of launches */
    uint32_t stage;                 /* position that the rank publishes during a launch */
    const struct epa_stage *part;   /* part that the graph contains; NULL: stages */
};

struct graphs {
    struct rank *rank;
    struct figure figure[FIGURES];
    /* Problems of the pairs by slot: output addresses of the last dispatches. */
    struct epa_problem problem[KEPT];
    /* Pairs with time stamps, and means of their parts: [dispatch, combine][n_split]. */
    struct figure stamped;
    double *split[2];
    uint32_t n_split, room_split;
    struct graphs *direct; /* without the public interface; NULL: not measured */
};

static const struct bench_options *options_of(const struct graphs *g)
{
    return &experiment_of(g->rank)->bench;
}

static bool is_whole(const struct graphs *g)
{
    return last_kind(g->rank) == EPA_STAGE_WHOLE;
}

/* Returns the figure of whole iterations: pairs of dispatch and combine, or the WHOLE stage. */
static struct figure *iterations_of(struct graphs *g)
{
    return &g->figure[is_whole(g) ? FIGURE_WHOLE : FIGURE_PAIR];
}

static bool is_cold(const struct graphs *g)
{
    return options_of(g)->cache == CACHE_COLD;
}

/* ---- recording ---- */

static void queue_stages(struct rank *r, uint32_t slot, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i < last && rank_good(r); i++)
        rank_stage(r, i, slot);
}

/* Queues call number `call` of a figure. The buffers of expert outputs already contain outputs. */
static void run_call(struct graphs *g, const struct figure *figure, uint32_t call)
{
    struct rank *r = g->rank;
    const struct figure *pair = iterations_of(g);
    uint32_t inputs = options_of(g)->input_sets, first = r->first_stages, n = r->n_stages;
    uint32_t slot = call % inputs, last = (pair->graphs * pair->calls - 1) % inputs;

    if (figure->part != NULL) {
        rank_call(r, figure->part, slot);
    } else if (is_whole(g)) {
        queue_stages(r, slot, 0, first);
    } else if (figure == &g->figure[FIGURE_EXPERTS]) {
        queue_stages(r, last, first, first + 1);
    } else if (figure == &g->figure[FIGURE_COMBINE]) {
        queue_stages(r, last, first + is_kind(r, first, EPA_STAGE_EXPERTS), n);
    } else {
        queue_stages(r, slot, 0, first);
        if (!rank_good(r))
            return;
        if (figure == &g->figure[FIGURE_DISPATCH]) {
            rank_discard(r, slot);
            return;
        }
        r->op->operation->between_in_graph(r->op, slot);
        queue_stages(r, slot, first, n);
    }
}

static void record_figure(struct graphs *g, struct figure *figure, uint32_t stage)
{
    struct rank *r = g->rank;
    const struct epa_backend_ops *ops = r->comm.backend->ops;

    if (!rank_good(r))
        return;
    figure->stage = stage;
    figure->calls = session_calls(r->session);
    figure->graphs = is_cold(g) ? TURNS : 1;
    rank_at_stage(r, stage);
    for (uint32_t turn = 0; turn < figure->graphs && rank_good(r); turn++) {
        if (!rank_backend(r, ops->capture_begin(r->comm.backend)))
            return;
        for (uint32_t i = 0; i < figure->calls && rank_good(r); i++)
            run_call(g, figure, turn * figure->calls + i);
        /* Always ends the capture: the stream accepts no other work before. */
        if (rank_good(r))
            (void)rank_backend(r, ops->capture_end(r->comm.backend, &figure->graph[turn]));
        else
            (void)ops->capture_end(r->comm.backend, &figure->graph[turn]);
    }
}

/* Returns true if pairs consist of a dispatch and a combine, without work between them or caches that
 * are flushed. */
static bool can_split(const struct graphs *g)
{
    const struct rank *r = g->rank;

    return !is_whole(g) && !is_cold(g) && r->session->scope == BENCH_ALL &&
           r->ep.algorithm->ended != NULL && !is_kind(r, r->first_stages, EPA_STAGE_EXPERTS) &&
           session_calls(r->session) > 1;
}

/* Records pairs with time stamps. */
static void record_stamped(struct graphs *g)
{
    struct epa_algorithm *a = g->rank->ep.algorithm;

    if (!can_split(g))
        return;
    a->keeps_ends = true;
    record_figure(g, &g->stamped, SESSION_PAIR);
    a->keeps_ends = false;
}

static void record_all(struct graphs *g)
{
    struct rank *r = g->rank;
    const struct epa_algorithm *a = r->ep.algorithm;
    uint32_t first = r->first_stages, last = r->n_stages - 1;
    bool whole = is_whole(g), stages = r->session->scope != BENCH_TOTAL;

    record_figure(g, iterations_of(g), whole ? last : (uint32_t)SESSION_PAIR);
    record_stamped(g);
    for (uint32_t i = 0; i < KEPT && i < options_of(g)->input_sets; i++)
        g->problem[i] = *problem_of(r, i);
    if (whole)
        return;
    if (stages && is_kind(r, first, EPA_STAGE_EXPERTS))
        record_figure(g, &g->figure[FIGURE_EXPERTS], first);
    if (stages && a->combines_again)
        record_figure(g, &g->figure[FIGURE_COMBINE], last);
    if (stages && a->discard != NULL)
        record_figure(g, &g->figure[FIGURE_DISPATCH], first - 1);
    if (r->comm.boot->world.rank != 0)
        return;
    r->session->notes->not_alone[FIGURE_EXPERTS] = !stages;
    r->session->notes->not_alone[FIGURE_COMBINE] = !stages || !a->combines_again;
    r->session->notes->not_alone[FIGURE_DISPATCH] = !stages || a->discard == NULL;
}

static void destroy_figure(const struct rank *r, const struct figure *figure)
{
    for (uint32_t turn = 0; turn < TURNS; turn++)
        if (figure->graph[turn] != NULL)
            r->comm.backend->ops->graph_destroy(r->comm.backend, figure->graph[turn]);
}

static void destroy_graphs(const struct rank *r, struct graphs *g)
{
    if (g == NULL)
        return;
    for (uint32_t i = 0; i < FIGURES; i++)
        destroy_figure(r, &g->figure[i]);
    destroy_figure(r, &g->stamped);
    free(g->split[0]);
    free(g->split[1]);
    free(g);
}

void rank_graphs_destroy(struct rank *r)
{
    if (r->graphs != NULL)
        destroy_graphs(r, r->graphs->direct);
    destroy_graphs(r, r->graphs);
    r->graphs = NULL;
}

/* ---- launching ---- */

static void launch_graph(struct graphs *g, struct figure *f)
{
    struct epa_backend *backend = g->rank->comm.backend;

    if (rank_good(g->rank))
        (void)rank_backend(g->rank,
                           backend->ops->graph_launch(backend, f->graph[f->turn++ % f->graphs]));
}

/* Takes `n` samples of a figure, sample k between marks 2k and 2k + 1; `out` NULL: warm-up. An untimed
 * launch before a sample keeps the device busy while the host queues the sample. */
static void launch_block(struct graphs *g, struct figure *f, uint32_t n, double *out)
{
    struct rank *r = g->rank;
    bool isolated = options_of(g)->barrier;

    rank_at_stage(r, f->stage);
    for (uint32_t k = 0; k < n && rank_goes_on(r); k++) {
        if (isolated)
            rank_barrier(r);
        if (isolated || k == 0)
            launch_graph(g, f);
        if (is_cold(g))
            rank_flush(r);
        rank_mark(r, 2 * k);
        launch_graph(g, f);
        rank_mark(r, 2 * k + 1);
        if (isolated)
            rank_sync(r);
    }
    while (rank_good(r) && f->turn % f->graphs != 0)
        launch_graph(g, f);
    rank_sync(r);
    if (rank_good(r))
        rank_at_stage(r, SESSION_ELSEWHERE);
    for (uint32_t k = 0; k < n && out != NULL && rank_good(r); k++)
        out[k] = rank_elapsed(r, 2 * k, 2 * k + 1) / f->calls;
}

/* ---- parts of pairs ---- */

static void keep_split(struct graphs *g, double dispatch_ns, double combine_ns)
{
    if (g->n_split == g->room_split) {
        g->room_split = 2 * g->room_split + 16;
        for (uint32_t i = 0; i < 2; i++)
            g->split[i] = memory_grow(g->split[i], g->room_split * sizeof(*g->split[i]));
    }
    g->split[0][g->n_split] = dispatch_ns;
    g->split[1][g->n_split++] = combine_ns;
}

/* Launches pairs with time stamps, and splits them. */
static void split_pairs(struct graphs *g)
{
    struct rank *r = g->rank;
    uint32_t calls = g->stamped.calls, n = calls < EPA_ENDS ? calls : EPA_ENDS;
    uint64_t dispatched[EPA_ENDS], combined[EPA_ENDS];
    double dispatch_ns = 0, combine_ns = 0;

    launch_block(g, &g->stamped, 1, NULL);
    if (!rank_goes_on(r))
        return;
    r->status = ep_ended(&r->ep, EPA_STAGE_DISPATCH, n, dispatched, &r->err);
    if (rank_good(r))
        r->status = ep_ended(&r->ep, EPA_STAGE_COMBINE, n, combined, &r->err);
    if (!rank_good(r))
        return;
    for (uint32_t i = 1; i < n; i++) {
        dispatch_ns += (double)(int64_t)(dispatched[i] - combined[i - 1]) / (n - 1);
        combine_ns += (double)(int64_t)(combined[i] - dispatched[i]) / (n - 1);
    }
    keep_split(g, dispatch_ns, combine_ns);
}

static void publish_split(struct graphs *g)
{
    for (uint32_t i = 0; i < 2 && g->n_split > 0; i++)
        g->rank->shared->in_pair_ns[i] = stats_quantile(g->split[i], g->n_split, 500);
}

static void take_figure(struct graphs *g, enum session_figure figure, uint32_t n, double *out)
{
    launch_block(g, &g->figure[figure], n, out);
    if (figure == FIGURE_PAIR && g->stamped.graphs != 0 && out != NULL)
        split_pairs(g);
}

/* Takes `n` samples of each figure. */
static void take_block(struct rank *r, uint64_t first, uint32_t n)
{
    static const enum session_figure order[FIGURES] = {FIGURE_PAIR, FIGURE_EXPERTS, FIGURE_COMBINE,
                                                       FIGURE_DISPATCH};

    for (uint32_t i = 0; i < FIGURES && rank_good(r); i++)
        if (r->graphs->figure[order[i]].graphs != 0)
            take_figure(r->graphs, order[i], n, rank_sample(r, (uint32_t)order[i], first));
}

/* ---- before and after ---- */

/* Runs iterations with experts, which store expert outputs in each buffer set. If can_check() returns
 * true, these are the outputs for the inputs of the graphs. The number of iterations is even, since
 * graphs begin with the first set. */
static void prepare_buffers(struct graphs *g)
{
    struct rank *r = g->rank;
    uint32_t inputs = options_of(g)->input_sets, n = (inputs + 1) / 2 * 2;

    for (uint32_t i = 0; i < 2 * n && rank_goes_on(r); i++) {
        rank_at(r, i, SESSION_ELSEWHERE);
        rank_iteration(r, i % inputs, true, false);
        if (i == 0 && !(r->shared->first_ns > 0))
            r->shared->first_ns = rank_total_ns(r);
    }
}

/* Returns the number of input sets whose expert outputs stay between graphs: one for each place of
 * expert outputs that pairs use. */
static uint32_t count_kept(const struct graphs *g)
{
    const struct epa_problem *first = &g->problem[0], *second = &g->problem[1];
    const struct epa_footprint *f = &g->rank->session->footprint;
    bool made = is_kind(g->rank, g->rank->first_stages, EPA_STAGE_EXPERTS); /* in each call */
    bool same = first->op == EPA_OP_MOE && second->op == EPA_OP_MOE && !f->u.moe.fused &&
                first->u.moe.y == second->u.moe.y;

    return same && !made ? 1 : f->in_flight;
}

/* Returns true if the buffer sets contain the expert outputs for the inputs of the graphs. */
static bool can_check(struct graphs *g)
{
    uint32_t open = count_kept(g), inputs = options_of(g)->input_sets;
    struct session_notes *notes = g->rank->session->notes;

    if (!options_of(g)->check)
        return false;
    if (inputs <= open && inputs <= KEPT)
        return true;
    if (g->rank->comm.boot->world.rank == 0)
        snprintf(notes->unchecked, sizeof(notes->unchecked),
                 "bench.input_sets is %u, but buffers keep the expert outputs of %u input "
                 "set%s between graphs; set it to %u or less",
                 inputs, open, open == 1 ? "" : "s", open < KEPT ? open : KEPT);
    return false;
}

/* Invalidates the outputs, launches whole iterations once more, and compares the outputs of their last
 * calls. */
static void check_graph(struct graphs *g)
{
    struct rank *r = g->rank;
    struct figure *f = iterations_of(g);
    uint32_t inputs = options_of(g)->input_sets;

    if (!rank_good(r) || !can_check(g))
        return;
    for (uint32_t i = 0; i < inputs; i++) {
        rank_make(r, i, i);
        if (!rank_good(r))
            return;
        *problem_of(r, i) = g->problem[i];
    }
    rank_at_stage(r, f->stage);
    for (uint32_t i = 0; i < f->graphs; i++)
        launch_graph(g, f);
    rank_sync(r);
    rank_at_stage(r, rank_good(r) ? (uint32_t)SESSION_ELSEWHERE : f->stage);
    for (uint32_t i = 0; i < inputs * r->n_stages; i++)
        rank_check(r, r->stage[i % r->n_stages].kind, i / r->n_stages);
    r->shared->checked += rank_good(r);
}

/* Launches the whole iterations of a path. Returns the time of one. */
static double time_launch(struct rank *r, enum rank_path path, void *arg)
{
    struct graphs *g = ((struct graphs **)arg)[path];
    double ns = 0;

    (void)r;
    launch_block(g, iterations_of(g), 1, &ns);
    return ns;
}

/* Measures the overhead of the public interface in graphs. Both paths may store expert outputs in the
 * same memory, so the outputs of the interface are made again. */
static void compare_paths(struct graphs *g)
{
    struct rank *r = g->rank;
    struct graphs *of[PATHS] = {[PATH_PUBLIC] = g};
    struct rank_paths paths;

    if (!rank_good(r) || r->direct == NULL || r->session->alternation != NULL)
        return;
    rank_paths_find(r, &paths);
    g->direct = of[PATH_DIRECT] = memory_alloc(1, sizeof(*g));
    g->direct->rank = r;
    rank_paths_select(r, &paths, PATH_DIRECT);
    prepare_buffers(g->direct);
    record_figure(g->direct, iterations_of(g->direct), iterations_of(g)->stage);
    rank_overhead_take(r, &paths, time_launch, of, &r->shared->graph_overhead);
    prepare_buffers(g);
}

/* Measures a part of a stage, or kernels without work, in a graph like a whole stage. A single launch
 * would begin on an idle device and would include time of the host. */
static void time_part(struct graphs *g, const struct epa_stage *part, double *out)
{
    struct rank *r = g->rank;
    uint32_t n = r->session->iterations < BLOCK ? r->session->iterations : BLOCK;
    struct figure f = {.part = part};
    double ns[BLOCK] = {0};

    record_figure(g, &f, r->n_stages - 1);
    if (rank_good(r))
        launch_block(g, &f, n < 2 ? n : 2, NULL); /* warm-up */
    if (rank_good(r))
        launch_block(g, &f, n, ns);
    if (rank_goes_on(r) && n > 0) {
        stats_sort(ns, n);
        *out = stats_percentile(ns, n, 500);
    }
    destroy_figure(r, &f);
}

void rank_bench_graph(struct rank *r)
{
    struct graphs *g = memory_alloc(1, sizeof(*g));

    r->graphs = g;
    g->rank = r;
    for (uint32_t i = 0; i < options_of(g)->input_sets && rank_good(r); i++)
        rank_inputs(r, i, i);
    prepare_buffers(g);
    record_all(g);
    if (rank_good(r))
        (void)rank_loop(r, BLOCK, take_block);
    if (r->trace != NULL) /* records the kernels of calls that follow other calls directly */
        launch_block(g, iterations_of(g), BLOCK, NULL);
    rank_trace_pause(r);
    compare_paths(g);
    check_graph(g);
    publish_split(g);
    for (uint32_t i = 0; i < r->ep.algorithm->n_parts && rank_good(r); i++)
        if (r->session->scope != BENCH_TOTAL)
            time_part(g, &r->ep.algorithm->parts[i], &r->shared->part_ns[i]);
    if (r->ep.algorithm->empty != NULL && session_has_peaks(r->session))
        time_part(g, r->ep.algorithm->empty, &r->shared->launches_ns);
    /* An odd number of iterations may follow the last launch only. */
    if (r->session->alternation == NULL)
        rank_overhead_measure(r);
}
