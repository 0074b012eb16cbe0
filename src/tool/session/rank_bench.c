/* The verb bench without graphs: iterations with marks around stages, iterations timed from one barrier to
 * the next, and an open loop. rank_graph.c launches graphs with the same loop.
 *
 * bench.clock: end_to_end. A sample lasts from one barrier of all ranks to the next, on the clock of
 * rank 0, and includes all stages and the experts. It equals the time that a program waits for an
 * occasional call of a layer. A sample includes launches, skew between ranks and the second barrier;
 * it has no times of single stages. With bench.cache: cold each rank flushes its caches before the
 * first barrier, so that no flush is part of another rank's time.
 *
 * bench.arrivals: an open loop. All ranks compute the same schedule of due times. An iteration that is
 * due during another iteration queues, and its latency counts from the due time. A closed loop hides
 * this latency, since it starts no iteration during a slow one. Service time counts from the begin of
 * the iteration. Warm-up is a closed loop; its second half measures the maximum rate. The schedule uses
 * CLOCK_MONOTONIC, which the ranks of one host share. */
#include "session/rank_bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <epa2a/wait.h>
#include "base/file.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/stats.h"
#include "session/rank_delay.h"
#include "session/rank_fault.h"
#include "session/rank_loop.h"
#include "session/rank_overhead.h"
#include "session/rank_stages.h"
#include "session/rank_status.h"
#include "session/rank_trace.h"

/* Samples of each part of a stage that runs alone, after warm-up. */
enum { PART_SAMPLES = 50, PART_WARMUP = 2 };

static const uint64_t lead_ns = 5000000; /* from the schedule's computation to its first due time */

static void make_inputs(struct rank *r)
{
    for (uint32_t k = 0; k < experiment_of(r)->bench.input_sets && rank_good(r); k++)
        rank_inputs(r, k, k);
}

static uint32_t slot_of(const struct rank *r, uint64_t iteration)
{
    return (uint32_t)(iteration % experiment_of(r)->bench.input_sets);
}

/* With bench.check, runs one more iteration and compares every element: figures are valid only if the
 * same program returned correct outputs for the same shape. `last`: number of earlier iterations. */
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

