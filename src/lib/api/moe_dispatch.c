/* Dispatch: checks and conversion of the tokens, the stages of the algorithm, and delivery. */
#include "api/moe_dispatch.h"

#include "api/moe_open.h"
#include "api/moe_outputs.h"
#include "api/moe_routing.h"

#include "api/struct_size.h"

#include <string.h>

/* ---- input ---- */

/* Quantises the tokens with power-of-two scales. */
static void quantise_tokens(struct epa2a_moe *moe, const struct moe_form *f, struct epa_moe *m)
{
    for (uint32_t t = 0; t < m->tokens; t++)
        moe_form_quantise(f, (const uint16_t *)m->x + (size_t)t * f->hidden,
                          moe->codes + (size_t)t * f->hidden,
                          moe->code_scales + (size_t)t * moe_form_groups(f));
    m->x = NULL;
    m->x_fp8 = moe->codes;
    m->x_scale = moe->code_scales;
    m->x_dtype = EPA_FP8_E4M3;
}

/* Checks that scales of the caller are powers of two. */
static enum epa_status check_scales(const struct epa2a_moe *moe, const struct moe_form *f,
                                    const struct epa_moe *m, struct epa_error *err)
{
    struct moe_form exponents = *f;

    exponents.ue8m0 = true;
    for (uint32_t t = 0; t < m->tokens; t++)
        if (!moe_form_scales(&exponents, m->x_scale + (size_t)t * moe_form_groups(f),
                             (uint32_t *)(void *)moe->scales))
            return epa_fail(
                err, EPA_ERR_CONFIG,
                "x_scale of token %u has a scale that is not a power of two from 2^-126 "
                "to 2^127; leave out EPA2A_SCALE_POW2 and EPA2A_SCALE_UE8M0, or pass x "
                "in dtype",
                t);
    return EPA_OK;
}

/* Copies choices and weights, which the combine reads after the memory of the caller may have
 * changed. */
static enum epa_status copy_choices(struct epa2a_moe *moe, struct moe_input *in,
                                    struct epa_error *err)
{
    const struct epa_moe *m = &in->m;
    size_t n = (size_t)m->tokens * m->topk;

    in->weighted = m->weight != NULL;
    if (!in->weighted && moe->plan.footprint.u.moe.sum == EPA_SUM_BY_RANK && n != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s with dedup applies the weights before the outputs return and needs "
                        "topk_weight in dispatch; pass topk_weight, or set dedup=false",
                        moe->name);
    if (n == 0)
        return EPA_OK;
    memcpy(in->expert, m->expert, n * sizeof(*in->expert));
    if (in->weighted)
        memcpy(in->weight, m->weight, n * sizeof(*in->weight));
    else
        memset(in->weight, 0, n * sizeof(*in->weight));
    return EPA_OK;
}

/* Checks and converts the tokens. routes: they replace the choices and weights; or NULL. */
static enum epa_status read_input(struct epa2a_moe *moe, const struct epa2a_tokens *from,
                                  struct moe_routing *routes, struct epa_error *err)
{
    struct moe_input *in = &moe->input;
    struct epa2a_tokens t, read;
    enum epa_status status = struct_read(&t, sizeof(t), from, "epa2a_tokens", err);

    if (status != EPA_OK)
        return status;
    if (routes != NULL) {
        if (routes->tokens != t.tokens)
            return epa_fail(
                err, EPA_ERR_CONFIG,
                "%u tokens cannot follow routes of %u tokens; pass as many tokens as in "
                "the dispatch of the routes",
                t.tokens, routes->tokens);
        t.topk_idx = moe_routing_expert(routes);
        t.topk_idx_bytes = sizeof(int32_t);
        t.topk_weight = routes->weighted != 0 ? moe_routing_weight(routes) : NULL;
    }
    in->m = moe->plan.problem.u.moe;
    in->seen = t.seen;
    status =
        moe_form_select(&in->m, moe->plan.footprint.u.moe.recv_dtype, moe->plan.shape.recv_dtype,
                        t.flags, t.x_scale != NULL, moe->name, &in->form, err);
    if (status == EPA_OK)
        status = tokens_read(&moe->tokens, &t, &read, &in->m, err);
    if (status == EPA_OK)
        status = copy_choices(moe, in, err);
    if (status != EPA_OK || !in->form.sent_fp8 || !in->form.pow2)
        return status;
    if (t.x_scale != NULL)
        return check_scales(moe, &in->form, &in->m, err);
    quantise_tokens(moe, &in->form, &in->m);
    return EPA_OK;
}

