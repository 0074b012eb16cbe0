/* Stages of one rank: running, waiting, timing and checking, and the published position of the rank. On a
 * device a stage is only queued: its results are valid after rank_sync(). */
#include "session/rank_stages.h"

#include "session/rank_fault.h"
#include "session/rank_status.h"

void rank_at_stage(struct rank *r, uint32_t stage)
{
    __atomic_store_n(&r->shared->stage, stage, __ATOMIC_RELAXED);
}

void rank_at(struct rank *r, uint64_t iteration, uint32_t stage)
{
    if (r->trace != NULL)
        recorder_turn(&r->recorder, iteration);
    __atomic_store_n(&r->shared->iteration, iteration, __ATOMIC_RELAXED);
    rank_at_stage(r, stage);
}

/* Publishes that the rank computes on the CPU: SESSION_INPUTS or SESSION_CHECK. Returns the position
 * before. */
static uint32_t begin_on_cpu(struct rank *r, uint32_t what)
{
    return __atomic_exchange_n(&r->shared->stage, what, __ATOMIC_RELAXED);
}

/* Records a slice of the rank's own thread, from begin_ns (epa_trace_now()) until now. */
static void note_slice(struct rank *r, uint16_t name, uint64_t begin_ns)
{
    (void)epa_trace_slice(r->trace, 0, name, begin_ns, EPA_TRACE_NOBODY, 0, 0);
}

/* ---- steps ---- */

void rank_sync(struct rank *r)
{
    uint64_t begin = epa_trace_now(r->trace);

    if (!rank_good(r))
        return;
    r->status = rank_calls_interface(r) && r->comm.backend->memory != EPA_MEMORY_HOST
                    ? caller_sync(r->caller, &r->err)
                    : ep_sync(&r->ep, &r->err);
    if (r->comm.backend->memory != EPA_MEMORY_HOST) /* a host backend does not wait */
        note_slice(r, r->slice[SLICE_SYNC], begin);
}

void rank_call(struct rank *r, const struct epa_stage *stage, uint32_t slot)
{
    if (rank_good(r))
        r->status = ep_call(&r->ep, stage, problem_of(r, slot), &r->err);
}

void rank_discard(struct rank *r, uint32_t slot)
{
    if (rank_good(r))
        r->status = ep_discard(&r->ep, problem_of(r, slot), &r->err);
}

void rank_stage(struct rank *r, uint32_t stage, uint32_t slot)
{
    uint64_t begin = epa_trace_now(r->trace);

    if (!rank_good(r))
        return;
    if (is_kind(r, stage, EPA_STAGE_EXPERTS))
        r->status = r->op->operation->between(r->op, slot, &r->err);
    else
        rank_call(r, &r->stage[stage], slot);
    note_slice(r, r->stage_slice[stage], begin);
}

void rank_complete(struct rank *r, uint32_t stage, uint32_t slot)
{
    if (rank_good(r) && rank_calls_interface(r) && is_kind(r, stage, EPA_STAGE_DISPATCH))
        r->status = caller_complete(r->caller, problem_of(r, slot), &r->err);
}

void rank_barrier(struct rank *r)
{
    uint64_t begin = epa_trace_now(r->trace);

    if (!rank_good(r))
        return;
    r->status = ep_barrier(&r->ep, &r->err);
    note_slice(r, r->slice[SLICE_BARRIER], begin);
}

void rank_boot_barrier(struct rank *r)
{
    if (rank_good(r))
        r->status = ep_comm_barrier(&r->comm, &r->err);
}

void rank_mark(struct rank *r, uint32_t mark)
{
    if (rank_good(r))
        (void)rank_backend(r, r->comm.backend->ops->mark(r->comm.backend, mark));
}

void rank_flush(struct rank *r)
{
    if (rank_good(r))
        (void)rank_backend(r, r->comm.backend->ops->flush_cache(r->comm.backend));
}

double rank_elapsed(struct rank *r, uint32_t from_mark, uint32_t to_mark)
{
    double ns = 0;

    if (rank_good(r))
        (void)rank_backend(r,
                           r->comm.backend->ops->elapsed(r->comm.backend, from_mark, to_mark, &ns));
    return ns;
}

