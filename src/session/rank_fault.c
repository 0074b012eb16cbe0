/* Faults that are planted, and ranks that are late for a test: nothing here is an error, what
 * follows is for the launcher and the peers to find, as if it had happened by itself. */
#include "session/rank.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "config/experiment.h"
#include "base/random.h"

static const uint64_t slice_ns = 10000000u; /* of a sleep, after which it looks up */

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

void rank_rest(const struct rank *r, uint64_t end, uint64_t spin)
{
    for (uint64_t now = clock_ns(); now < end && !epa_aborted(r->boot); now = clock_ns()) {
        uint64_t left = end - now;
        struct timespec ts = timespec_of(left - spin < slice_ns ? left - spin : slice_ns);

        if (left > spin)
            nanosleep(&ts, NULL);
        else
            clock_relax();
    }
}

void rank_straggle(const struct rank *r, uint64_t iteration, uint32_t stage)
{
    const struct experiment *x = experiment_of(r);
    uint64_t draw;

    if (x->verify.straggle_ns == 0)
        return;
    draw = random_at(random_key(x->seed, RANDOM_STRAGGLE, r->boot->world.rank, iteration), stage);
    if (draw % 4 == 0)
        rank_rest(r, clock_ns() + (draw >> 8) % x->verify.straggle_ns, 0);
}

/* A timer of the kernel's continues the process, again and again, since the first time may
 * be before the stop. Without one nothing is stopped, as it would be for ever. */
static void stop_for(struct rank *r, uint64_t ns)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT};
    struct itimerspec when = {.it_interval = timespec_of(ns), .it_value = timespec_of(ns)};
    timer_t timer;

    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) {
        rank_fail(r, EPA_ERR_SYSTEM, "fault: no timer to end the stop with: %s", strerror(errno));
        return;
    }
    if (timer_settime(timer, 0, &when, NULL) != 0 || kill(getpid(), SIGSTOP) != 0)
        rank_fail(r, EPA_ERR_SYSTEM, "fault: the process cannot be stopped: %s", strerror(errno));
    timer_delete(timer);
}

void rank_fault(struct rank *r, uint32_t stage)
{
    const struct fault_options *f = &experiment_of(r)->fault;
    uint64_t iteration = r->shared->iteration;

    if (!rank_good(r) || f->kind == FAULT_NONE || f->rank != r->boot->world.rank ||
        stage != r->fault_stage || iteration < f->iteration)
        return;
    iteration -= f->iteration;
    if (iteration != 0 && (f->every == 0 || iteration % f->every != 0))
        return;
    __atomic_fetch_add(&r->shared->faults, 1, __ATOMIC_RELAXED);
    if (f->kind == FAULT_KILL)
        kill(getpid(), SIGKILL);
    if (f->kind == FAULT_STOP)
        stop_for(r, f->for_ns);
    else /* as long as was asked for, to compare runs with and without */
        rank_rest(r, clock_ns() + f->for_ns, RANK_SPIN_NS);
}

void rank_fault_check(struct rank *r)
{
    const struct experiment *x = experiment_of(r);
    const char *stage[SESSION_STAGES];

    if (!rank_good(r) || !fault_is_planted(x))
        return;
    if (r->session->verb == VERB_BENCH && r->clock == CLOCK_GRAPH)
        rank_fail(r, EPA_ERR_CONFIG,
                  "fault: no stage begins on the host where bench launches graphs; set "
                  "bench.clock: events, or use run or verify");
    while (x->fault.stage != NULL && r->fault_stage < r->n_stages &&
           strcmp(r->stage[r->fault_stage].name, x->fault.stage) != 0)
        r->fault_stage++;
    if (r->fault_stage < r->n_stages)
        return;
    for (uint32_t i = 0; i < r->n_stages; i++)
        stage[i] = r->stage[i].name;
    rank_refuse_name(r, "fault.stage", x->fault.stage, stage, r->n_stages,
                     ": algorithm '%s' has no stage '%s', it has", x->algorithm.plugin->name,
                     x->fault.stage);
}
