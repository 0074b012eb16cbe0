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
    uint32_t stage;               /* where a rank is that launches it */
    const struct epa_stage *part; /* alone; NULL: stages */
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

/* ---- recording ---- */

static void queue_stages(struct rank *r, uint32_t slot, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i < last && rank_good(r); i++)
        rank_stage(r, i, slot);
}

/* Call `call` of a figure. Expert outputs are where experts would have put them. */
static void run_call(struct graphs *g, const struct figure *figure, uint32_t call)
{
    struct rank *r = g->rank;
    const struct figure *pair = iterations_of(g);
    uint32_t inputs = options_of(g)->input_sets, first = r->first_stages, n = r->n_stages;
    uint32_t slot = call % inputs, last = (pair->graphs * pair->calls - 1) % inputs;

    if (figure->part != NULL) {
        (void)rank_algorithm(r, figure->part->run(r->algorithm, problem_of(r, slot)));
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
            (void)rank_algorithm(r, r->algorithm->discard(r->algorithm, problem_of(r, slot)));
            return;
        }
        r->op->operation->between_in_graph(r->op, slot);
        queue_stages(r, slot, first, n);
    }
}

static void record_figure(struct graphs *g, struct figure *figure, uint32_t stage)
{
    struct rank *r = g->rank;
    const struct epa_backend_ops *ops = r->backend->ops;

    if (!rank_good(r))
        return;
    figure->stage = stage;
    figure->calls = session_calls(r->session);
    figure->graphs = is_cold(g) ? TURNS : 1;
    rank_at_stage(r, stage);
    for (uint32_t turn = 0; turn < figure->graphs && rank_good(r); turn++) {
        if (!rank_backend(r, ops->capture_begin(r->backend)))
            return;
        for (uint32_t i = 0; i < figure->calls && rank_good(r); i++)
            run_call(g, figure, turn * figure->calls + i);
        /* Ended in any case: nothing else can be queued before. */
        if (rank_good(r))
            (void)rank_backend(r, ops->capture_end(r->backend, &figure->graph[turn]));
        else
            (void)ops->capture_end(r->backend, &figure->graph[turn]);
    }
}

static void record_all(struct graphs *g)
{
    struct rank *r = g->rank;
    const struct epa_algorithm *a = r->algorithm;
    uint32_t first = r->first_stages, last = r->n_stages - 1;
    bool whole = is_whole(g), stages = r->session->scope != BENCH_TOTAL;

    record_figure(g, iterations_of(g), whole ? last : (uint32_t)SESSION_PAIR);
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
    if (r->boot->world.rank != 0)
        return;
    r->session->notes->not_alone[FIGURE_EXPERTS] = !stages;
    r->session->notes->not_alone[FIGURE_COMBINE] = !stages || !a->combines_again;
    r->session->notes->not_alone[FIGURE_DISPATCH] = !stages || a->discard == NULL;
}

static void destroy_figure(const struct rank *r, const struct figure *figure)
{
    for (uint32_t turn = 0; turn < TURNS; turn++)
        if (figure->graph[turn] != NULL)
            r->backend->ops->graph_destroy(r->backend, figure->graph[turn]);
}

void rank_graphs_destroy(struct rank *r)
{
    for (uint32_t i = 0; r->graphs != NULL && i < FIGURES; i++)
        destroy_figure(r, &r->graphs->figure[i]);
    free(r->graphs);
    r->graphs = NULL;
}

/* ---- launching ---- */

static void launch(struct graphs *g, struct figure *f)
{
    struct epa_backend *backend = g->rank->backend;

    if (rank_good(g->rank))
        (void)rank_backend(g->rank,
                           backend->ops->graph_launch(backend, f->graph[f->turn++ % f->graphs]));
}

/* Samples of a figure, k between marks 2k and 2k + 1; `out` NULL: warm-up. The launch before a
 * sample, which is not timed, keeps the device busy while the host queues what follows. */
