/* The verb verify: new inputs in every iteration, and no barrier between iterations. */
#include "session/rank_verify.h"

#include "session/rank_delay.h"
#include "session/rank_fault.h"
#include "session/rank_guard.h"
#include "session/rank_halt.h"
#include "session/rank_loop.h"
#include "session/rank_memory.h"
#include "session/rank_stages.h"
#include "session/rank_status.h"

/* Runs the stages `first` to `last - 1` to their end. */
static void run_verify_stages(struct rank *r, uint64_t iteration, uint32_t slot, uint32_t first,
                              uint32_t last)
{
    for (uint32_t i = first; i < last && rank_good(r); i++) {
        rank_at(r, iteration, i);
        rank_straggle(r, iteration, i);
        rank_fault(r, i);
        rank_stage(r, i, slot);
        rank_complete(r, i, slot);
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
    rank_keep_samples(r, iteration + 1);
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
                rank_discard(r, slot);
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
