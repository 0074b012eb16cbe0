/* Creation of a moe: its transport, algorithm and work space. */
#include "api/moe_create.h"

#include "api/moe_outputs.h"

#include <stdlib.h>
#include <string.h>

/* Groups the stages into dispatch and combine, each with or without a SEND stage before it. */
static enum epa_status find_stages(struct epa2a_moe *moe, struct epa_error *err)
{
    const struct epa_algorithm *a = moe->ep.algorithm;
    const enum epa_stage_kind kind[] = {EPA_STAGE_DISPATCH, EPA_STAGE_COMBINE};
    uint32_t at = 0;

    for (int i = 0; i < 2; i++) {
        if (at < a->n_stages && a->stages[at].kind == EPA_STAGE_SEND)
            moe->send[i] = a->stages[at++];
        if (at < a->n_stages && a->stages[at].kind == kind[i])
            moe->recv[i] = a->stages[at++];
    }
    if (at != a->n_stages || moe->recv[0].run == NULL || moe->recv[1].run == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "algorithm %s has no dispatch and combine; use ll_v1, ll_v2 or token_flag",
                        moe->name);
    return EPA_OK;
}

static bool allocate_record(struct epa2a_moe *moe, struct moe_record *r, bool choices,
                            enum epa_status *status, struct epa_error *err)
{
    size_t n = (size_t)moe->plan.shape.max_tokens * moe->plan.shape.topk;

    if (*status == EPA_OK)
        *status = moe_places_init(&r->places, &moe->plan.layout, err);
    if (*status != EPA_OK || !choices)
        return *status == EPA_OK;
    r->expert = calloc(n, sizeof(*r->expert));
    r->weight = calloc(n, sizeof(*r->weight));
    return r->expert != NULL && r->weight != NULL;
}

/* Returns zeroed memory of the device; NULL after a failure, which *status holds. */
static void *allocate_there(struct epa2a_moe *moe, size_t bytes, enum epa_status *status)
{
    void *memory = NULL;

    if (*status == EPA_OK)
        *status = moe->device->ops->alloc(moe->device, bytes, &memory);
    return memory;
}

/* RANK: memory for rows in FP8 that the library quantises, and for scales in another form. */
static void allocate_formed(struct epa2a_moe *moe, struct moe_record *r, enum epa_status *status)
{
    size_t scales = moe_outputs_bytes(&moe->plan, MOE_X_SCALE);

    if (scales == 0) /* a short row has no group of scales */
        return;
    if (moe->plan.footprint.u.moe.recv_dtype != EPA_FP8_E4M3)
        r->formed = allocate_there(moe, moe_outputs_bytes(&moe->plan, MOE_X) / 2, status);
    r->formed_scale = allocate_there(moe, scales, status);
}

/* On a device, the algorithm holds the rows, and the caller holds most inputs. */
static enum epa_status allocate_on_device(struct epa2a_moe *moe, struct epa_error *err)
{
    const struct epa_moe *m = &moe->plan.problem.u.moe;
    size_t choices = (size_t)m->max_tokens * m->topk;
    enum epa_status status = EPA_OK;

    moe->no_weight = allocate_there(moe, choices * sizeof(float), &status);
    moe->masked = allocate_there(moe, choices * sizeof(int32_t), &status);
    moe->scratch = allocate_there(moe, 2 * (size_t)m->max_tokens * m->hidden, &status);
    if (moe->plan.footprint.u.moe.recv_dtype == EPA_FP8_E4M3) {
        size_t groups = m->hidden / m->fp8_group_size;

        moe->codes = allocate_there(moe, (size_t)m->max_tokens * m->hidden, &status);
        moe->code_scales = allocate_there(moe, m->max_tokens * groups * sizeof(float), &status);
    }
    for (uint32_t i = 0; i < moe->sets; i++) {
        struct moe_record *r = &moe->record[i];

        r->expert = allocate_there(moe, choices * sizeof(int32_t), &status);
        r->weight = allocate_there(moe, choices * sizeof(float), &status);
        if (moe_layout_is_rank(&moe->plan.layout))
            allocate_formed(moe, r, &status);
    }
    if (status != EPA_OK) {
        moe->device->ops->explain(moe->device, err);
        return status;
    }
    status = tokens_init(&moe->tokens, m, EPA_MEMORY_CUDA, err);
    /* Groups of fewer channels have more bytes of scales than the half of the memory. */
    if (status == EPA_OK && m->fp8_group_size >= sizeof(float))
        moe->tokens.dense = moe->scratch;
    return status;
}