void rank_make(struct rank *r, uint32_t slot, uint64_t iteration)
{
    uint64_t begin = epa_trace_now(r->trace);
    uint32_t at;

    if (!rank_good(r))
        return;
    at = begin_on_cpu(r, SESSION_INPUTS);
    r->status = op_inputs(r->op, slot, iteration);
    rank_at_stage(r, at);
    note_slice(r, r->slice[SLICE_INPUTS], begin);
    epa_trace_count(r->trace, 0, r->units, r->op->slot[slot].units);
    if (rank_good(r) || r->status == EPA_ERR_ABORTED)
        return;
    (void)op_backend_done(r->comm.backend, r->status, &r->err,
                          "cannot write the inputs of iteration %llu",
                          (unsigned long long)iteration);
    r->status = r->err.status;
}

void rank_inputs(struct rank *r, uint32_t slot, uint64_t iteration)
{
    const struct operation *op = r->op->operation;

    rank_make(r, slot, iteration);
    if (!rank_good(r))
        return;
    op->traffic(r->op, slot, &r->shared->traffic);
    r->shared->traffic_n++;
    if (r->comm.boot->world.rank == 0 && op->stats_add != NULL)
        op->stats_add(r->session->stats, &experiment_of(r)->problem, r->session->source, iteration);
}

void rank_between(struct rank *r, uint32_t stage, uint32_t slot)
{
    uint64_t begin = epa_trace_now(r->trace);

    if (!rank_good(r) || !is_kind(r, stage, EPA_STAGE_DISPATCH) ||
        (stage + 1 < r->n_stages && is_kind(r, stage + 1, EPA_STAGE_EXPERTS)))
        return;
    r->status = r->op->operation->between(r->op, slot, &r->err);
    note_slice(r, r->slice[SLICE_BETWEEN], begin);
}

void rank_check(struct rank *r, enum epa_stage_kind kind, uint32_t slot)
{
    uint64_t begin = epa_trace_now(r->trace);
    uint32_t at;

    if (!rank_good(r) || kind == EPA_STAGE_SEND || kind == EPA_STAGE_EXPERTS)
        return;
    at = begin_on_cpu(r, SESSION_CHECK);
    r->status = op_check(r->op, kind, slot, &r->shared->compared, &r->shared->wrong, &r->err);
    rank_at_stage(r, at);
    if (!r->counts_puts)
        r->shared->share = r->op->share;
    note_slice(r, r->slice[SLICE_CHECK], begin);
}

/* A peer may begin the next dispatch as soon as it has combined. With two buffer sets in lockstep
 * that dispatch writes the other set. Otherwise a barrier after the check holds peers back; a
 * barrier in each iteration would keep ranks in step. */
void rank_check_kept(struct rank *r, uint32_t slot)
{
    bool stays =
        r->ep.footprint.in_flight >= 2 && experiment_of(r)->verify.order != ORDER_PIPELINED;
    uint64_t begin = epa_trace_now(r->trace);
    uint32_t at;

    if (!rank_good(r) || r->op->operation->check_kept == NULL || !op_keeps(r->shared->iteration))
        return;
    if (r->caller != NULL && !caller_keeps_rows(r->caller, problem_of(r, slot)))
        return;
    at = begin_on_cpu(r, SESSION_CHECK);
    r->status = op_check_kept(r->op, slot, &r->shared->wrong, &r->err);
    rank_at_stage(r, at);
    note_slice(r, r->slice[SLICE_CHECK], begin);
    if (!stays)
        rank_barrier(r);
}

void rank_iteration(struct rank *r, uint32_t slot, bool apart, bool check)
{
    bool cold = r->session->verb == VERB_BENCH && experiment_of(r)->bench.cache == CACHE_COLD;

    for (uint32_t i = 0; i < r->n_stages && rank_good(r); i++) {
        rank_at_stage(r, i);
        if (apart)
            rank_barrier(r);
        rank_fault(r, i);
        if (cold)
            rank_flush(r);
        rank_mark(r, 2 * i);
        rank_stage(r, i, slot);
        rank_mark(r, 2 * i + 1);
        rank_sync(r);
        rank_complete(r, i, slot);
        if (!rank_good(r))
            return;
        if (apart) /* so that no rank's experts or checks run inside another's stage */
            rank_barrier(r);
        if (check)
            rank_check(r, r->stage[i].kind, slot);
        rank_at_stage(r, SESSION_ELSEWHERE);
        rank_between(r, i, slot);
    }
    r->shared->checked += check && rank_good(r);
}

double rank_stage_ns(struct rank *r, uint32_t stage)
{
    return rank_elapsed(r, 2 * stage, 2 * stage + 1);
}

double rank_total_ns(struct rank *r)
{
    double total = 0;

    for (uint32_t i = 0; i < r->n_stages; i++)
        total += rank_stage_ns(r, i);
    return total;
}
