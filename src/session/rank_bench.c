/* What run, bench and verify do: iterations with marks around stages; iterations timed from one
 * barrier to the next; an open loop; and iterations that are compared. Graphs are in rank_graph.c.
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/stats.h"
#include "base/file.h"

/* Of each part of a stage, alone: the first ones are not counted. */
enum { PART_SAMPLES = 50, PART_WARMUP = 2 };

static const uint64_t spin_ns = 150000;   /* before it is due; a sleep may be so much too long */
static const uint64_t look_ns = 10000000; /* longest sleep before it looks up */
static const uint64_t lead_ns = 5000000;  /* from the decision to the first that is due */

/* ---- what all have in common ---- */

static enum epa_status make_inputs(struct rank *r, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t k = 0; k < experiment_of(r)->bench.input_sets && status == EPA_OK; k++)
        status = rank_inputs(r, k, k, err);
    return status;
}

/* The times of the stages in the iteration that just ended, as those of a sample. */
static enum epa_status keep_stages(struct rank *r, uint64_t sample, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < r->n_stages && status == EPA_OK; i++) {
        double *ns = session_times(r->session, r->boot->world.rank, i) + sample;

        status = rank_stage_ns(r, i, ns, err);
    }
    return status;
}

void rank_keep_samples(struct rank *r, uint64_t n)
{
    /* Release: pairs with the parent's read after it reaped this rank or gave it up. */
    __atomic_store_n(&r->shared->samples, n, __ATOMIC_RELEASE);
}

enum epa_status rank_check_once(struct rank *r, uint64_t last, struct epa_error *err)
{
    uint32_t slot = (uint32_t)(last % experiment_of(r)->bench.input_sets);
    enum epa_status status;

    if (!experiment_of(r)->bench.check)
        return EPA_OK;
    status = rank_make(r, slot, slot, err); /* `out` holds the right answer so far */
    return status == EPA_OK ? rank_iteration(r, slot, true, true, err) : status;
}

/* ---- marks around stages ---- */

/* Between barriers, as iterations are. */
static enum epa_status time_part(struct rank *r, uint32_t part, double *out, struct epa_error *err)
{
    const struct epa_backend_ops *ops = r->backend->ops;
    enum epa_status status = rank_barrier(r, err);

    if (status == EPA_OK)
        status = rank_explain(r, ops->mark(r->backend, 0), err);
    if (status == EPA_OK) {
        status = r->algorithm->parts[part].run(r->algorithm, problem_of(r, 0));
        if (status != EPA_OK && status != EPA_ERR_ABORTED)
            r->algorithm->explain(r->algorithm, err);
    }
    if (status == EPA_OK)
        status = rank_explain(r, ops->mark(r->backend, 1), err);
    if (status == EPA_OK)
        status = rank_sync(r, err);
    if (status == EPA_OK)
        status = rank_explain(r, ops->elapsed(r->backend, 0, 1, out), err);
    return status == EPA_OK ? rank_barrier(r, err) : status;
}

enum epa_status rank_time_parts(struct rank *r, struct epa_error *err)
{
    uint32_t most = r->session->iterations, n = most < PART_SAMPLES ? most : PART_SAMPLES;
    enum epa_status status = EPA_OK;
    double ns[PART_SAMPLES];

    for (uint32_t i = 0; i < r->algorithm->n_parts && n > 0; i++) {
        for (uint32_t k = 0; k < n + PART_WARMUP && rank_goes_on(r, &status); k++)
            status = time_part(r, i, &ns[k < PART_WARMUP ? 0 : k - PART_WARMUP], err);
        if (status != EPA_OK)
            return status;
        stats_sort(ns, n);
        r->shared->part_ns[i] = stats_percentile(ns, n, 500);
    }
    return EPA_OK;
}

static enum epa_status run_marked(struct rank *r, uint64_t i, struct epa_error *err)
{
    const struct bench_options *o = &experiment_of(r)->bench;
    enum epa_status status =
        rank_iteration(r, (uint32_t)(i % o->input_sets), o->barrier, false, err);

    if (status == EPA_OK && i == 0)
        status = rank_total_ns(r, &r->shared->first_ns, err);
    if (status == EPA_OK && i >= r->session->warmup)
        status = keep_stages(r, i - r->session->warmup, err);
    return status;
}

