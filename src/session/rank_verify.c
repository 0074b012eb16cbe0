/* verify: inputs change with every iteration, and no barrier stands between them. */
#include "session/rank.h"

static bool checks(const struct session *s, uint64_t iteration)
{
    return iteration % s->experiment->verify.check_every == 0 || iteration + 1 == s->iterations;
}

/* Stages `first` to `last - 1`, and then what they did is there to be looked at. */
static enum epa_status run_stages(struct rank *r, uint64_t iteration, uint32_t slot, uint32_t first,
                                  uint32_t last, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = first; i < last && status == EPA_OK; i++) {
        rank_at(r, iteration, i);
        rank_straggle(r, iteration, i);
        status = rank_fault(r, i, err);
        if (status == EPA_OK)
            status = rank_stage(r, i, slot, err);
    }
    if (status == EPA_OK)
        status = rank_sync(r, err);
    if (status == EPA_OK)
        rank_at(r, iteration, SESSION_ELSEWHERE);
    return status;
}

static enum epa_status verify_first(struct rank *r, uint64_t iteration, uint32_t slot,
                                    struct epa_error *err)
{
    enum epa_status status;

    rank_at(r, iteration, SESSION_ELSEWHERE);
    status = rank_inputs(r, slot, iteration, err);
    if (status == EPA_OK)
        status = run_stages(r, iteration, slot, 0, r->first_stages, err);
    return status;
}

/* Nothing is left to do where the first stage was all. */
static enum epa_status verify_rest(struct rank *r, uint64_t iteration, uint32_t slot,
                                   struct epa_error *err)
{
    uint32_t first = r->first_stages, n = r->n_stages;
    bool check = checks(r->session, iteration), whole = first == n;
    enum epa_status status = EPA_OK;

    rank_at(r, iteration, SESSION_ELSEWHERE);
    if (check)
        status = rank_check(r, r->stage[first - 1].kind, slot, err);
    r->shared->checked += check && whole;
    if (status == EPA_OK)
        status = rank_between(r, first - 1, slot, err);
    if (status == EPA_OK && !whole)
        status = run_stages(r, iteration, slot, first, n, err);
    if (status == EPA_OK && check && !whole) {
        status = rank_check(r, last_kind(r), slot, err);
        r->shared->checked++;
    }
    if (status == EPA_OK)
        __atomic_store_n(&r->shared->samples, iteration + 1, __ATOMIC_RELEASE);
    return status;
}

/* Pipelined: what the first stage of iteration i left is looked at, and the rest of i done,
 * after the first stage of i + 1. */
enum epa_status rank_verify(struct rank *r, struct epa_error *err)
{
    const struct session *s = r->session;
    uint32_t ahead = s->experiment->verify.order == ORDER_PIPELINED ? 1 : 0;
    enum epa_status status = EPA_OK;

    for (uint64_t i = 0; i < (uint64_t)s->iterations + ahead && rank_goes_on(r, &status); i++) {
        if (i < s->iterations)
            status = verify_first(r, i, (uint32_t)(i % (ahead + 1)), err);
        if (status == EPA_OK && i >= ahead)
            status = verify_rest(r, i - ahead, (uint32_t)((i - ahead) % (ahead + 1)), err);
    }
    return status;
}
