/* Open dispatches: see moe_state.h. All functions make the same decisions on all ranks. */
#include "api/moe_open.h"

#include "api/object.h"

#include "ep/ep_explain.h"

enum epa_status moe_stage(struct epa2a_moe *moe, const struct epa_stage *stage,
                          struct epa_problem *problem, struct epa_error *err)
{
    return object_stage_status(ep_call(&moe->ep, stage, problem, err), err);
}

enum epa_status moe_progress(struct epa2a_moe *moe, struct epa_error *err)
{
    struct epa_transport *t = moe->ep.transport;

    return moe->halved == NULL ? EPA_OK : ep_explain_transport(&moe->ep, t->ops->progress(t), err);
}

enum epa_status moe_run(struct epa2a_moe *moe, int which, struct epa_problem *problem,
                        struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    if (moe->send[which].run != NULL)
        status = moe_stage(moe, &moe->send[which], problem, err);
    if (status == EPA_OK)
        status = moe_stage(moe, &moe->recv[which], problem, err);
    return status;
}

/* Ends a dispatch without a combine of the caller: by discard, or by a combine of arbitrary
 * outputs. */
static enum epa_status close_record(struct epa2a_moe *moe, struct moe_record *r,
                                    struct epa_error *err)
{
    struct epa_moe *m = &r->problem.u.moe;
    enum epa_status status;

    if (moe->ep.algorithm->discard != NULL && m->epoch == moe->last_epoch) {
        status = ep_discard(&moe->ep, &r->problem, err);
    } else {
        m->expert = r->sent_expert;
        m->wide = false;
        m->weight = r->sent_weight;
        m->y = m->y_space;
        m->out = moe->scratch;
        status = moe_run(moe, MOE_COMBINE, &r->problem, err);
    }
    if (status == EPA_OK)
        r->state = MOE_FREE;
    return status;
}

/* Returns the open or lingering record of the oldest dispatch before `epoch`; NULL: none. */
static struct moe_record *oldest_before(struct epa2a_moe *moe, uint64_t epoch)
{
    struct moe_record *oldest = NULL;

    for (uint32_t i = 0; i < moe->sets; i++) {
        struct moe_record *r = &moe->record[i];

        if (r->state != MOE_FREE && r->problem.u.moe.epoch < epoch &&
            (oldest == NULL || r->problem.u.moe.epoch < oldest->problem.u.moe.epoch))
            oldest = r;
    }
    return oldest;
}

enum epa_status moe_open_check_order(const struct epa2a_moe *moe, const struct moe_record *record,
                                     struct epa_error *err)
{
    uint64_t epoch = record->problem.u.moe.epoch;

    for (uint32_t i = 0; i < moe->sets; i++)
        if (moe->record[i].state == MOE_OPEN && moe->record[i].problem.u.moe.epoch < epoch)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "dispatch %llu precedes dispatch %llu and has no combine; combine it "
                            "first, or pass `routing` to all dispatches",
                            (unsigned long long)moe->record[i].id, (unsigned long long)record->id);
    return EPA_OK;
}

enum epa_status moe_open_order(struct epa2a_moe *moe, const struct moe_record *record,
                               struct epa_error *err)
{
    uint64_t epoch = record->problem.u.moe.epoch;
    struct moe_record *r;
    enum epa_status status = EPA_OK;

    while (status == EPA_OK && (r = oldest_before(moe, epoch)) != NULL)
        status = close_record(moe, r, err);
    return status;
}

/* Returns a free record, the one with the oldest dispatch; NULL: none. The memory of a later
 * dispatch stays valid longer. */
static struct moe_record *find_free_record(struct epa2a_moe *moe)
{
    struct moe_record *found = NULL;

    for (uint32_t i = 0; i < moe->sets; i++) {
        struct moe_record *r = &moe->record[i];

        if (r->state == MOE_FREE && (found == NULL || r->id < found->id))
            found = r;
    }
    return found;
}

/* Returns the record that moe_open_record() will select; NULL: all sets are open. */
static struct moe_record *next_record(struct epa2a_moe *moe)
{
    struct moe_record *r = find_free_record(moe);