/* ---- from barrier to barrier ---- */

/* What is timed. On a device all is queued at once: it does the experts' work itself. */
static enum epa_status run_layer(struct rank *r, uint32_t slot, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < r->n_stages && status == EPA_OK; i++) {
        rank_at_stage(r, i);
        status = rank_fault(r, i, err);
        if (status == EPA_OK)
            status = rank_stage(r, i, slot, err);
        if (status == EPA_OK)
            status = rank_between(r, i, slot, err);
    }
    if (status == EPA_OK)
        status = rank_sync(r, err);
    return status == EPA_OK ? rank_barrier(r, err) : status;
}

/* The times of ranks other than 0 are not looked at. */
static enum epa_status run_end_to_end(struct rank *r, uint64_t i, struct epa_error *err)
{
    const struct bench_options *o = &experiment_of(r)->bench;
    uint32_t me = r->boot->world.rank;
    enum epa_status status = EPA_OK;
    uint64_t start;
    double ns;

    if (o->cache == CACHE_COLD)
        status = rank_explain(r, r->backend->ops->flush_cache(r->backend), err);
    if (status == EPA_OK)
        status = rank_sync(r, err);
    if (status == EPA_OK)
        status = rank_barrier(r, err);
    if (status != EPA_OK)
        return status;
    start = clock_ns();
    status = run_layer(r, (uint32_t)(i % o->input_sets), err);
    ns = (double)(clock_ns() - start);
    if (status == EPA_OK && i == 0 && me == 0)
        r->shared->first_ns = ns;
    if (status == EPA_OK && i >= r->session->warmup)
        session_times(r->session, me, FIGURE_END_TO_END)[i - r->session->warmup] = ns;
    return status;
}

/* ---- both of them ---- */

enum epa_status rank_bench(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    uint64_t all = (uint64_t)s->warmup + s->iterations, i;
    enum epa_status status = make_inputs(r, err);
    bool ends = false, end_to_end = r->clock == CLOCK_END_TO_END;

    for (i = 0; i < all && !ends && rank_goes_on(r, &status); i++) {
        uint64_t samples = i < s->warmup ? 0 : i - s->warmup + 1;

        rank_at(r, i, SESSION_ELSEWHERE);
        status = end_to_end ? run_end_to_end(r, i, err) : run_marked(r, i, err);
        if (status == EPA_OK && samples > 0)
            rank_keep_samples(r, samples);
        if (status == EPA_OK)
            status = rank_stop_poll(r, samples, &ends, err);
    }
    if (!rank_goes_on(r, &status))
        return status;
    rank_describe_device(r);
    rank_at(r, i, SESSION_ELSEWHERE);
    rank_trace_pause(r);
    if (!end_to_end)
        status = rank_time_parts(r, err);
    return status == EPA_OK ? rank_check_once(r, i, err) : status;
}

enum epa_status rank_run(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    enum epa_status status = EPA_OK;

    for (uint64_t i = 0; i < s->iterations && rank_goes_on(r, &status); i++) {
        rank_at(r, i, SESSION_ELSEWHERE);
        status = rank_inputs(r, 0, i, err);
        if (status == EPA_OK)
            status = rank_iteration(r, 0, true, i == 0 || i + 1 == s->iterations, err);
        if (status == EPA_OK && i == 0)
            status = rank_total_ns(r, &r->shared->first_ns, err);
        if (status == EPA_OK)
            status = keep_stages(r, i, err);
        if (status == EPA_OK)
            rank_keep_samples(r, i + 1);
    }
    if (status == EPA_OK)
        rank_describe_device(r);
    return status;
}

/* ---- an open loop ---- */

/* What ranks tell each other. */
struct reported {
    uint64_t now_ns;
    double period_ns; /* of the closed loop */
    char boot[40];    /* which run of which kernel: whose clock it is */
};

struct schedule {
    double gap_ns, closed_ns; /* means: between two that are due; of the closed loop */
    uint64_t start_ns;
    double due_ns; /* since start_ns */
    struct random random;
};

