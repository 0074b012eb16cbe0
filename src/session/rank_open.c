/* bench in an open loop: iterations are due by a schedule that all ranks work out alike, and
 * do not wait for the one before to be over. One that is due while another is under way
 * queues, and its latency counts from when it was due: what a closed loop leaves out, because
 * there nobody asks while it is slow. Service time counts from when it began.
 *
 * Warm-up is a closed loop, whose second half says how many iterations a second there can be.
 * The schedule is by CLOCK_MONOTONIC, which the ranks of one host share. */
#include "session/rank.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/sysfile.h"
#include "base/random.h"

static const uint64_t spin_ns = 150000;   /* before it is due; a sleep may be so much too long */
static const uint64_t look_ns = 10000000; /* longest sleep before it looks up */
static const uint64_t lead_ns = 5000000;  /* from the decision to the first that is due */

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

static enum epa_status keep_times(struct rank *r, uint64_t sample, double service, double latency,
                                  struct epa_error *err)
{
    uint32_t me = r->boot->world.rank, n = r->n_stages;

    for (uint32_t i = 0; i < n; i++) {
        double ns;
        enum epa_status status = rank_stage_ns(r, i, &ns, err);

        if (status != EPA_OK)
            return status;
        session_times(r->session, me, i)[sample] = ns;
    }
    session_times(r->session, me, n + OPEN_SERVICE)[sample] = service;
    session_times(r->session, me, n + OPEN_LATENCY)[sample] = latency;
    /* Release: pairs with the parent's read after it reaped this rank or gave it up. */
    __atomic_store_n(&r->shared->samples, sample + 1, __ATOMIC_RELEASE);
    return EPA_OK;
}

static enum epa_status take_samples(struct rank *r, struct schedule *schedule,
                                    struct epa_error *err)
{
    const struct session *s = r->session;
    enum epa_status status = EPA_OK;

    for (uint64_t k = 0; k < s->iterations && rank_goes_on(r, &status); k++) {
        uint64_t due = next_due(r, schedule), begin, end;

        wait_until(r, due);
        begin = clock_ns();
        status = iterate(r, s->warmup + k, err);
        end = clock_ns();
        if (status == EPA_OK)
            status = keep_times(r, k, (double)(end - begin), (double)(end - due), err);
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

    for (uint32_t k = 0; k < s->experiment->bench.input_sets && status == EPA_OK; k++)
        status = rank_inputs(r, k, k, err);
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
