/* bench.clock: end_to_end. A sample lasts from one barrier of all ranks to the next, as rank 0
 * reads its clock, and holds all stages and the experts: what a program waits for when it calls
 * a layer now and then. Launches, skew between ranks and the second barrier are in it; single
 * stages cannot be told from it.
 *
 * With bench.cache: cold caches are flushed before the first barrier, so that no rank's flush
 * is in another rank's time. */
#include "session/rank.h"

#include "base/clock.h"

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

static enum epa_status run_sample(struct rank *r, uint32_t slot, uint64_t *ns,
                                  struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    uint64_t start;

    if (experiment_of(r)->bench.cache == CACHE_COLD)
        status = rank_explain(r, r->backend->ops->flush_cache(r->backend), err);

    if (status == EPA_OK)
        status = rank_sync(r, err);
    if (status == EPA_OK)
        status = rank_barrier(r, err);
    if (status != EPA_OK)
        return status;
    start = clock_ns();
    status = run_layer(r, slot, err);
    *ns = clock_ns() - start;
    return status;
}

/* The times of ranks other than 0 are not looked at. */
static void keep_time(struct rank *r, uint64_t iteration, uint64_t warmup, uint64_t ns)
{
    uint32_t me = r->boot->world.rank;

    if (iteration == 0 && me == 0)
        r->shared->first_ns = (double)ns;
    if (iteration < warmup)
        return;
    session_times(r->session, me, FIGURE_END_TO_END)[iteration - warmup] = (double)ns;
    /* Release: pairs with the parent's read after it reaped this rank or gave it up. */
    __atomic_store_n(&r->shared->samples, iteration - warmup + 1, __ATOMIC_RELEASE);
}

enum epa_status rank_bench_end_to_end(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    uint32_t inputs = s->experiment->bench.input_sets;
    uint64_t all = (uint64_t)s->warmup + s->iterations, i, ns = 0;
    enum epa_status status = EPA_OK;
    bool ends = false;

    for (uint32_t k = 0; k < inputs && status == EPA_OK; k++)
        status = rank_inputs(r, k, k, err);
    for (i = 0; i < all && !ends && rank_goes_on(r, &status); i++) {
        rank_at(r, i, SESSION_ELSEWHERE);
        status = run_sample(r, (uint32_t)(i % inputs), &ns, err);
        if (status == EPA_OK)
            keep_time(r, i, s->warmup, ns);
        if (status == EPA_OK)
            status = rank_stop_poll(r, i < s->warmup ? 0 : i - s->warmup + 1, &ends, err);
    }
    if (!rank_goes_on(r, &status))
        return status;
    rank_describe_device(r);
    rank_at(r, i, SESSION_ELSEWHERE);
    rank_trace_pause(r);
    return rank_check_once(r, i, err);
}
