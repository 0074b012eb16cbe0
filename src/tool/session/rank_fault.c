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

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

/* Stops the process, this thread before it returns. A periodic timer of the kernel continues it, since the first expiry may precede
 * the stop. Without a timer the stop would last forever, so it fails. */
static void stop_process(struct rank *r, uint64_t ns)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT};
    struct itimerspec when = {.it_interval = timespec_of(ns), .it_value = timespec_of(ns)};
    timer_t timer;

    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) {
        rank_fail(r, EPA_ERR_SYSTEM, "fault: cannot create the timer that ends the stop: %s",
                  strerror(errno));
        return;
    }
    if (timer_settime(timer, 0, &when, NULL) != 0 || raise(SIGSTOP) != 0)
        rank_fail(r, EPA_ERR_SYSTEM, "fault: cannot stop the process: %s", strerror(errno));
    timer_delete(timer);
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
