/* run and bench with marks around stages. */
#include "session/rank.h"

#include <stdlib.h>

/* Of each part of a stage, alone: the first ones are not counted. */
enum { PART_SAMPLES = 50, PART_WARMUP = 2 };

/* Keeps the times of the iteration that just ended. Of warm-up none are kept, but the total
 * of the very first. */
static enum epa_status keep_times(struct rank *r, uint64_t iteration, uint64_t warmup,
                                  struct epa_error *err)
{
    uint32_t me = r->boot->world.rank;
    enum epa_status status = EPA_OK;
    double ns;

    if (iteration == 0)
        status = rank_total_ns(r, &r->shared->first_ns, err);
    if (status != EPA_OK || iteration < warmup)
        return status;
    for (uint32_t i = 0; i < r->n_stages; i++) {
        status = rank_stage_ns(r, i, &ns, err);
        if (status != EPA_OK)
            return status;
        session_times(r->session, me, i)[iteration - warmup] = ns;
    }
    /* Release: pairs with the parent's read after it reaped this rank or gave it up. */
    __atomic_store_n(&r->shared->samples, iteration - warmup + 1, __ATOMIC_RELEASE);
    return EPA_OK;
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

static int compare_reals(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

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
        qsort(ns, n, sizeof(*ns), compare_reals);
        r->shared->part_ns[i] = ns[n / 2];
    }
    return EPA_OK;
}

enum epa_status rank_bench(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    const struct bench_options *o = &s->experiment->bench;
    uint64_t all = (uint64_t)s->warmup + s->iterations, i;
    enum epa_status status = EPA_OK;
    bool ends = false;

    for (uint32_t k = 0; k < o->input_sets && status == EPA_OK; k++)
        status = rank_inputs(r, k, k, err);
    for (i = 0; i < all && !ends && rank_goes_on(r, &status); i++) {
        rank_at(r, i, SESSION_ELSEWHERE);
        status = rank_iteration(r, (uint32_t)(i % o->input_sets), o->barrier, false, err);
        if (status == EPA_OK)
            status = keep_times(r, i, s->warmup, err);
        if (status == EPA_OK)
            status = rank_stop_poll(r, i < s->warmup ? 0 : i - s->warmup + 1, &ends, err);
    }
    if (!rank_goes_on(r, &status))
        return status;
    rank_describe_device(r);
    rank_at(r, i, SESSION_ELSEWHERE);
    rank_trace_pause(r);
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
        if (status == EPA_OK)
            status = keep_times(r, i, 0, err);
    }
    if (status == EPA_OK)
        rank_describe_device(r);
    return status;
}
