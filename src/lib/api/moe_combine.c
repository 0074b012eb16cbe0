/* Combine: finds the dispatch, copies the expert outputs to the order of the algorithm, adds bias. */
#include "api/moe_combine.h"

#include "api/moe_logfmt.h"
#include "api/moe_open.h"
#include "api/moe_routing.h"
#include "api/moe_weights.h"

#include "base/dtype.h"

#include <string.h>

/* ---- the dispatch of a combine ---- */

static enum epa_status find_route(struct epa2a_moe *moe, void *memory, struct moe_target *out,
                                  struct epa_error *err)
{
    struct moe_routing *routes = moe_routing_of(moe, memory);

    if (routes == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "`routing` holds no routes of a dispatch of this moe; pass the struct "
                        "epa2a_received of the dispatch");
    *out = (struct moe_target){.record = moe_open_find_route(moe, routes->route),
                               .tokens = routes->tokens,
                               .weighted = routes->weighted != 0,
                               .expert = moe_routing_expert(routes),
                               .weight = moe_routing_weight(routes)};
    out->id = out->record != NULL ? out->record->id : 0;
    return EPA_OK;
}

static enum epa_status find_dispatch(struct epa2a_moe *moe, uint64_t id, struct moe_target *out,
                                     struct epa_error *err)
{
    struct moe_record *r = NULL;
    bool again;
    enum epa_status status = moe_open_find(moe, id, &r, &again, err);

    if (status != EPA_OK)
        return status;
    *out = (struct moe_target){.record = again ? NULL : r,
                               .id = id,
                               .tokens = r->problem.u.moe.tokens,
                               .weighted = r->weighted,
                               .expert = r->expert,
                               .weight = r->weight};
    return EPA_OK;
}

/* ---- checks ---- */

static enum epa_status check_expert_outputs(struct epa2a_moe *moe, const struct epa2a_outputs *o,
                                            const struct moe_target *t, struct epa_error *err)
{
    const struct epa_moe_footprint *f = &moe->plan.footprint.u.moe;

    if (o->out_weight != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "out_weight is for the RANK layouts; set out_weight to NULL");
    if (o->topk_weight != NULL && f->sum == EPA_SUM_BY_RANK)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s with dedup applies the weights before the outputs return; pass "
                        "topk_weight to dispatch, or set dedup=false",
                        moe->name);
    if (o->topk_weight == NULL && !t->weighted && t->tokens != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "neither the dispatch nor the combine has topk_weight; pass topk_weight to "
                        "one of them");
    return EPA_OK;
}

static enum epa_status check_rank_outputs(const struct epa2a_moe *moe,
                                          const struct epa2a_outputs *o, struct epa_error *err)
{
    if (o->topk_idx != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "topk_idx in combine is for the EXPERT layouts; set topk_idx to NULL");
    return moe_check_weights(moe, o, err);
}

static enum epa_status check_outputs(struct epa2a_moe *moe, const struct epa2a_received *got,
                                     const struct epa2a_outputs *o, const struct moe_target *t,
                                     struct epa_error *err)
{
    enum epa_status status;

    if (o->out == NULL && t->tokens != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "out is NULL, with %u tokens", t->tokens);
    if (o->y == NULL && got->y == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "y is NULL in the outputs and in the received rows; pass expert outputs");
    status = moe_check_logfmt(moe, o, err);
    if (status != EPA_OK)
        return status;
    return moe_layout_is_rank(&moe->plan.layout) ? check_rank_outputs(moe, o, err)
                                                 : check_expert_outputs(moe, o, t, err);
}

/* Reads topk_idx of a combine: the choices of the dispatch, or -1. */
static enum epa_status read_masked(struct epa2a_moe *moe, const struct epa2a_outputs *o,
                                   const struct moe_target *t, struct epa_error *err)
{
    const struct epa_moe *m = &moe->plan.problem.u.moe;
    size_t n = (size_t)t->tokens * m->topk;
    const int32_t *now;
    enum epa_status status;

    if (o->topk_idx_bytes != 4 && o->topk_idx_bytes != 8)
        return epa_fail(err, EPA_ERR_CONFIG, "topk_idx_bytes is %d; write 4 or 8",
                        o->topk_idx_bytes);
    status = tokens_read_experts(&moe->tokens, m, t->tokens, o->topk_idx, o->topk_idx_bytes,
                                 moe->masked, &now, err);
    for (size_t i = 0; i < n && status == EPA_OK; i++) {
        if (now[i] == t->expert[i])
            continue;
        if (now[i] >= 0)
            status = epa_fail(err, EPA_ERR_CONFIG,
                              "topk_idx: choice %zu of token %zu is expert %d, but was %d in the "
                              "dispatch; combine accepts the expert of the dispatch or -1",
                              i % m->topk, i / m->topk, now[i], t->expert[i]);
        else if (!moe->plan.footprint.u.moe.late_choices)
            status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                              "%s cannot drop choice %zu of token %zu after the dispatch; use "
                              "algorithm=ll_v1",
                              moe->name, i % m->topk, i / m->topk);
    }
    if (status == EPA_OK && n != 0 && now != moe->masked)
        memcpy(moe->masked, now, n * sizeof(*now));
    return status;
}

