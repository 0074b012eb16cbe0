/* The iterations of run, bench and verify: with marks around stages; timed from one barrier to the
 * next; in an open loop; and with comparison of the outputs. rank_graph.c launches graphs with the same
 * loop.
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
#include "session/rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <epa2a/wait.h>
#include "base/random.h"
#include "base/stats.h"
#include "base/file.h"

/* Samples of each part of a stage that runs alone, after warm-up. */
enum { PART_SAMPLES = 50, PART_WARMUP = 2 };

static const uint64_t lead_ns = 5000000; /* from the schedule's computation to its first due time */

/* ---- common functions ---- */

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

/* Stores the stage times of iteration `i`, which has just ended. */
static void keep_stages(struct rank *r, uint64_t i)
{
    if (i == 0)
        r->shared->first_ns = rank_total_ns(r);
    for (uint32_t k = 0; k < r->n_stages && rank_sample(r, k, i) != NULL; k++)
        *rank_sample(r, k, i) = rank_stage_ns(r, k);
}

/* Publishes the number of complete samples of this rank. */
static void keep_samples(struct rank *r, uint64_t n)
{
    /* Release: pairs with the parent's read after the end of this rank or after its grace period. */
    if (rank_good(r))
        __atomic_store_n(&r->shared->samples, n, __ATOMIC_RELEASE);
}

/* Completes the block on all ranks, lets the other side run its block, and continues with all ranks of
 * this side together. Returns false if the alternation is over. */
static bool alternate_sides(struct rank *r, uint32_t *turn)
{
    struct alternation *a = r->session->alternation;
    uint32_t side = r->session->side;

    rank_barrier(r);
    if (rank_good(r) && r->boot->world.rank == 0)
        alternation_pass(a, side);
    while (rank_goes_on(r) && !alternation_wait(a, side, turn))
        ;
    rank_barrier(r);
    return !alternation_is_over(a);
}

uint64_t rank_loop(struct rank *r, uint32_t block,
                   void (*take)(struct rank *, uint64_t first, uint32_t n))
{
    const struct session *s = r->session;
    uint64_t all = (uint64_t)s->warmup + s->iterations, i = 0, next = s->warmup;
    uint32_t turn = 0;
    bool ends = false, over = s->alternation == NULL;

    while (i < all && !ends && rank_goes_on(r)) {
        uint64_t end = i < s->warmup ? s->warmup : all, samples;
        uint32_t n;

        if (s->alternation != NULL && i == next) {
            if ((over = !alternate_sides(r, &turn)))
                break;
            next += s->alternation->block;
        }
        if (s->alternation != NULL && next < end)
            end = next;
        n = end - i < block ? (uint32_t)(end - i) : block;
        rank_at(r, i, SESSION_ELSEWHERE);
        take(r, i, n);
        i += n;
        samples = i > s->warmup ? i - s->warmup : 0;
        if (samples > 0)
            keep_samples(r, samples);
        ends = rank_stop_poll(r, samples);
    }
    if (!over)
        (void)alternate_sides(r, &turn);
    if (s->alternation != NULL && r->boot->world.rank == 0)
        alternation_leave(s->alternation, s->side);
    if (rank_goes_on(r))
        rank_describe_device(r);
    return i;
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
        rank_between(r, k, slot);
    }
    rank_sync(r);
    rank_barrier(r);
    ns = (double)(epa_now_ns() - start);
    if (rank_good(r) && i == 0 && r->boot->world.rank == 0)
        r->shared->first_ns = ns;
    if (rank_good(r) && i >= r->session->warmup)
        *rank_sample(r, FIGURE_END_TO_END, i) = ns;
}

static void run_checked(struct rank *r, uint64_t i, uint32_t n)
{
    (void)n;
    rank_inputs(r, 0, i);
    if (rank_good(r))
        rank_iteration(r, 0, true, i == 0 || i + 1 == r->session->iterations);
    keep_stages(r, i);
}

