/* Planted faults. The functions report no error: launcher and peers must detect a planted fault in the
 * same way as a real one. */
#include "session/rank_fault.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "session/rank_delay.h"
#include "session/rank_status.h"

static struct timespec fault_timespec(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

/* Timers of one stop. Intervals double, so the last timer expires at least STOP_LIMIT_NS after the first. */
#define STOP_TIMERS 40
#define STOP_LIMIT_NS 60000000000u

/* Sends SIGCONT to this process after `ns`. Returns whether the kernel accepted the timer. */
static bool start_timer(timer_t *timer, uint64_t ns)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT};
    struct itimerspec when = {.it_value = fault_timespec(ns)};

    if (timer_create(CLOCK_MONOTONIC, &event, timer) != 0)
        return false;
    if (timer_settime(*timer, 0, &when, NULL) == 0)
        return true;
    timer_delete(*timer);
    return false;
}

/* Stops the process, this thread before it returns. SIGCONT of a timer continues the process. A timer
 * that expires before the stop has no effect, and the kernel does not repeat a periodic timer while the
 * process ignores its signal (Linux 6.13 and later). Therefore several timers with growing intervals
 * run: the first one that expires after the stop ends the stop. Without the last timer the process would
 * not stop, since the stop could last forever. */
static void stop_process(struct rank *r, uint64_t ns)
{
    timer_t timer[STOP_TIMERS];
    uint64_t wait = ns, last = ns + STOP_LIMIT_NS;
    uint32_t n = 0;

    while (n < STOP_TIMERS && start_timer(&timer[n], wait)) {
        n++;
        if (wait >= last)
            break;
        wait *= 2;
    }
    if (wait < last)
        rank_fail(r, EPA_ERR_SYSTEM, "fault: cannot create the timers that end the stop: %s",
                  strerror(errno));
    else if (raise(SIGSTOP) != 0)
        rank_fail(r, EPA_ERR_SYSTEM, "fault: cannot stop the process: %s", strerror(errno));
    while (n > 0)
        timer_delete(timer[--n]);
}

void rank_fault(struct rank *r, uint32_t stage)
{
    const struct fault_options *f = &experiment_of(r)->fault;
    uint64_t iteration = r->shared->iteration;

    if (!rank_good(r) || f->kind == FAULT_NONE || f->rank != r->comm.boot->world.rank ||
        stage != r->fault_stage || iteration < f->iteration)
        return;
    iteration -= f->iteration;
    if (iteration != 0 && (f->every == 0 || iteration % f->every != 0))
        return;
    __atomic_fetch_add(&r->shared->faults, 1, __ATOMIC_RELAXED);
    if (f->kind == FAULT_KILL)
        kill(getpid(), SIGKILL);
    if (f->kind == FAULT_STOP)
        stop_process(r, f->for_ns);
    else /* exactly for_ns, so that runs with and without the fault are comparable */
        rank_rest(r, epa_now_ns() + f->for_ns, RANK_SPIN_NS);
}

void rank_fault_check(struct rank *r)
{
    const struct experiment *x = experiment_of(r);
    const char *stage[SESSION_STAGES];

    if (!rank_good(r) || !fault_is_planted(x))
        return;
    if (r->session->verb == VERB_BENCH && r->clock == CLOCK_GRAPH)
        rank_fail_key(
            r, EPA_ERR_CONFIG, "bench.clock",
            "fault: bench with graphs begins no stage on the host; set bench.clock: events, "
            "or use run or verify");
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
