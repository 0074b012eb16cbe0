/* Faults that are planted, and ranks that are late for a test: nothing here is an error, what
 * comes of it is for the launcher and the peers to find, as if it had happened by itself. */
#include "session/rank.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "config/experiment.h"
#include "config/tree.h"
#include "base/random.h"

static const uint64_t slice_ns = 10000000u; /* of a sleep, after which it looks up */
static const uint64_t spin_ns = 150000;     /* a sleep may be so much too long */

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

/* Ends early once a rank has failed. What is left below `spin` it does not sleep. */
static void rest(const struct rank *r, uint64_t ns, uint64_t spin)
{
    uint64_t end = clock_ns() + ns, now = clock_ns();

    for (; now < end && !epa_aborted(r->boot); now = clock_ns()) {
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
        rest(r, (draw >> 8) % x->verify.straggle_ns, 0);
}

/* A timer of the kernel's continues the process, again and again, since the first time may
 * come before the stop. Without one nothing is stopped, as it would be for ever. */
static enum epa_status stop_for(uint64_t ns, struct epa_error *err)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT};
    struct itimerspec when = {.it_interval = timespec_of(ns), .it_value = timespec_of(ns)};
    timer_t timer;

    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "fault: no timer to end the stop with: %s",
                        strerror(errno));
    if (timer_settime(timer, 0, &when, NULL) != 0 || kill(getpid(), SIGSTOP) != 0) {
        int failed = errno;

        timer_delete(timer);
        return epa_fail(err, EPA_ERR_SYSTEM, "fault: the process cannot be stopped: %s",
                        strerror(failed));
    }
    timer_delete(timer);
    return EPA_OK;
}

static bool is_due(const struct rank *r, uint32_t stage)
{
    const struct fault_options *f = &experiment_of(r)->fault;
    uint64_t iteration = r->shared->iteration;

    if (f->kind == FAULT_NONE || f->rank != r->boot->world.rank || stage != r->fault_stage ||
        iteration < f->iteration)
        return false;
    iteration -= f->iteration;
    return iteration == 0 || (f->every > 0 && iteration % f->every == 0);
}

enum epa_status rank_fault(struct rank *r, uint32_t stage, struct epa_error *err)
{
    const struct fault_options *f = &experiment_of(r)->fault;

    if (!is_due(r, stage))
        return EPA_OK;
    __atomic_fetch_add(&r->shared->faults, 1, __ATOMIC_RELAXED);
    if (f->kind == FAULT_KILL)
        kill(getpid(), SIGKILL);
    if (f->kind == FAULT_STOP)
        return stop_for(f->for_ns, err);
    rest(r, f->for_ns, spin_ns); /* as long as was asked for, to compare runs with and without */
    return EPA_OK;
}

/* "x.yaml:7:12: fault.stage: there is no stage 'comine'; stages are dispatch, combine". */
static enum epa_status refuse_stage(const struct rank *r, struct epa_error *err)
{
    const struct experiment *x = experiment_of(r);
    const struct node *node = origin_find(x, "fault.stage");
    const char *name[SESSION_STAGES], *near;
    struct text stages = {0}, at = {0};

    for (uint32_t i = 0; i < r->n_stages; i++) {
        name[i] = r->stage[i].name;
        text_add(&stages, "%s%s", i == 0 ? "" : ", ", name[i]);
    }
    near = text_nearest(x->fault.stage, name, r->n_stages);
    if (node != NULL)
        text_add(&at, "%s:%u:%u: ", node->location.file, node->location.line,
                 node->location.column);
    (void)epa_fail(
        err, EPA_ERR_CONFIG, "%sfault.stage: algorithm '%s' has no stage '%s', it has %s%s%s%s",
        at.bytes > 0 ? at.data : "", x->algorithm.plugin->name, x->fault.stage, stages.data,
        near != NULL ? "; did you mean '" : "", near != NULL ? near : "", near != NULL ? "'?" : "");
    text_free(&stages);
    text_free(&at);
    return EPA_ERR_CONFIG;
}

enum epa_status rank_fault_check(struct rank *r, struct epa_error *err)
{
    const struct experiment *x = experiment_of(r);

    if (!fault_is_planted(x))
        return EPA_OK;
    if (r->session->verb == VERB_BENCH && r->clock == CLOCK_GRAPH)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "fault: no stage begins on the host where bench launches graphs; set "
                        "bench.clock: events, or use run or verify");
    for (r->fault_stage = 0; x->fault.stage != NULL; r->fault_stage++) {
        if (r->fault_stage == r->n_stages)
            return refuse_stage(r, err);
        if (strcmp(r->stage[r->fault_stage].name, x->fault.stage) == 0)
            break;
    }
    return EPA_OK;
}
