/* What run, bench and verify do: iterations with marks around stages; iterations timed from one
 * barrier to the next; an open loop; and iterations that are compared. What bench launches as
 * graphs is in rank_graph.c; the loop is the same.
 *
 * bench.clock: end_to_end. A sample lasts from one barrier of all ranks to the next, as rank 0
 * reads its clock, and holds all stages and the experts: what a program waits for when it calls a
 * layer now and then. Launches, skew between ranks and the second barrier are in it; single stages
 * cannot be told from it. With bench.cache: cold caches are flushed before the first barrier, so
 * that no rank's flush is in another rank's time.
 *
 * bench.arrivals: an open loop. Iterations are due by a schedule that all ranks work out alike, and
 * do not wait for the one before to be over. One that is due while another is under way queues, and
 * its latency counts from when it was due: what a closed loop leaves out, because there nobody asks
 * while it is slow. Service time counts from when it began. Warm-up is a closed loop, whose second
 * half says how many iterations a second there can be. The schedule is by CLOCK_MONOTONIC, which
 * the ranks of one host share. */
#include "session/rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/stats.h"
#include "base/file.h"

/* Of each part of a stage, alone: the first ones are not counted. */
enum { PART_SAMPLES = 50, PART_WARMUP = 2 };

static const uint64_t lead_ns = 5000000; /* from the decision to the first that is due */

/* ---- what all have in common ---- */

double *rank_sample(const struct rank *r, uint32_t row, uint64_t i)
{
    return i < r->session->warmup
               ? NULL
               : session_times(r->session, r->boot->world.rank, row) + i - r->session->warmup;
}

static void make_inputs(struct rank *r)
{
    for (uint32_t k = 0; k < experiment_of(r)->bench.input_sets && rank_good(r); k++)
        rank_inputs(r, k, k);
}

static uint32_t slot_of(const struct rank *r, uint64_t iteration)
{
    return (uint32_t)(iteration % experiment_of(r)->bench.input_sets);
}

/* The times of the stages in iteration `i`, which just ended. */
static void keep_stages(struct rank *r, uint64_t i)
{
    if (i == 0)
        r->shared->first_ns = rank_total_ns(r);
    for (uint32_t k = 0; k < r->n_stages && rank_sample(r, k, i) != NULL; k++)
        *rank_sample(r, k, i) = rank_stage_ns(r, k);
}

/* So many samples of this rank are complete. */
static void keep_samples(struct rank *r, uint64_t n)
{
    /* Release: pairs with the parent's read after it reaped this rank or gave it up. */
    if (rank_good(r))
        __atomic_store_n(&r->shared->samples, n, __ATOMIC_RELEASE);
}

uint64_t rank_loop(struct rank *r, uint32_t block,
                   void (*take)(struct rank *, uint64_t first, uint32_t n))
{
    const struct session *s = r->session;
    uint64_t all = (uint64_t)s->warmup + s->iterations, i = 0;
    bool ends = false;

    while (i < all && !ends && rank_goes_on(r)) {
        uint64_t end = i < s->warmup ? s->warmup : all, samples;
        uint32_t n = end - i < block ? (uint32_t)(end - i) : block;

        rank_at(r, i, SESSION_ELSEWHERE);
        take(r, i, n);
        i += n;
        samples = i > s->warmup ? i - s->warmup : 0;
        if (samples > 0)
            keep_samples(r, samples);
        ends = rank_stop_poll(r, samples);
    }
    if (rank_goes_on(r))
        rank_describe_device(r);
    return i;
}

/* One iteration more, of which every element is compared, if bench is to check. `last`: the
 * number of those before. No figure counts unless the same program was right on the same
 * shape. */
static void check_once(struct rank *r, uint64_t last)
{
    uint32_t slot = slot_of(r, last);

    if (!experiment_of(r)->bench.check)
        return;
    rank_make(r, slot, slot); /* `out` holds the right result so far */
    if (rank_good(r))
        rank_iteration(r, slot, true, true);
}

/* ---- marks around stages ---- */

/* What each part of a stage takes when it runs alone, between barriers, as iterations are. */
static void time_parts(struct rank *r)
{
    uint32_t most = r->session->iterations, n = most < PART_SAMPLES ? most : PART_SAMPLES;
    double ns[PART_SAMPLES];

    for (uint32_t i = 0; i < r->algorithm->n_parts && n > 0; i++) {
        for (uint32_t k = 0; k < n + PART_WARMUP && rank_goes_on(r); k++) {
            rank_barrier(r);
            rank_mark(r, 0);
            if (rank_good(r))
                (void)rank_algorithm(r, r->algorithm->parts[i].run(r->algorithm, problem_of(r, 0)));
            rank_mark(r, 1);
            rank_sync(r);
            ns[k < PART_WARMUP ? 0 : k - PART_WARMUP] = rank_elapsed(r, 0, 1);
            rank_barrier(r);
        }
        if (!rank_good(r))
            return;
        stats_sort(ns, n);
        r->shared->part_ns[i] = stats_percentile(ns, n, 500);
    }
}

