/* What run, bench and verify do: iterations with marks around stages; iterations timed from one
 * barrier to the next; an open loop; and iterations that are compared. What bench launches as
 * graphs is in rank_graph.c; the loop is the same.
 *
 * bench.clock: end_to_end. A sample lasts from one barrier of all ranks to the next, as rank 0
 * reads its clock, and holds all stages and the experts: what a program waits for when it calls a
 * layer now and then. Launches, skew between ranks and the second barrier are in it; single stages
 * do not show in it. With bench.cache: cold caches are flushed before the first barrier, so
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

#include <epa2a/wait.h>
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

/* What was begun is done on all ranks, the other side has its turn, and this one goes on together.
 * False: it is over. */
static bool take_turns(struct rank *r, uint32_t *turn)
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
            if ((over = !take_turns(r, &turn)))
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
        (void)take_turns(r, &turn);
    if (s->alternation != NULL && r->boot->world.rank == 0)
        alternation_leave(s->alternation, s->side);
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

/* What ranks exchange. */
struct closed_loop {
    uint64_t now_ns;
    double period_ns;
    char clock[RECORD_CLOCK_NAME];
};

struct rank_schedule {
    uint64_t half_ns; /* when the second half of warm-up began */
    double gap_ns;    /* mean, between two that are due */
    uint64_t start_ns;
    double due_ns; /* since start_ns */
    struct random random;
};

/* After warm-up, a closed loop, whose second half says how long an iteration takes: the slowest
 * rank's loop counts, and nobody begins before all can. */
static void plan(struct rank *r, struct rank_schedule *out)
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
                "bench.arrivals: ranks 0 and %u read different clocks; an open loop is for ranks "
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

/* When the next one is due: the first at the start. */
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
        plan(r, r->schedule);
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
                  "bench.arrivals: %s has %u stages, and with service and latency there is room "
                  "for %d",
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

/* Counters of 15 or 16 bits wrap within a few calls of these, which are checked as well. */
static bool is_checked(const struct session *s, uint64_t iteration)
{
    const uint64_t wraps = 1 << 15, near = 4;

    return iteration % s->experiment->verify.check_every == 0 || iteration + 1 == s->iterations ||
           (iteration + near >= wraps && (iteration + near) % wraps <= 2 * near);
}

/* Nothing is left to do where the first stage was all. */
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
        run_stages(r, iteration, slot, first, n);
        if (s->experiment->verify.order == ORDER_AGAIN)
            run_stages(r, iteration, slot, first, n);
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
            if (order == ORDER_DISCARD) { /* inputs that the dispatch after it must not deliver */
                rank_make(r, slot, i + s->iterations);
                run_stages(r, i, slot, 0, r->first_stages);
                if (rank_good(r))
                    (void)rank_algorithm(r,
                                         r->algorithm->discard(r->algorithm, problem_of(r, slot)));
            }
            rank_inputs(r, slot, i);
            rank_guard_inputs(r, slot);
            if (rank_good(r))
                run_stages(r, i, slot, 0, r->first_stages);
        }
        if (i >= ahead && rank_good(r))
            verify_rest(r, i - ahead, (uint32_t)((i - ahead) % (ahead + 1)));
    }
    if (rank_is_halted(r))
        rank_halt(r);
}

/* The rule alone, without ranks: numbers in, a decision and the next look out. Behind it the rule
 * between ranks. A sample's headline is the slowest rank's, so ranks exchange their times; elapsed
 * time is rank 0's, as no two clocks agree. All of it goes by the bootstrap, after a sample and
 * before the next: nothing of it is timed. With the same numbers all ranks make the same
 * decision, after the same sample. */

bool stop_is_on(const struct bench_options *o)
{
    return o->ci95 > 0 || o->max_time_ns > 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Samples before ci95 may stop: where there are fewer in all, then all. */
static uint64_t at_least(const struct bench_options *o)
{
    return least(o->min_iterations, o->iterations);
}

enum epa_status stop_init(struct stop *s, const struct bench_options *o, struct epa_error *err)
{
    /* With a limit of time the first sample says how long samples take. */
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

/* Width of the median's 95 % interval as a part of the median; infinite where there is
 * none. Sorts. */
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

/* Samples that take as long as from now to `at`, if they are like those before. */
static uint64_t samples_until(const struct stop *s, uint64_t elapsed_ns, uint64_t at)
{
    double each = (double)elapsed_ns / (double)s->n;
    double n = at > elapsed_ns && each > 0 ? (double)(at - elapsed_ns) / each : 0;

    return n < (double)UINT32_MAX ? (uint64_t)n : UINT32_MAX;
}

static uint64_t next_look(const struct stop *s, uint64_t elapsed_ns)
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
    /* Half way, and again: samples may become slower, and n is no more than doubled. */
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
    s->next = next_look(s, elapsed_ns);
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

enum { EXCHANGED = 128 }; /* samples at once */

struct rank_stop {
    struct stop rule;
    struct session_row total;
    uint64_t start_ns; /* of the first sample */
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
    bool counts = r->clock != CLOCK_END_TO_END || me == 0; /* only rank 0's times, there */
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