/* ---- routes ---- */

static void write_routes(struct epa2a_moe *moe, struct moe_routing *to)
{
    const struct epa2a_moe_shape *s = &moe->plan.shape;
    const struct moe_input *in = &moe->input;
    size_t n = (size_t)in->m.tokens * s->topk;

    *to = (struct moe_routing){.magic = MOE_ROUTING_MAGIC,
                               .owner = moe->owner,
                               .route = in->route,
                               .max_tokens = s->max_tokens,
                               .topk = s->topk,
                               .tokens = in->m.tokens,
                               .weighted = in->weighted};
    memcpy(moe_routing_expert(to), in->expert, n * sizeof(*in->expert));
    memcpy(moe_routing_weight(to), in->weight, n * sizeof(*in->weight));
}

/* ---- calls ---- */

/* Turns the converted input into the input of a dispatch that `r` describes. */
static void begin_record(struct epa2a_moe *moe, struct moe_record *r)
{
    struct moe_input *in = &moe->input;
    int32_t *expert = r->expert;
    float *weight = r->weight;
    struct epa_moe *m = &r->problem.u.moe;

    r->id = ++moe->dispatches;
    r->weighted = in->weighted;
    r->expert = in->expert;
    r->weight = in->weight;
    in->expert = expert;
    in->weight = weight;
    r->problem.op = EPA_OP_MOE;
    *m = in->m;
    m->expert = r->sent_expert = r->expert;
    m->weight = r->sent_weight = r->weight;
    moe->combined = NULL;
}

/* Finds a record and runs the first stage. */
static enum epa_status start(struct epa2a_moe *moe, struct epa2a_received *got,
                             struct epa_error *err)
{
    struct moe_record *r = NULL;
    enum epa_status status = moe_open_record(moe, &r, err);

    if (status != EPA_OK)
        return status;
    r->route = moe->input.route;
    status = moe_outputs_prepare(moe, &moe->input.form, r, got, err);
    if (status != EPA_OK)
        return status;
    if (moe->routing != NULL)
        write_routes(moe, moe->routing);
    begin_record(moe, r);
    moe->halved = r;
    r->state = MOE_OPEN;
    if (moe->send[MOE_DISPATCH].run != NULL)
        status = moe_stage(moe, &moe->send[MOE_DISPATCH], &r->problem, err);
    moe->last_epoch = r->problem.u.moe.epoch;
    return status;
}

static enum epa_status finish(struct epa2a_moe *moe, struct epa2a_received *got,
                              struct epa_error *err)
{
    struct moe_record *r = moe->halved;
    enum epa_status status = moe_stage(moe, &moe->recv[MOE_DISPATCH], &r->problem, err);

    if (status != EPA_OK)
        return status;
    moe->last_epoch = r->problem.u.moe.epoch;
    if (r->route != 0)
        r->state = MOE_LINGERS;
    return moe_outputs_fill(moe, &moe->input, r, got, err);
}

enum epa_status moe_dispatch_send(struct epa2a_moe *moe, const struct epa2a_tokens *t,
                                  struct epa2a_received *got, bool again, struct epa_error *err)
{
    struct moe_routing *routes = NULL;
    enum epa_status status;

    if (again) {
        routes = moe_routing_of(moe, got->routing);
        if (routes == NULL)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "`routing` holds no routes of a dispatch of this moe; pass the memory "
                            "that was `routing` of an earlier dispatch");
    }
    status = read_input(moe, t, routes, err);
    if (status != EPA_OK)
        return status;
    moe->routing = again ? NULL : got->routing;
    moe->input.route = again ? routes->route : got->routing != NULL ? ++moe->routes : 0;
    moe->halved = NULL;
    if (moe->send[MOE_DISPATCH].run != NULL)
        status = start(moe, got, err);
    if (status == EPA_OK)
        moe->half = MOE_DISPATCH_SENT;
    return status;
}

enum epa_status moe_dispatch_recv(struct epa2a_moe *moe, struct epa2a_received *got,
                                  struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    moe->half = MOE_WHOLE;
    if (moe->halved == NULL)
        status = start(moe, got, err);
    else /* the caller may pass another struct than to send */
        status = moe_outputs_prepare(moe, &moe->input.form, moe->halved, got, err);
    return status == EPA_OK ? finish(moe, got, err) : status;
}