static void run_marked(struct rank *r, uint64_t i, uint32_t n)
{
    (void)n;
    rank_iteration(r, slot_of(r, i), experiment_of(r)->bench.barrier, false);
    keep_stages(r, i);
}

/* ---- from barrier to barrier ---- */

/* On a device all is queued at once: it does the experts' work itself. The times of ranks other
 * than 0 are not used. */
static void run_end_to_end(struct rank *r, uint64_t i, uint32_t n)
{
    uint32_t slot = slot_of(r, i);
    uint64_t start;
    double ns;

    (void)n;
    if (experiment_of(r)->bench.cache == CACHE_COLD)
        rank_flush(r);
    rank_sync(r);
    rank_barrier(r);
    start = clock_ns();
    for (uint32_t k = 0; k < r->n_stages && rank_good(r); k++) {
        rank_at_stage(r, k);
        rank_fault(r, k);
        rank_stage(r, k, slot);
        rank_between(r, k, slot);
    }
    rank_sync(r);
    rank_barrier(r);
    ns = (double)(clock_ns() - start);
    if (rank_good(r) && i == 0 && r->boot->world.rank == 0)
        r->shared->first_ns = ns;
    if (rank_good(r) && i >= r->session->warmup)
        *rank_sample(r, FIGURE_END_TO_END, i) = ns;
}

void rank_bench(struct rank *r)
{
    bool end_to_end = r->clock == CLOCK_END_TO_END;
    uint64_t n;

    make_inputs(r);
    n = rank_loop(r, 1, end_to_end ? run_end_to_end : run_marked);
    if (!rank_good(r))
        return;
    rank_at(r, n, SESSION_ELSEWHERE);
    rank_trace_pause(r);
    if (!end_to_end)
        time_parts(r);
    if (rank_good(r))
        check_once(r, n);
}

void rank_run(struct rank *r)
{
    uint64_t n = r->session->iterations;

    for (uint64_t i = 0; i < n && rank_goes_on(r); i++) {
        rank_at(r, i, SESSION_ELSEWHERE);
        rank_inputs(r, 0, i);
        if (rank_good(r))
            rank_iteration(r, 0, true, i == 0 || i + 1 == n);
        keep_stages(r, i);
        keep_samples(r, i + 1);
    }
    if (rank_good(r))
        rank_describe_device(r);
}

/* ---- an open loop ---- */

/* What ranks exchange. */
struct closed_loop {
    uint64_t now_ns;
    double period_ns;
    char boot[40]; /* which run of which kernel: whose clock it is */
};

struct schedule {
    double gap_ns; /* mean, between two that are due */
    uint64_t start_ns;
    double due_ns; /* since start_ns */
    struct random random;
};

static void iterate(struct rank *r, uint64_t i)
{
    rank_at(r, i, SESSION_ELSEWHERE);
    rank_iteration(r, slot_of(r, i), false, false);
}

/* The period of a closed loop; NaN where there was nothing to measure. */
static double warm_up(struct rank *r)
{
    uint64_t n = r->session->warmup, half = n / 2, start = 0;

    for (uint64_t i = 0; i < n && rank_goes_on(r); i++) {
        if (i == half)
            start = clock_ns();
        iterate(r, i);
        if (i == 0)
            r->shared->first_ns = rank_total_ns(r);
    }
    return n > 0 ? (double)(clock_ns() - start) / (double)(n - half) : NAN;
}

/* The slowest rank's loop counts, and nobody begins before all can. */
static void plan(struct rank *r, double period_ns, struct schedule *out)
{
    const struct bench_options *o = &experiment_of(r)->bench;
    struct closed_loop mine = {.now_ns = clock_ns(), .period_ns = period_ns};
    struct closed_loop *all = memory_alloc(r->boot->world.size, sizeof(*all));
    struct session_notes *notes = r->session->notes;

    *out = (struct schedule){
        .random = {.key = random_key(experiment_of(r)->seed, RANDOM_ARRIVALS, 0, 0)}};
    (void)sysfile_line("", "/proc/sys/kernel/random/boot_id", mine.boot, sizeof(mine.boot));
    (void)rank_boot(r, r->boot->allgather(r->boot, &mine, sizeof(mine), all));
    for (uint32_t i = 0; i < r->boot->world.size && rank_good(r); i++) {
        period_ns = i == 0 ? all[0].period_ns : fmax(period_ns, all[i].period_ns);
        if (all[i].now_ns > out->start_ns)
            out->start_ns = all[i].now_ns;
        if (strcmp(all[i].boot, all[0].boot) != 0)
            rank_fail(r, EPA_ERR_UNSUPPORTED,
                      "bench.arrivals: ranks 0 and %u are on hosts whose clocks are not one; an "
                      "open loop is for ranks of one host",
                      i);
    }
    free(all);
    out->start_ns += lead_ns;
    out->gap_ns = o->load > 0 ? period_ns / o->load : 1e9 / o->rate;
    if (!rank_good(r) || r->boot->world.rank != 0)
        return;
    notes->arrivals.rate = 1e9 / out->gap_ns;
    notes->arrivals.closed_rate = 1e9 / period_ns;
}

