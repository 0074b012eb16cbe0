/* epa2a_moe_*, dispatch and combine as an algorithm.
 *
 * Dispatches use memory of the caller and memory of the library in turn, so that both forms of outputs
 * are in use, with views of the heap where the library has them. The weights of a layout of experts
 * belong to the dispatch or, where the algorithm allows this, to the combine, in turn too.
 *
 * The sources of rows cost a kernel on a device and a read of each row on hosts, so only the first
 * dispatch of inputs requests them (caller_views.h). */
#include "caller/caller_moe.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "caller/caller_memory.h"
#include "caller/caller_shape.h"
#include "caller/caller_status.h"
#include "caller/caller_views.h"

enum { SETS = 2, STAGES = 4 };

/* Output of one dispatch. `memory` has all arrays of the caller. */
struct set {
    struct epa2a_received memory, got;
    struct epa2a_tokens in;
    struct epa2a_outputs outputs;
    bool own; /* `got` points to memory of the caller */
    bool late_weights;
};

struct moe {
    struct caller_object base; /* first */
    struct epa2a_moe *object;
    const struct op_slot *slot; /* of the operation */
    struct epa2a_need need;
    bool by_rank, fp8, weights_may_be_late;
    uint32_t local, ranks, topk, groups, sets;
    size_t row_bytes;
    uint64_t dispatches;
    struct set set[SETS];
    struct set **of_slot; /* [slots]: output of the last dispatch of a slot */
    struct caller_views *views;
    struct epa_stage stage[STAGES];
};

static struct moe *moe_of(struct epa_algorithm *a)
{
    return (struct moe *)(void *)a;
}

/* The problem is the first member of its slot. */
static const struct op_slot *slot_of(const struct epa_problem *problem)
{
    return (const void *)problem;
}

static uint32_t slot_number(const struct moe *moe, const struct epa_problem *problem)
{
    return (uint32_t)(slot_of(problem) - moe->slot);
}

static struct set **set_of(struct moe *moe, const struct epa_problem *problem)
{
    return &moe->of_slot[slot_number(moe, problem)];
}

/* ---- dispatch ---- */

/* Selects the memory of the next dispatch. */
static struct set *begin_set(struct moe *moe, const struct epa_problem *problem)
{
    uint64_t n = moe->dispatches++;
    struct set *s = &moe->set[n % moe->sets];
    bool known =
        caller_views_known(moe->views, slot_number(moe, problem), slot_of(problem)->iteration);

    s->own = !moe->base.caller->params.library_memory && n / moe->sets % 2 == 0;
    s->late_weights = moe->weights_may_be_late && n / moe->sets % 2 != 0;
    s->got = (struct epa2a_received){.size = sizeof(s->got)};
    if (s->own)
        s->got = s->memory;
    if (!s->own && !known) {
        s->got.source_token = s->memory.source_token;
        s->got.source_range = s->memory.source_range;
    }
    *set_of(moe, problem) = s;
    return s;
}

static void set_tokens(struct set *s, const struct epa_moe *m)
{
    bool quantised = m->x_dtype == EPA_FP8_E4M3;

    s->in.tokens = m->tokens;
    s->in.x = quantised ? (const void *)m->x_fp8 : m->x;
    s->in.x_scale = quantised ? m->x_scale : NULL;
    s->in.topk_idx = m->expert;
    s->in.topk_idx_bytes = sizeof(*m->expert);
    s->in.topk_weight = s->late_weights ? NULL : m->weight;
}

/* Writes the views that need no conversion. */
static void set_views(const struct moe *moe, const struct set *s, struct epa_moe *m)
{
    const struct epa2a_received *got = &s->got;

    m->epoch = got->id;
    m->recv_rows = got->rows;
    m->recv_entries = got->entries;
    m->recv_count = got->count;
    m->recv_start = got->start;
    m->recv_row = moe->by_rank ? got->row : NULL;
    m->recv_source = NULL;
    m->recv = got->x;
    m->recv_stride = got->x_stride != 0 ? got->x_stride : moe->row_bytes;
    m->recv_scale = moe->fp8 ? got->x_scale : NULL;
    m->scale_stride = got->x_scale_stride != 0 ? got->x_scale_stride : moe->groups * sizeof(float);
    m->y_space = got->y;
}

static enum epa_status dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct moe *moe = moe_of(a);
    struct set *s = begin_set(moe, problem);
    int status;

    set_tokens(s, &problem->u.moe);
    status = epa2a_dispatch(moe->object, &s->in, &s->got, moe->base.caller->stream);
    if (status == EPA2A_OK)
        set_views(moe, s, &problem->u.moe);
    return caller_called(moe->base.caller, status);
}

static enum epa_status dispatch_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct moe *moe = moe_of(a);
    struct set *s = begin_set(moe, problem);

    set_tokens(s, &problem->u.moe);
    return caller_called(moe->base.caller, epa2a_dispatch_send(moe->object, &s->in, &s->got,
                                                               moe->base.caller->stream));
}