static enum epa_status check_rows(const struct rank *r, struct epa_error *err)
{
    if (r->n_stages + OPEN_ROWS <= SESSION_STAGES)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "bench.arrivals: %s has %u stages, and with service and latency there "
                    "is room for %d",
                    experiment_of(r)->algorithm.plugin->name, r->n_stages, SESSION_STAGES);
}

static enum epa_status iterate(struct rank *r, uint64_t i, struct epa_error *err)
{
    uint32_t inputs = experiment_of(r)->bench.input_sets;

    rank_at(r, i, SESSION_ELSEWHERE);
    return rank_iteration(r, (uint32_t)(i % inputs), false, false, err);
}

/* *out is NaN where there was nothing to measure. */
static enum epa_status warm_up(struct rank *r, double *out, struct epa_error *err)
{
    uint64_t n = r->session->warmup, half = n / 2, start = 0;
    enum epa_status status = EPA_OK;

    *out = NAN;
    for (uint64_t i = 0; i < n && rank_goes_on(r, &status); i++) {
        if (i == half)
            start = clock_ns();
        status = iterate(r, i, err);
        if (status == EPA_OK && i == 0)
            status = rank_total_ns(r, &r->shared->first_ns, err);
    }
    if (status == EPA_OK && n > 0)
        *out = (double)(clock_ns() - start) / (double)(n - half);
    return status;
}

/* The slowest rank's loop counts, and nobody begins before all can. */
static enum epa_status agree(struct rank *r, const struct reported *mine, struct schedule *out,
                             struct epa_error *err)
{
    const struct bench_options *o = &experiment_of(r)->bench;
    uint32_t ranks = r->boot->world.size;
    struct reported *all = calloc(ranks, sizeof(*all));
    enum epa_status status;

    if (all == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u ranks' clocks", ranks);
    status = rank_explain_boot(r, r->boot->allgather(r->boot, mine, sizeof(*mine), all), err);
    out->closed_ns = all[0].period_ns;
    for (uint32_t i = 0; i < ranks && status == EPA_OK; i++) {
        out->closed_ns = fmax(out->closed_ns, all[i].period_ns);
        if (all[i].now_ns > out->start_ns)
            out->start_ns = all[i].now_ns;
        if (strcmp(all[i].boot, all[0].boot) != 0)
            status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                              "bench.arrivals: ranks 0 and %u are on hosts whose clocks are "
                              "not one; an open loop is for ranks of one host",
                              i);
    }
    free(all);
    out->start_ns += lead_ns;
    out->gap_ns = o->load > 0 ? out->closed_ns / o->load : 1e9 / o->rate;
    return status;
}

static enum epa_status plan(struct rank *r, double period_ns, struct schedule *out,
                            struct epa_error *err)
{
    struct reported mine = {.now_ns = clock_ns(), .period_ns = period_ns};
    struct session_notes *notes = r->session->notes;
    enum epa_status status;

    (void)sysfile_line("", "/proc/sys/kernel/random/boot_id", mine.boot, sizeof(mine.boot));
    *out = (struct schedule){
        .random = {.key = random_key(experiment_of(r)->seed, RANDOM_ARRIVALS, 0, 0)}};
    status = agree(r, &mine, out, err);
    if (status != EPA_OK || r->boot->world.rank != 0)
        return status;
    notes->arrivals.rate = 1e9 / out->gap_ns;
    notes->arrivals.closed_rate = 1e9 / out->closed_ns;
    return EPA_OK;
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

/* Ends early once a rank has failed. */
static void wait_until(struct rank *r, uint64_t due)
{
    uint64_t now = clock_ns();

    r->shared->late += now > due;
    for (; now < due && !epa_aborted(r->boot); now = clock_ns()) {
        uint64_t left = due - now, ns = left > look_ns ? look_ns : left - spin_ns;

        if (left > spin_ns)
            nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
        else
            clock_relax();
    }
}

static enum epa_status take_samples(struct rank *r, struct schedule *schedule,
                                    struct epa_error *err)
{
    const struct session *s = r->session;
    uint32_t me = r->boot->world.rank;
    enum epa_status status = EPA_OK;