void rank_run(struct rank *r)
{
    (void)rank_loop(r, 1, run_checked);
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
    uint32_t warmup = r->session->warmup, size = r->boot->world.size;
    struct closed_loop mine = {.now_ns = epa_now_ns()}, *all = memory_alloc(size, sizeof(*all));
    double period_ns = 0;

    mine.period_ns =
        warmup > 0 ? (double)(mine.now_ns - out->half_ns) / (double)(warmup - warmup / 2) : NAN;
    *out = (struct rank_schedule){
        .random = {.key = random_key(experiment_of(r)->seed, RANDOM_ARRIVALS, 0, 0)}};
    record_name_clock(mine.clock);
    (void)rank_boot(r, r->boot->allgather(r->boot, &mine, sizeof(mine), all));
    for (uint32_t i = 0; i < size && rank_good(r); i++) {
        period_ns = i == 0 ? all[0].period_ns : fmax(period_ns, all[i].period_ns);
        out->start_ns = all[i].now_ns > out->start_ns ? all[i].now_ns : out->start_ns;
        if (strcmp(all[i].clock, all[0].clock) != 0)
            rank_fail(
                r, EPA_ERR_UNSUPPORTED,
                "bench.arrivals: ranks 0 and %u read different clocks; an open loop needs ranks "
                "of one host and one time namespace",
                i);
    }
    free(all);
    out->start_ns += lead_ns;
    out->gap_ns = o->load > 0 ? period_ns / o->load : 1e9 / o->rate;
    if (rank_good(r) && r->boot->world.rank == 0) {
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
    keep_stages(r, i);
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
        rank_fail(r, EPA_ERR_UNSUPPORTED,
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
    if (rank_good(r))
        check_once(r, n);
}

/* ---- verify: new inputs in every iteration, and no barrier between iterations ---- */

/* Runs the stages `first` to `last - 1` to their end. */
static void run_verify_stages(struct rank *r, uint64_t iteration, uint32_t slot, uint32_t first,
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

/* Besides every check_every-th iteration, checks the iterations in which counters of 15 or 16 bits
 * wrap. */
static bool is_checked(const struct session *s, uint64_t iteration)
{
    const uint64_t wraps = 1 << 15, near = 4;

    return iteration % s->experiment->verify.check_every == 0 || iteration + 1 == s->iterations ||
           (iteration + near >= wraps && (iteration + near) % wraps <= 2 * near);
}

/* Checks the first phase and runs and checks the rest of an iteration. A WHOLE stage has no rest. */
static void verify_rest(struct rank *r, uint64_t iteration, uint32_t slot)
{
    const struct session *s = r->session;
    uint32_t first = r->first_stages, n = r->n_stages;
    bool check = is_checked(s, iteration);

    rank_at(r, iteration, SESSION_ELSEWHERE);
    if (check)
        rank_check(r, r->stage[first - 1].kind, slot);
    rank_between(r, first - 1, slot);
    if (first < n && rank_good(r)) {
        run_verify_stages(r, iteration, slot, first, n);
        if (s->experiment->verify.order == ORDER_AGAIN)
            run_verify_stages(r, iteration, slot, first, n);
        if (check) {
            rank_check(r, last_kind(r), slot);
            rank_check_kept(r, slot);
        }
    }
    rank_guard_check(r, slot);
    r->shared->checked += check && rank_good(r);
    keep_samples(r, iteration + 1);
    rank_memory_check(r, iteration + 1);
}

/* Pipelined: the check of iteration i's first phase and the rest of i follow the first phase of
 * i + 1. */
void rank_verify(struct rank *r)
{
    const struct session *s = r->session;
    int order = s->experiment->verify.order;
    uint32_t ahead = order == ORDER_PIPELINED ? 1 : 0;

    for (uint64_t i = 0; i < (uint64_t)s->iterations + ahead && rank_goes_on(r); i++) {
        uint32_t slot = (uint32_t)(i % (ahead + 1));

        if (i < s->iterations) {
            rank_at(r, i, SESSION_ELSEWHERE);
            if (order == ORDER_DISCARD) { /* the next dispatch must not deliver these inputs */
                rank_make(r, slot, i + s->iterations);
                run_verify_stages(r, i, slot, 0, r->first_stages);
                if (rank_good(r))
                    (void)rank_algorithm(r,
                                         r->algorithm->discard(r->algorithm, problem_of(r, slot)));
            }
            rank_inputs(r, slot, i);
            rank_guard_inputs(r, slot);
            if (rank_good(r))
                run_verify_stages(r, i, slot, 0, r->first_stages);
        }
        if (i >= ahead && rank_good(r))
            verify_rest(r, i - ahead, (uint32_t)((i - ahead) % (ahead + 1)));
    }
    if (rank_is_halted(r))
        rank_halt(r);
}

/* Stop rules of bench. The first part decides from samples alone; the second part exchanges samples
 * between ranks. The time of a sample is the time of the slowest rank, so ranks exchange their times;
 * the elapsed time is that on the clock of rank 0. The exchange uses the bootstrap between two samples,
 * so it is not part of a sample. All ranks have the same numbers and therefore make the same decision
 * after the same sample. */

bool stop_is_on(const struct bench_options *o)
{
    return o->ci95 > 0 || o->max_time_ns > 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Minimum number of samples of a stop by ci95. */
static uint64_t at_least(const struct bench_options *o)
{
    return least(o->min_iterations, o->iterations);
}

enum epa_status stop_init(struct stop *s, const struct bench_options *o, struct epa_error *err)
{
    /* With max_time the first sample gives an estimate of the duration of samples. */
    *s = (struct stop){.options = o, .next = o->max_time_ns > 0 ? 1 : at_least(o)};
    s->ns = calloc(o->iterations, sizeof(*s->ns));
    if (s->ns != NULL)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_NOMEM,
                    "no memory for the stop rule over %u samples: lower bench.iterations",
                    o->iterations);
}

void stop_finish(struct stop *s)
{
    free(s->ns);
    *s = (struct stop){0};
}

/* Sorts ns. Returns the width of the median's 95 % confidence interval relative to the median;
 * INFINITY if there are too few samples for an interval. */
static double width_of(double *ns, uint64_t n)
{
    uint64_t k = interval_of_median(n);
    double median;

    if (k == 0)
        return INFINITY;
    stats_sort(ns, n);
    median = stats_percentile(ns, n, 500);
    return median > 0 ? (ns[n - k] - ns[k - 1]) / median : INFINITY;
}

/* Estimates the number of samples until the time `at` from the mean of the previous samples. */
static uint64_t samples_until(const struct stop *s, uint64_t elapsed_ns, uint64_t at)
{
    double each = (double)elapsed_ns / (double)s->n;
    double n = at > elapsed_ns && each > 0 ? (double)(at - elapsed_ns) / each : 0;

    return n < (double)UINT32_MAX ? (uint64_t)n : UINT32_MAX;
}

/* Returns the number of samples of the next evaluation. */
static uint64_t next_evaluation(const struct stop *s, uint64_t elapsed_ns)
{
    const struct bench_options *o = s->options;
    uint64_t n = s->n, more = n;

    if (o->ci95 > 0) {
        if (n < at_least(o))
            more = at_least(o) - n;
        else if (elapsed_ns < o->min_time_ns)
            more = least(n, samples_until(s, elapsed_ns, o->min_time_ns) + 1);
        else
            more = n / 4;
    }
    /* Evaluates again at half of the remaining time, since samples may become slower, and at most at
     * twice the present number of samples. */
    if (o->max_time_ns > 0)
        more = least(least(more, n), samples_until(s, elapsed_ns, o->max_time_ns) / 2);
    return least(n + (more > 0 ? more : 1), o->iterations);
}

enum stop_reason stop_poll(struct stop *s, uint64_t elapsed_ns)
{
    const struct bench_options *o = s->options;

    if (o->ci95 > 0 && s->n >= at_least(o) && elapsed_ns >= o->min_time_ns &&
        width_of(s->ns, s->n) <= o->ci95)
        return STOP_CI95;
    if (o->max_time_ns > 0 && elapsed_ns >= o->max_time_ns)
        return STOP_TIME;
    if (s->n >= o->iterations)
        return STOP_ITERATIONS;
    s->next = next_evaluation(s, elapsed_ns);
    return STOP_NOT;
}

const char *stop_name(enum stop_reason reason)
{
    return reason == STOP_ITERATIONS ? "iterations"
           : reason == STOP_CI95     ? "ci95"
           : reason == STOP_TIME     ? "time"
                                     : NULL;
}

/* ---- between ranks ---- */

enum { EXCHANGED = 128 }; /* samples of a rank in one exchange */

struct rank_stop {
    struct stop rule;
    struct session_row total;
    uint64_t start_ns; /* begin of the first sample */
    struct exchanged {
        uint64_t elapsed_ns;
        double ns[EXCHANGED];
    } mine, all[]; /* [ranks] */
};

void rank_stop_create(struct rank *r)
{
    const struct bench_options *o = &experiment_of(r)->bench;

    if (!rank_good(r) || !stop_is_on(o))
        return;
    r->stop = memory_alloc(1, sizeof(*r->stop) + r->boot->world.size * sizeof(struct exchanged));
    r->stop->total = session_total(r->session);
    r->status = stop_init(&r->stop->rule, o, &r->err);
}

void rank_stop_destroy(struct rank *r)
{
    if (r->stop != NULL)
        stop_finish(&r->stop->rule);
    free(r->stop);
    r->stop = NULL;
}

bool rank_stop_poll(struct rank *r, uint64_t samples)
{
    struct rank_stop *stop = r->stop;
    uint32_t me = r->boot->world.rank;
    bool counts = r->clock != CLOCK_END_TO_END || me == 0; /* end_to_end has times of rank 0 only */
    enum stop_reason reason;

    if (stop == NULL || !rank_good(r))
        return false;
    if (samples == 0)
        stop->start_ns = epa_now_ns();
    if (samples == 0 || samples < stop->rule.next)
        return false;
    while (stop->rule.n < samples) {
        uint64_t n = least(samples - stop->rule.n, EXCHANGED);

        stop->mine.elapsed_ns = epa_now_ns() - stop->start_ns;
        for (uint64_t k = 0; k < n; k++)
            stop->mine.ns[k] =
                counts ? session_row_ns(r->session, &stop->total, me, stop->rule.n + k) : 0;
        if (!rank_boot(r, r->boot->allgather(r->boot, &stop->mine, sizeof(stop->mine), stop->all)))
            return false;
        for (uint64_t k = 0; k < n; k++) {
            double slowest = 0;

            for (uint32_t rank = 0; rank < r->boot->world.size; rank++)
                slowest = fmax(slowest, stop->all[rank].ns[k]);
            stop->rule.ns[stop->rule.n++] = slowest;
        }
    }
    reason = stop_poll(&stop->rule, stop->all[0].elapsed_ns);
    if (me == 0)
        r->session->notes->stop = reason;
    return reason != STOP_NOT;
}
