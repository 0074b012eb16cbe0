/* verify.stop: after the last iteration the last rank does not begin a stage of one more. Each other
 * rank must end that stage within its time limit, either with right outputs, where none of them
 * depends on the rank that stopped, or with a time-out. At least one time-out must name that rank.
 *
 * The ranks tell each other by `halt` in shared memory, so they are ranks of one host. */
#include "session/rank_halt.h"

#include <stdio.h>

#include <epa2a/wait.h>
#include "session/rank_delay.h"
#include "session/rank_stages.h"
#include "session/rank_status.h"

enum { HALT_RUNS, HALT_RIGHT, HALT_NAMED, HALT_OTHER };

/* A wait may follow another wait that has nearly expired. */
static const uint64_t spare_ns = 1500000000;

bool rank_is_halted(const struct rank *r)
{
    return r->session->verb == VERB_VERIFY && experiment_of(r)->verify.stop != STOP_NONE;
}

/* Returns true if the failed wait waited for the rank. */
static bool has_awaited(const struct epa_error *err, uint32_t rank)
{
    for (uint32_t i = 0; i < err->n_awaited; i++)
        if (err->awaited[i] == rank)
            return true;
    return false;
}

/* Runs the stages `first` to `last - 1` and checks the last one. */
static void run_halt_stages(struct rank *r, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i < last && rank_good(r); i++) {
        rank_at_stage(r, i);
        rank_stage(r, i, 0);
        rank_complete(r, i, 0);
    }
    rank_sync(r);
    if (rank_good(r) && last > first)
        rank_check(r, r->stage[last - 1].kind, 0);
    if (rank_good(r))
        rank_at_stage(r, SESSION_ELSEWHERE);
}

/* A time-out is the right end of a stage here, so it does not fail the run. */
static void run_without(struct rank *r, uint32_t stopped, uint32_t first, uint32_t last)
{
    uint32_t end = HALT_RIGHT;

    run_halt_stages(r, first, last);
    /* The first time-out of a rank breaks the comm of the public interface on all ranks. */
    if (r->caller != NULL && r->status == EPA_ERR_ABORTED && !epa_aborted(r->comm.boot))
        r->status = epa_fail_copy(&r->err, EPA_ERR_TIMEOUT, caller_failure(r->caller));
    if (r->status == EPA_ERR_TIMEOUT) {
        end = has_awaited(&r->err, stopped) ? HALT_NAMED : HALT_OTHER;
        snprintf(r->shared->text, sizeof(r->shared->text), "%s", r->err.text);
        r->status = EPA_OK;
        r->err = (struct epa_error){EPA_OK, ""};
    }
    /* Release: pairs with the acquire in wait_for_others(). The text precedes it. */
    if (rank_good(r))
        __atomic_store_n(&r->shared->halt, end, __ATOMIC_RELEASE);
}

static void check_ends(struct rank *r, const uint32_t *end)
{
    uint32_t me = r->comm.boot->world.rank, other = me;

    for (uint32_t p = 0; p < r->comm.boot->world.size; p++) {
        if (end[p] == HALT_NAMED)
            return;
        other = end[p] == HALT_OTHER && other == me ? p : other;
    }
    if (other != me)
        rank_fail_key(
            r, EPA_ERR_MISMATCH, "verify.stop",
            "rank %u stopped (verify.stop), and no time-out names it by epa_awaits(): rank %u "
            "returned \"%s\"",
            me, other, session_rank(r->session, other)->text);
}

/* Runs on the stopped rank: waits for the end of the stage on all other ranks. */
static void wait_for_others(struct rank *r)
{
    const struct experiment *x = experiment_of(r);
    uint64_t limit = 2 * x->timeout_ns + spare_ns, begin = 0, waited = 0;
    uint32_t end[PROBLEM_RANKS_MAX] = {HALT_RUNS}, me = r->comm.boot->world.rank, p = 0;

    while (p < r->comm.boot->world.size && waited < limit && rank_goes_on(r)) {
        /* Acquire: pairs with the release in run_without(). */
        end[p] = __atomic_load_n(&session_rank(r->session, p)->halt, __ATOMIC_ACQUIRE);
        if (p == me || end[p] != HALT_RUNS)
            p++;
        else
            rank_rest(r, epa_now_ns() + 1000000, 0);
        waited = epa_waited_ns(&begin, waited, limit);
    }
    if (!rank_good(r))
        return;
    if (p < r->comm.boot->world.size)
        rank_fail_key(
            r, EPA_ERR_MISMATCH, "verify.stop",
            "rank %u stopped (verify.stop), and rank %u did not return within %.1f s, though "
            "timeout is %.1f s: a wait must end with EPA_ERR_TIMEOUT",
            me, p, (double)limit / 1e9, (double)x->timeout_ns / 1e9);
    else
        check_ends(r, end);
}

void rank_halt(struct rank *r)
{
    uint32_t stopped = r->comm.boot->world.size - 1, first = 0, n = r->n_stages;
    bool last = experiment_of(r)->verify.stop == STOP_LAST && r->first_stages < n;

    rank_at(r, r->session->iterations, SESSION_ELSEWHERE);
    rank_barrier(r);
    rank_make(r, 0, r->session->iterations);
    if (last) {
        run_halt_stages(r, 0, r->first_stages);
        rank_between(r, r->first_stages - 1, 0);
        rank_sync(r); /* nothing stays queued at the rank that stops */
        first = r->first_stages;
    }
    rank_barrier(r);
    if (!rank_good(r))
        return;
    if (r->comm.boot->world.rank == stopped)
        wait_for_others(r);
    else
        run_without(r, stopped, first, last ? n : r->first_stages);
}