/* Measures each part of a stage alone, between barriers. */
static void time_parts(struct rank *r)
{
    uint32_t most = r->session->iterations, n = most < PART_SAMPLES ? most : PART_SAMPLES;
    double ns[PART_SAMPLES];

    for (uint32_t i = 0; i < r->ep.algorithm->n_parts && n > 0; i++) {
        for (uint32_t k = 0; k < n + PART_WARMUP && rank_goes_on(r); k++) {
            rank_barrier(r);
            rank_mark(r, 0);
            rank_call(r, &r->ep.algorithm->parts[i], 0);
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
    rank_keep_stages(r, i);
}

/* ---- from barrier to barrier ---- */

/* On a device all stages are queued at once, since the device also computes the experts. Only the times
 * of rank 0 are used. */
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
    start = epa_now_ns();
    for (uint32_t k = 0; k < r->n_stages && rank_good(r); k++) {
        rank_at_stage(r, k);
        rank_fault(r, k);
        rank_stage(r, k, slot);
        rank_complete(r, k, slot);
        rank_between(r, k, slot);
    }
    rank_sync(r);
    rank_barrier(r);
    ns = (double)(epa_now_ns() - start);
    if (rank_good(r) && i == 0 && r->comm.boot->world.rank == 0)
        r->shared->first_ns = ns;
    if (rank_good(r) && i >= r->session->warmup)
        *rank_sample(r, FIGURE_END_TO_END, i) = ns;
}

/* ---- an open loop ---- */

/* Result of a rank's warm-up, which all ranks exchange. */
struct closed_loop {
    uint64_t now_ns;
    double period_ns;
    char clock[RECORD_CLOCK_NAME];
};

struct rank_schedule {
    uint64_t half_ns; /* begin of the second half of warm-up */
    double gap_ns;    /* mean time between two due times */
    uint64_t start_ns;
    double due_ns; /* next due time, relative to start_ns */
    struct random random;
};

/* Computes the schedule after warm-up. The second half of warm-up gives the duration of an iteration on
 * the slowest rank. The schedule starts after the latest rank has ended warm-up. */
static void create_schedule(struct rank *r, struct rank_schedule *out)
{
    const struct bench_options *o = &experiment_of(r)->bench;
    uint32_t warmup = r->session->warmup, size = r->comm.boot->world.size;
    struct closed_loop mine = {.now_ns = epa_now_ns()}, *all = memory_alloc(size, sizeof(*all));
    double period_ns = 0;

    mine.period_ns =
        warmup > 0 ? (double)(mine.now_ns - out->half_ns) / (double)(warmup - warmup / 2) : NAN;
    *out = (struct rank_schedule){
        .random = {.key = random_key(experiment_of(r)->problem.seed, RANDOM_ARRIVALS, 0, 0)}};
    record_name_clock(mine.clock);
    (void)rank_boot(r, r->comm.boot->allgather(r->comm.boot, &mine, sizeof(mine), all));
    for (uint32_t i = 0; i < size && rank_good(r); i++) {
        period_ns = i == 0 ? all[0].period_ns : fmax(period_ns, all[i].period_ns);
        out->start_ns = all[i].now_ns > out->start_ns ? all[i].now_ns : out->start_ns;
        if (strcmp(all[i].clock, all[0].clock) != 0)
            rank_fail_key(
                r, EPA_ERR_UNSUPPORTED, "bench.arrivals",
                "bench.arrivals: ranks 0 and %u read different clocks; an open loop needs ranks "
                "of one host and one time namespace",
                i);
    }
    free(all);
    out->start_ns += lead_ns;
    out->gap_ns = o->load > 0 ? period_ns / o->load : 1e9 / o->rate;
    if (rank_good(r) && r->comm.boot->world.rank == 0) {
        r->session->notes->arrivals.rate = 1e9 / out->gap_ns;
        r->session->notes->arrivals.closed_rate = 1e9 / period_ns;
    }
}

/* Returns the due time of the next iteration; the first is due at the start. */
static uint64_t next_due(const struct rank *r, struct rank_schedule *s)
{
    uint64_t due = s->start_ns + (uint64_t)s->due_ns;

    if (experiment_of(r)->bench.arrivals == ARRIVALS_POISSON)
        s->due_ns -= s->gap_ns * log1p(-random_unit(&s->random));
    else
        s->due_ns += s->gap_ns;
    return due;
}

static void run_open(struct rank *r, uint64_t i, uint32_t n)
{
    uint64_t warmup = r->session->warmup, due = 0, begin, end;

    (void)n;
    if (i == warmup / 2)
        r->schedule->half_ns = epa_now_ns();
    if (i == warmup)
        create_schedule(r, r->schedule);
    if (i >= warmup && rank_good(r)) {
        due = next_due(r, r->schedule);
        r->shared->late += epa_now_ns() > due;
        rank_rest(r, due, RANK_SPIN_NS);
    }
    begin = epa_now_ns();
    rank_iteration(r, slot_of(r, i), false, false);
    end = epa_now_ns();
    rank_keep_stages(r, i);
    if (i < warmup)
        return;
    *rank_sample(r, r->n_stages + OPEN_SERVICE, i) = (double)(end - begin);
    *rank_sample(r, r->n_stages + OPEN_LATENCY, i) = (double)(end - due);
}

void rank_bench(struct rank *r)
{
    bool end_to_end = r->clock == CLOCK_END_TO_END, open = session_is_open(r->session);
    struct rank_schedule schedule = {.half_ns = 0};
    uint64_t n;

    if (open && r->n_stages + OPEN_ROWS > SESSION_STAGES)
        rank_fail_key(
            r, EPA_ERR_UNSUPPORTED, "bench.arrivals",
            "bench.arrivals: %s has %u stages; with service and latency the maximum is %d "
            "rows",
            experiment_of(r)->algorithm.plugin->name, r->n_stages, SESSION_STAGES);
    r->schedule = &schedule;
    make_inputs(r);
    n = rank_loop(r, 1, end_to_end ? run_end_to_end : open ? run_open : run_marked);
    r->schedule = NULL;
    if (rank_good(r)) {
        rank_at(r, n, SESSION_ELSEWHERE);
        rank_trace_pause(r);
    }
    if (rank_good(r) && !end_to_end && !open && r->session->alternation == NULL)
        time_parts(r);
    if (r->session->alternation == NULL)
        rank_overhead_measure(r);
    if (rank_good(r))
        check_once(r, n);
}