static enum epa_status dispatch_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct moe *moe = moe_of(a);
    struct set *s = *set_of(moe, problem);
    int status = epa2a_dispatch_recv(moe->object, &s->got, moe->base.caller->stream);

    if (status == EPA2A_OK)
        set_views(moe, s, &problem->u.moe);
    return caller_called(moe->base.caller, status);
}

static enum epa_status discard(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct moe *moe = moe_of(a);

    return caller_called(moe->base.caller,
                         epa2a_discard(moe->object, &(*set_of(moe, problem))->got));
}

/* ---- combine ---- */

static void set_outputs(const struct moe *moe, struct set *s, const struct epa_moe *m)
{
    s->outputs.y = m->y == s->got.y ? NULL : m->y;
    s->outputs.topk_weight = s->late_weights ? m->weight : NULL;
    s->outputs.topk_idx = s->late_weights && !moe->by_rank ? m->expert : NULL;
    s->outputs.topk_idx_bytes = sizeof(*m->expert);
    s->outputs.out = m->out;
}

static enum epa_status combine(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct moe *moe = moe_of(a);
    struct set *s = *set_of(moe, problem);

    set_outputs(moe, s, &problem->u.moe);
    return caller_called(moe->base.caller, epa2a_combine(moe->object, &s->got, &s->outputs,
                                                         moe->base.caller->stream));
}

static enum epa_status combine_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct moe *moe = moe_of(a);
    struct set *s = *set_of(moe, problem);

    set_outputs(moe, s, &problem->u.moe);
    return caller_called(moe->base.caller, epa2a_combine_send(moe->object, &s->got, &s->outputs,
                                                              moe->base.caller->stream));
}

static enum epa_status combine_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct moe *moe = moe_of(a);

    return caller_called(
        moe->base.caller,
        epa2a_combine_recv(moe->object, &(*set_of(moe, problem))->got, moe->base.caller->stream));
}

/* ---- views ---- */

static enum epa_status complete(struct caller_object *o, struct epa_problem *problem,
                                struct epa_error *err)
{
    struct moe *moe = (struct moe *)(void *)o;
    uint32_t slot = slot_number(moe, problem);
    uint64_t iteration = slot_of(problem)->iteration;
    enum epa_status status = EPA_OK;

    if (!caller_views_known(moe->views, slot, iteration))
        status = caller_sync(o->caller, err);
    if (status != EPA_OK)
        return status;
    return caller_views_complete(moe->views, slot, iteration, &(*set_of(moe, problem))->got,
                                 &problem->u.moe, err);
}

/* Memory of the library stays valid until the combine. */
static bool keeps_rows(struct caller_object *o, const struct epa_problem *problem)
{
    return (*set_of((struct moe *)(void *)o, problem))->own;
}

/* ---- creation ---- */

/* Memory of a set: the arrays of the caller at full capacity. */
struct set_array {
    void **memory;
    const char *what;
    uint64_t n;
    size_t bytes; /* of an element */
};

enum { ARRAYS = 10 };

/* Lists the arrays of a set; n 0: the dispatches use no such array of the caller. */
static void list_arrays(const struct moe *moe, struct set *s, struct set_array out[ARRAYS])
{
    struct caller *c = moe->base.caller;
    struct epa2a_received *m = &s->memory;
    uint64_t rows = moe->need.rows, entries = moe->by_rank ? moe->need.entries : 0;
    uint64_t ranges = (uint64_t)(moe->by_rank ? 1 : moe->local) * moe->ranks;
    bool own = !c->params.library_memory;
    const struct set_array list[ARRAYS] = {
        {&m->x, "received rows", own ? rows : 0, moe->row_bytes},
        {&m->x_scale, "scales of rows", own && moe->fp8 ? rows : 0, moe->groups * sizeof(float)},
        {(void **)&m->count, "counts", own ? moe->local : 0, sizeof(*m->count)},
        {(void **)&m->start, "starts", own ? moe->local : 0, sizeof(*m->start)},
        {(void **)&m->row, "rows of entries", own ? entries : 0, sizeof(*m->row)},
        {(void **)&m->topk_idx, "choices", own && moe->by_rank ? rows : 0,
         moe->topk * sizeof(*m->topk_idx)},
        {(void **)&m->topk_weight, "weights", own && moe->by_rank ? rows : 0,
         moe->topk * sizeof(*m->topk_weight)},
        {(void **)&m->source_token, "source tokens", rows, sizeof(*m->source_token)},
        {(void **)&m->source_range, "source ranges", ranges, sizeof(*m->source_range)},
        {&m->y, "expert outputs", own ? rows : 0, moe->row_bytes * (moe->fp8 ? 2 : 1)},
    };

    memcpy(out, list, sizeof(list));
}

static void free_set(const struct moe *moe, struct set *s)
{
    struct set_array array[ARRAYS];

    list_arrays(moe, s, array);
    for (uint32_t i = 0; i < ARRAYS; i++)
        caller_free(moe->base.caller, *array[i].memory);
}