    if (r == NULL)
        r = oldest_before(moe, UINT64_MAX);
    return r != NULL && r->state == MOE_OPEN ? NULL : r;
}

enum epa_status moe_open_record(struct epa2a_moe *moe, struct moe_record **out,
                                struct epa_error *err)
{
    struct moe_record *r = next_record(moe), *oldest = oldest_before(moe, UINT64_MAX);
    enum epa_status status = EPA_OK;

    if (r == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%u dispatch%s open, the limit in_flight of the shape; combine or discard "
                        "dispatch %llu first",
                        moe->sets, moe->sets == 1 ? " is" : "es are",
                        (unsigned long long)oldest->id);
    if (r->state == MOE_LINGERS)
        status = close_record(moe, r, err);
    if (status == EPA_OK)
        *out = r;
    return status;
}

enum epa_status moe_open_find(struct epa2a_moe *moe, uint64_t id, struct moe_record **out,
                              bool *again, struct epa_error *err)
{
    struct moe_record *r = NULL;

    for (uint32_t i = 0; i < moe->sets; i++)
        if (moe->record[i].state == MOE_OPEN && moe->record[i].id == id)
            r = &moe->record[i];
    *again = r == NULL && moe->combined != NULL && moe->combined->id == id;
    r = *again ? moe->combined : r;
    if (r == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "dispatch %llu is not open, and is not the last combined dispatch; pass "
                        "`routing` to a dispatch that needs several combines",
                        (unsigned long long)id);
    *out = r;
    return EPA_OK;
}

struct moe_record *moe_open_find_route(struct epa2a_moe *moe, uint64_t route)
{
    struct moe_record *newest = NULL;

    for (uint32_t i = 0; i < moe->sets; i++) {
        struct moe_record *r = &moe->record[i];

        if (r->state != MOE_FREE && r->route == route && (newest == NULL || r->id > newest->id))
            newest = r;
    }
    return newest;
}

enum epa_status moe_open_check_lane(const struct epa2a_moe *moe, const struct moe_record *except,
                                    struct epa_error *err)
{
    for (uint32_t i = 0; i < moe->sets; i++)
        if (moe->record[i].state == MOE_OPEN && &moe->record[i] != except)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s has to repeat a dispatch for this call, but dispatch %llu has no "
                            "combine; combine it first, or pass `routing` to all dispatches",
                            moe->name, (unsigned long long)moe->record[i].id);
    return EPA_OK;
}

enum epa_status moe_open_lane(struct epa2a_moe *moe, uint32_t tokens, const int32_t *expert,
                              const float *weight, struct epa_error *err)
{
    struct epa_problem *problem = &moe->lane.problem;
    struct epa_moe *m = &problem->u.moe;
    struct moe_record *r;
    enum epa_status status = EPA_OK;

    while (status == EPA_OK && (r = oldest_before(moe, UINT64_MAX)) != NULL)
        status = close_record(moe, r, err);
    if (status != EPA_OK)
        return status;
    *problem = moe->plan.problem;
    m->tokens = tokens;
    m->x = moe->scratch;
    m->expert = expert;
    m->weight = weight;
    status = moe_run(moe, MOE_DISPATCH, problem, err);
    if (status != EPA_OK)
        return status;
    moe->last_epoch = m->epoch;
    return moe->device != NULL ? EPA_OK : moe_places_find(&moe->lane.places, m, err);
}

enum epa_status moe_open_discard(struct epa2a_moe *moe, const struct epa2a_received *got,
                                 struct epa_error *err)
{
    struct moe_record *r = NULL;

    for (uint32_t i = 0; i < moe->sets; i++)
        if (moe->record[i].state != MOE_FREE && moe->record[i].id == got->id)
            r = &moe->record[i];
    if (r == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "dispatch %llu is not open",
                        (unsigned long long)got->id);
    if (r->id != moe->dispatches)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "dispatch %llu is not the last dispatch; the last is %llu",
                        (unsigned long long)r->id, (unsigned long long)moe->dispatches);
    r->state = MOE_LINGERS;
    if (moe->ep.algorithm->discard != NULL && r->problem.u.moe.epoch == moe->last_epoch)
        return close_record(moe, r, err);
    return EPA_OK;
}