static void free_on_device(struct epa2a_moe *moe)
{
    struct epa_backend *b = moe->device;

    for (uint32_t i = 0; i < MOE_SETS; i++) {
        struct moe_record *r = &moe->record[i];

        b->ops->free(b, r->expert);
        b->ops->free(b, r->weight);
        b->ops->free(b, r->formed);
        b->ops->free(b, r->formed_scale);
    }
    b->ops->free(b, moe->no_weight);
    b->ops->free(b, moe->masked);
    b->ops->free(b, moe->scratch);
    b->ops->free(b, moe->codes);
    b->ops->free(b, moe->code_scales);
}

static enum epa_status allocate_work(struct epa2a_moe *moe, struct epa_error *err)
{
    const struct epa2a_moe_shape *s = &moe->plan.shape;
    size_t tokens = s->max_tokens, n = tokens * s->topk, groups = s->hidden / s->fp8_group + 1;
    enum epa_status status = EPA_OK;
    bool done = allocate_record(moe, &moe->lane, false, &status, err);

    for (uint32_t i = 0; i < moe->sets && done; i++)
        done = allocate_record(moe, &moe->record[i], true, &status, err);
    if (status != EPA_OK)
        return status;
    moe->input.expert = calloc(n, sizeof(*moe->input.expert));
    moe->input.weight = calloc(n, sizeof(*moe->input.weight));
    moe->masked = calloc(n, sizeof(*moe->masked));
    moe->scales = calloc(2 * groups, sizeof(*moe->scales));
    moe->scratch = calloc(tokens, 2 * (size_t)s->hidden);
    moe->codes = calloc(tokens, s->hidden);
    moe->code_scales = calloc(tokens, groups * sizeof(*moe->code_scales));
    if (!done || moe->input.expert == NULL || moe->input.weight == NULL || moe->masked == NULL ||
        moe->scales == NULL || moe->scratch == NULL || moe->codes == NULL ||
        moe->code_scales == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the work space of a moe");
    return tokens_init(&moe->tokens, &moe->plan.problem.u.moe, EPA_MEMORY_HOST, err);
}

static void free_record(struct moe_record *r)
{
    moe_outputs_free(r);
    moe_places_finish(&r->places);
    free(r->expert);
    free(r->weight);
}

static void free_on_host(struct epa2a_moe *moe)
{
    for (uint32_t i = 0; i < MOE_SETS; i++)
        free_record(&moe->record[i]);
    free_record(&moe->lane);
    free(moe->input.expert);
    free(moe->input.weight);
    free(moe->masked);
    free(moe->scales);
    free(moe->scratch);
    free(moe->codes);
    free(moe->code_scales);
}

void moe_free(struct epa2a_moe *moe)
{
    if (moe == NULL)
        return;
    if (moe->ep.algorithm != NULL)
        ep_remove_algorithm(moe->ep.comm, moe->ep.algorithm);
    ep_destroy(&moe->ep);
    ep_close(&moe->ep);
    if (moe->device != NULL)
        free_on_device(moe);
    else
        free_on_host(moe);
    moe_routes_finish(&moe->list);
    tokens_finish(&moe->tokens);
    free(moe);
}

enum epa_status moe_make(const struct moe_plan *plan, struct epa_backend *backend,
                         struct epa2a_moe **out, struct epa_error *err)
{
    struct epa2a_moe *moe = calloc(1, sizeof(*moe));
    enum epa_status status;

    if (moe == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a moe");
    moe->plan = *plan;
    moe->name = plan->algorithm.plugin->name;
    moe->sets = plan->shape.in_flight;
    moe->device = backend->memory == EPA_MEMORY_HOST ? NULL : backend;
    /* The time differs between two moes at the same address. */
    moe->owner = epa_now_ns() ^ (uintptr_t)moe;
    status = moe->device != NULL ? allocate_on_device(moe, err) : allocate_work(moe, err);
    if (status != EPA_OK) {
        moe_free(moe);
        return status;
    }
    *out = moe;
    return EPA_OK;
}

enum epa_status moe_open(struct epa2a_moe *moe, struct ep_comm *comm,
                         const struct ep_transport_params *transport, struct epa_error *err)
{
    struct ep_transport_params t = *transport;
    enum epa_status status;

    t.heap_bytes = moe->plan.footprint.heap_bytes;
    t.signals = moe->plan.footprint.signals;
    status = ep_open(&moe->ep, comm, &t, err);
    if (status == EPA_OK)
        status = ep_create(&moe->ep,
                           &(struct ep_algorithm_params){
                               .algorithm = moe->plan.algorithm,
                               .problem = &moe->plan.problem,
                               .transport_flags = moe->plan.transport_flags,
                               .footprint = &moe->plan.footprint,
                           },
                           err);
    if (moe->ep.algorithm != NULL)
        ep_add_algorithm(moe->ep.comm, moe->ep.algorithm);
    return status == EPA_OK ? find_stages(moe, err) : status;
}