/* ---- the call ---- */

/* Opens the dispatch of the target, in order, and gives the problem its outputs. */
static enum epa_status prepare(struct epa2a_moe *moe, const struct epa2a_outputs *o, const void *y,
                               struct epa_error *err)
{
    const struct moe_target *t = &moe->target;
    struct moe_record *r = t->record;
    enum epa_status status;
    struct epa_moe *m;

    if (r != NULL) {
        status = moe_open_order(moe, r, err);
    } else {
        /* The repeated dispatch reads the choices again in combine. */
        r = &moe->lane;
        r->id = t->id;
        status = moe_open_lane(moe, t->tokens, t->expert, t->weight, err);
    }
    if (status != EPA_OK)
        return status;
    m = &r->problem.u.moe;
    m->expert = o->topk_idx != NULL ? moe->masked : t->expert;
    m->weight = t->weight;
    if (o->topk_weight != NULL && !moe_layout_is_rank(&moe->plan.layout))
        m->weight = o->topk_weight;
    m->y = y;
    if ((o->flags & EPA2A_COMBINE_LOGFMT) != 0) {
        status = moe_round_logfmt(moe, r, y, err);
    } else if (!r->places.same && y != m->y_space) {
        moe_gather_outputs(&r->places, m->hidden, y, m->y_space);
        m->y = m->y_space;
    }
    m->out = o->out;
    moe->halved = r;
    if (status == EPA_OK && moe->send[MOE_COMBINE].run != NULL)
        status = moe_stage(moe, &moe->send[MOE_COMBINE], &r->problem, err);
    return status;
}

/* Adds the bias to the rounded sums. */
static void add_bias(const struct epa2a_moe *moe)
{
    const struct epa2a_outputs *o = &moe->outputs;
    size_t n = (size_t)moe->target.tokens * moe->plan.shape.hidden;
    bool f16 = moe->plan.shape.dtype == EPA2A_F16;
    uint16_t *out = o->out;

    for (size_t i = 0; i < n && (o->bias[0] != NULL || o->bias[1] != NULL); i++) {
        float sum = float_of_word(f16, out[i]);

        for (int b = 0; b < 2; b++)
            if (o->bias[b] != NULL)
                sum += float_of_word(f16, ((const uint16_t *)o->bias[b])[i]);
        out[i] = word_of_float(f16, sum);
    }
}

enum epa_status moe_combine_send(struct epa2a_moe *moe, const struct epa2a_received *got,
                                 const struct epa2a_outputs *o, struct epa_error *err)
{
    struct moe_target *t = &moe->target;
    enum epa_status status = got->routing != NULL ? find_route(moe, got->routing, t, err)
                                                  : find_dispatch(moe, got->id, t, err);

    if (status == EPA_OK)
        status = check_outputs(moe, got, o, t, err);
    if (status == EPA_OK && o->topk_idx != NULL)
        status = read_masked(moe, o, t, err);
    if (status == EPA_OK && t->record != NULL)
        status = moe_open_check_order(moe, t->record, err);
    if (status == EPA_OK && (t->record == NULL || o->out_weight != NULL))
        status = moe_open_check_lane(moe, t->record, err);
    if (status != EPA_OK)
        return status;
    moe->outputs = *o;
    if (o->y == NULL)
        moe->outputs.y = got->y;
    moe->halved = NULL;
    if (moe->send[MOE_COMBINE].run != NULL)
        status = prepare(moe, &moe->outputs, moe->outputs.y, err);
    if (status == EPA_OK)
        moe->half = MOE_COMBINE_SENT;
    return status;
}

enum epa_status moe_combine_recv(struct epa2a_moe *moe, struct epa_error *err)
{
    struct moe_record *r;
    enum epa_status status = EPA_OK;

    moe->half = MOE_WHOLE;
    if (moe->halved == NULL)
        status = prepare(moe, &moe->outputs, moe->outputs.y, err);
    if (status != EPA_OK)
        return status;
    r = moe->halved;
    status = moe_stage(moe, &moe->recv[MOE_COMBINE], &r->problem, err);
    if (status != EPA_OK)
        return status;
    r->state = MOE_FREE;
    if (r != &moe->lane)
        moe->combined = r;
    add_bias(moe);
    return moe->outputs.out_weight != NULL ? moe_return_weights(moe, err) : EPA_OK;
}