    for (uint64_t k = 0; k < s->iterations && rank_goes_on(r, &status); k++) {
        uint64_t due = next_due(r, schedule), begin, end;

        wait_until(r, due);
        begin = clock_ns();
        status = iterate(r, s->warmup + k, err);
        end = clock_ns();
        if (status == EPA_OK)
            status = keep_stages(r, k, err);
        if (status != EPA_OK)
            break;
        session_times(s, me, r->n_stages + OPEN_SERVICE)[k] = (double)(end - begin);
        session_times(s, me, r->n_stages + OPEN_LATENCY)[k] = (double)(end - due);
        rank_keep_samples(r, k + 1);
    }
    return status;
}

enum epa_status rank_bench_open(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    uint64_t last = (uint64_t)s->warmup + s->iterations;
    enum epa_status status = check_rows(r, err);
    struct schedule schedule = {0};
    double period_ns = NAN;

    if (status == EPA_OK)
        status = make_inputs(r, err);
    if (status == EPA_OK)
        status = warm_up(r, &period_ns, err);
    if (rank_goes_on(r, &status))
        status = plan(r, period_ns, &schedule, err);
    if (status == EPA_OK)
        status = take_samples(r, &schedule, err);
    if (!rank_goes_on(r, &status))
        return status;
    rank_describe_device(r);
    rank_at(r, last, SESSION_ELSEWHERE);
    rank_trace_pause(r);
    return rank_check_once(r, last, err);
}

/* ---- verify: inputs change with every iteration, and no barrier is between them ---- */

static bool checks(const struct session *s, uint64_t iteration)
{
    return iteration % s->experiment->verify.check_every == 0 || iteration + 1 == s->iterations;
}

/* Stages `first` to `last - 1`, and then what they did is there to be looked at. */
static enum epa_status run_stages(struct rank *r, uint64_t iteration, uint32_t slot, uint32_t first,
                                  uint32_t last, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = first; i < last && status == EPA_OK; i++) {
        rank_at(r, iteration, i);
        rank_straggle(r, iteration, i);
        status = rank_fault(r, i, err);
        if (status == EPA_OK)
            status = rank_stage(r, i, slot, err);
    }
    if (status == EPA_OK)
        status = rank_sync(r, err);
    if (status == EPA_OK)
        rank_at(r, iteration, SESSION_ELSEWHERE);
    return status;
}

static enum epa_status verify_first(struct rank *r, uint64_t iteration, uint32_t slot,
                                    struct epa_error *err)
{
    enum epa_status status;

    rank_at(r, iteration, SESSION_ELSEWHERE);
    status = rank_inputs(r, slot, iteration, err);
    if (status == EPA_OK)
        status = run_stages(r, iteration, slot, 0, r->first_stages, err);
    return status;
}

/* Nothing is left to do where the first stage was all. */
static enum epa_status verify_rest(struct rank *r, uint64_t iteration, uint32_t slot,
                                   struct epa_error *err)
{
    uint32_t first = r->first_stages, n = r->n_stages;
    bool check = checks(r->session, iteration), whole = first == n;
    enum epa_status status = EPA_OK;

    rank_at(r, iteration, SESSION_ELSEWHERE);
    if (check)
        status = rank_check(r, r->stage[first - 1].kind, slot, err);
    r->shared->checked += check && whole;
    if (status == EPA_OK)
        status = rank_between(r, first - 1, slot, err);
    if (status == EPA_OK && !whole)
        status = run_stages(r, iteration, slot, first, n, err);
    if (status == EPA_OK && check && !whole) {
        status = rank_check(r, last_kind(r), slot, err);
        r->shared->checked++;
    }
    if (status == EPA_OK)
        rank_keep_samples(r, iteration + 1);
    return status;
}

/* Pipelined: what the first stage of iteration i left is looked at, and the rest of i done,
 * after the first stage of i + 1. */
enum epa_status rank_verify(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    uint32_t ahead = s->experiment->verify.order == ORDER_PIPELINED ? 1 : 0;
    enum epa_status status = EPA_OK;

    for (uint64_t i = 0; i < (uint64_t)s->iterations + ahead && rank_goes_on(r, &status); i++) {
        if (i < s->iterations)
            status = verify_first(r, i, (uint32_t)(i % (ahead + 1)), err);
        if (status == EPA_OK && i >= ahead)
            status = verify_rest(r, i - ahead, (uint32_t)((i - ahead) % (ahead + 1)), err);
    }
    return status;
}