static void launch_block(struct graphs *g, struct figure *f, uint32_t n, double *out)
{
    struct rank *r = g->rank;
    bool isolated = options_of(g)->barrier;

    rank_at_stage(r, f->stage);
    for (uint32_t k = 0; k < n && rank_goes_on(r); k++) {
        if (isolated)
            rank_barrier(r);
        if (isolated || k == 0)
            launch(g, f);
        if (is_cold(g))
            rank_flush(r);
        rank_mark(r, 2 * k);
        launch(g, f);
        rank_mark(r, 2 * k + 1);
        if (isolated)
            rank_sync(r);
    }
    while (rank_good(r) && f->turn % f->graphs != 0)
        launch(g, f);
    rank_sync(r);
    if (rank_good(r))
        rank_at_stage(r, SESSION_ELSEWHERE);
    for (uint32_t k = 0; k < n && out != NULL && rank_good(r); k++)
        out[k] = rank_elapsed(r, 2 * k, 2 * k + 1) / f->calls;
}

/* `n` samples of each figure. */
static void take_block(struct rank *r, uint64_t first, uint32_t n)
{
    static const enum session_figure order[FIGURES] = {FIGURE_PAIR, FIGURE_EXPERTS, FIGURE_COMBINE,
                                                       FIGURE_DISPATCH};

    for (uint32_t i = 0; i < FIGURES && rank_good(r); i++)
        if (r->graphs->figure[order[i]].graphs != 0)
            launch_block(r->graphs, &r->graphs->figure[order[i]], n,
                         rank_sample(r, (uint32_t)order[i], first));
}

/* ---- before and after ---- */

/* Iterations with experts, so that expert outputs are stored in each buffer set: of what graphs
 * send through it, where can_check() says so. An even number, as graphs begin with the first
 * set. */
static void prepare(struct graphs *g)
{
    struct rank *r = g->rank;
    uint32_t inputs = options_of(g)->input_sets, n = (inputs + 1) / 2 * 2;

    for (uint32_t i = 0; i < inputs && rank_good(r); i++)
        rank_inputs(r, i, i);
    for (uint32_t i = 0; i < 2 * n && rank_goes_on(r); i++) {
        rank_at(r, i, SESSION_ELSEWHERE);
        rank_iteration(r, i % inputs, true, false);
        if (i == 0)
            r->shared->first_ns = rank_total_ns(r);
    }
}

/* Whether the expert outputs in the buffer sets are those of what graphs send. */
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
                 inputs, open, open < KEPT ? open : KEPT);
    return false;
}

/* Launches whole iterations once more over outputs that were spoilt, and compares what their
 * last calls left. */
static void check(struct graphs *g)
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
        launch(g, f);
    rank_sync(r);
    rank_at_stage(r, rank_good(r) ? (uint32_t)SESSION_ELSEWHERE : f->stage);
    for (uint32_t i = 0; i < inputs * r->n_stages; i++)
        rank_check(r, r->stage[i % r->n_stages].kind, i / r->n_stages);
    r->shared->checked += rank_good(r);
}

/* Parts of a stage, alone, in graphs as the whole: launched one by one a part would begin on a
 * device that has rested, and would take the host's time, too. */
static void time_part(struct graphs *g, uint32_t part)
{
    struct rank *r = g->rank;
    uint32_t n = r->session->iterations < BLOCK ? r->session->iterations : BLOCK;
    struct figure f = {.part = &r->algorithm->parts[part]};
    double ns[BLOCK] = {0};

    record_figure(g, &f, r->n_stages - 1);
    if (rank_good(r))
        launch_block(g, &f, n < 2 ? n : 2, NULL); /* warm-up */
    if (rank_good(r))
        launch_block(g, &f, n, ns);
    if (rank_goes_on(r) && n > 0) {
        stats_sort(ns, n);
        r->shared->part_ns[part] = stats_percentile(ns, n, 500);
    }
    destroy_figure(r, &f);
}

void rank_bench_graph(struct rank *r)
{
    struct graphs *g = memory_alloc(1, sizeof(*g));

    r->graphs = g;
    g->rank = r;
    prepare(g);
    record_all(g);
    if (rank_good(r))
        (void)rank_loop(r, BLOCK, take_block);
    if (r->trace != NULL) /* kernels of the last calls: of one iteration, right behind others */
        launch_block(g, iterations_of(g), BLOCK, NULL);
    rank_trace_pause(r);
    check(g);
    for (uint32_t i = 0; i < r->algorithm->n_parts && rank_good(r); i++)
        if (r->session->scope != BENCH_TOTAL)
            time_part(g, i);
}