/* When the next one is due: the first at the start. */
static uint64_t next_due(const struct rank *r, struct schedule *s)
{
    uint64_t due = s->start_ns + (uint64_t)s->due_ns;

    if (experiment_of(r)->bench.arrivals == ARRIVALS_POISSON)
        s->due_ns -= s->gap_ns * log1p(-random_unit(&s->random));
    else
        s->due_ns += s->gap_ns;
    return due;
}

void rank_bench_open(struct rank *r)
{
    const struct session *s = r->session;
    uint64_t first = s->warmup, last = first + s->iterations;
    struct schedule schedule = {0};
    double period_ns;

    if (r->n_stages + OPEN_ROWS > SESSION_STAGES)
        rank_fail(r, EPA_ERR_UNSUPPORTED,
                  "bench.arrivals: %s has %u stages, and with service and latency there is room "
                  "for %d",
                  experiment_of(r)->algorithm.plugin->name, r->n_stages, SESSION_STAGES);
    make_inputs(r);
    period_ns = warm_up(r);
    if (rank_goes_on(r))
        plan(r, period_ns, &schedule);
    for (uint64_t i = first; i < last && rank_goes_on(r); i++) {
        uint64_t due = next_due(r, &schedule), begin, end;

        r->shared->late += clock_ns() > due;
        rank_rest(r, due, RANK_SPIN_NS);
        begin = clock_ns();
        iterate(r, i);
        end = clock_ns();
        keep_stages(r, i);
        *rank_sample(r, r->n_stages + OPEN_SERVICE, i) = (double)(end - begin);
        *rank_sample(r, r->n_stages + OPEN_LATENCY, i) = (double)(end - due);
        keep_samples(r, i - first + 1);
    }
    if (!rank_goes_on(r))
        return;
    rank_describe_device(r);
    rank_at(r, last, SESSION_ELSEWHERE);
    rank_trace_pause(r);
    check_once(r, last);
}

/* ---- verify: inputs change with every iteration, and no barrier is between them ---- */

/* Stages `first` to `last - 1`, complete when it returns. */
static void run_stages(struct rank *r, uint64_t iteration, uint32_t slot, uint32_t first,
                       uint32_t last)
{
    for (uint32_t i = first; i < last && rank_good(r); i++) {
        rank_at(r, iteration, i);
        rank_straggle(r, iteration, i);
        rank_fault(r, i);
        rank_stage(r, i, slot);
    }
    rank_sync(r);
    if (rank_good(r))
        rank_at(r, iteration, SESSION_ELSEWHERE);
}

/* Nothing is left to do where the first stage was all. */
static void verify_rest(struct rank *r, uint64_t iteration, uint32_t slot)
{
    const struct session *s = r->session;
    uint32_t first = r->first_stages, n = r->n_stages;
    bool check =
        iteration % s->experiment->verify.check_every == 0 || iteration + 1 == s->iterations;

    rank_at(r, iteration, SESSION_ELSEWHERE);
    if (check)
        rank_check(r, r->stage[first - 1].kind, slot);
    rank_between(r, first - 1, slot);
    if (first < n && rank_good(r)) {
        run_stages(r, iteration, slot, first, n);
        if (s->experiment->verify.order == ORDER_AGAIN)
            run_stages(r, iteration, slot, first, n);
        if (check)
            rank_check(r, last_kind(r), slot);
    }
    rank_guard_check(r, slot);
    r->shared->checked += check && rank_good(r);
    keep_samples(r, iteration + 1);
}

/* With inputs of its own, which the dispatch after it must not deliver. */
static void discard_one(struct rank *r, uint64_t iteration, uint32_t slot)
{
    rank_make(r, slot, iteration + r->session->iterations);
    run_stages(r, iteration, slot, 0, r->first_stages);
    if (rank_good(r))
        (void)rank_algorithm(r, r->algorithm->discard(r->algorithm, problem_of(r, slot)));
}

/* Pipelined: what the first stage of iteration i left is looked at, and the rest of i done,
 * after the first stage of i + 1. */
void rank_verify(struct rank *r)
{
    const struct session *s = r->session;
    int order = s->experiment->verify.order;
    uint32_t ahead = order == ORDER_PIPELINED ? 1 : 0;

    for (uint64_t i = 0; i < (uint64_t)s->iterations + ahead && rank_goes_on(r); i++) {
        uint32_t slot = (uint32_t)(i % (ahead + 1));

        if (i < s->iterations) {
            rank_at(r, i, SESSION_ELSEWHERE);
            if (order == ORDER_DISCARD)
                discard_one(r, i, slot);
            rank_inputs(r, slot, i);
            rank_guard_inputs(r, slot);
            if (rank_good(r))
                run_stages(r, i, slot, 0, r->first_stages);
        }
        if (i >= ahead && rank_good(r))
            verify_rest(r, i - ahead, (uint32_t)((i - ahead) % (ahead + 1)));
    }
}