static void destroy_moe(struct epa_algorithm *a)
{
    struct moe *moe = moe_of(a);

    epa2a_moe_destroy(moe->object);
    moe->base.caller->object = NULL;
    for (uint32_t i = 0; i < moe->sets; i++)
        free_set(moe, &moe->set[i]);
    caller_views_destroy(moe->views);
    free(moe->of_slot);
    free(moe);
}

static enum epa_status allocate_set(const struct moe *moe, struct set *s, struct epa_error *err)
{
    struct set_array array[ARRAYS];
    enum epa_status status = EPA_OK;

    s->memory.size = sizeof(s->memory);
    s->in.size = sizeof(s->in);
    s->outputs.size = sizeof(s->outputs);
    list_arrays(moe, s, array);
    for (uint32_t i = 0; i < ARRAYS && status == EPA_OK; i++)
        if (array[i].n != 0)
            status = caller_alloc(moe->base.caller, array[i].what, array[i].n, array[i].bytes,
                                  array[i].memory, err);
    return status;
}

/* Lists one stage for each call: halves if the algorithm has them. Stages have the names of the
 * algorithm, if it has as many, so that options such as fault.stage name the same stages. */
static void list_stages(struct moe *moe)
{
    static const struct epa_stage whole[] = {{"dispatch", EPA_STAGE_DISPATCH, dispatch},
                                             {"combine", EPA_STAGE_COMBINE, combine}};
    static const struct epa_stage halves[] = {{"dispatch_send", EPA_STAGE_SEND, dispatch_send},
                                              {"dispatch_recv", EPA_STAGE_DISPATCH, dispatch_recv},
                                              {"combine_send", EPA_STAGE_SEND, combine_send},
                                              {"combine_recv", EPA_STAGE_COMBINE, combine_recv}};
    const char *const *name = moe->base.caller->x->footprint.stages;
    bool overlaps = moe->need.overlaps != 0;
    uint32_t n = 0;

    moe->base.calls = overlaps ? 4 : 2;
    memcpy(moe->stage, overlaps ? halves : whole, overlaps ? sizeof(halves) : sizeof(whole));
    while (name != NULL && name[n] != NULL)
        n++;
    for (uint32_t i = 0; n == moe->base.calls && i < n; i++)
        moe->stage[i].name = name[i];
}

enum epa_status caller_moe_create(struct caller *c, const struct op_rank *op,
                                  struct caller_object **out, struct epa_error *err)
{
    const struct experiment *x = c->x;
    const struct epa_moe_footprint *f = &x->footprint.u.moe;
    struct moe *moe = memory_alloc(1, sizeof(*moe));
    /* On hosts the library repeats dispatches and combines where the algorithm cannot. */
    bool discards = !caller_is_on_device(c) || x->footprint.discards;
    bool combines_again = !caller_is_on_device(c) || x->footprint.combines_again;
    EPA2A_STRUCT(epa2a_moe_shape, s);
    enum epa_status status;

    caller_shape(c, &s);
    moe->base = (struct caller_object){.base = {.stages = moe->stage,
                                                .discard = discards ? discard : NULL,
                                                .combines_again = combines_again,
                                                .explain = caller_explain,
                                                .destroy = destroy_moe},
                                       .caller = c,
                                       .complete = complete,
                                       .keeps_rows = keeps_rows};
    *out = &moe->base;
    moe->slot = op->slot;
    moe->of_slot = memory_alloc(op->n_slots, sizeof(*moe->of_slot));
    moe->by_rank = f->layout == EPA_LAYOUT_RANK;
    moe->fp8 = f->recv_dtype == EPA_FP8_E4M3;
    moe->weights_may_be_late =
        !c->params.library_memory && !moe->by_rank && f->sum != EPA_SUM_BY_RANK;
    moe->local = s.experts / op->world.size;
    moe->ranks = op->world.size;
    moe->topk = s.topk;
    moe->groups = s.hidden / s.fp8_group;
    moe->row_bytes = (size_t)s.hidden * (moe->fp8 ? 1 : 2);
    moe->need.size = sizeof(moe->need);
    status = caller_set_up(c, epa2a_moe_need(c->comm, 0, EPA2A_HOST, &s, &moe->need), err);
    if (status == EPA_OK)
        status = caller_set_up(c, epa2a_moe_create(c->comm, &s, &moe->object), err);
    if (status != EPA_OK)
        return status;
    list_stages(moe);
    moe->base.base.n_stages = moe->base.calls;
    status = caller_views_create(&(struct caller_views_params){.backend = c->params.backend,
                                                               .slots = op->n_slots,
                                                               .local = moe->local,
                                                               .ranks = moe->ranks,
                                                               .topk = moe->topk,
                                                               .rows = moe->need.rows,
                                                               .entries = moe->need.entries,
                                                               .by_rank = moe->by_rank},
                                 &moe->views, err);
    for (moe->sets = 0; moe->sets < s.in_flight && status == EPA_OK; moe->sets++)
        status = allocate_set(moe, &moe->set[moe->sets], err);
    return status;
}
