/* epa2a_moe_*, dispatch and combine as an algorithm.
 *
 * Dispatches use memory of the caller and memory of the library in turn, so that both forms of outputs
 * are in use, with views of the heap where the library has them. The weights of a layout of experts
 * belong to the dispatch or, where the algorithm allows this, to the combine, in turn too. */
#include "caller/caller_moe.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "caller/caller_shape.h"
#include "caller/caller_status.h"

enum { SETS = 2, STAGES = 4 };

/* Output of one dispatch. `memory` is the form with memory of the caller. */
struct set {
    struct epa2a_received memory, got;
    struct epa2a_tokens in;
    struct epa2a_outputs outputs;
    bool own; /* `got` points to memory of the caller */
    bool late_weights;
    /* Completed views: see caller_complete(). */
    struct epa_origin *origin;
    float *weight;
    uint8_t *k;
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
    struct epa_stage stage[STAGES];
};

static struct moe *moe_of(struct epa_algorithm *a)
{
    return (struct moe *)(void *)a;
}

static struct set **set_of(struct moe *moe, const struct epa_problem *problem)
{
    /* The problem is the first member of its slot. */
    return &moe->of_slot[(const struct op_slot *)(const void *)problem - moe->slot];
}

/* ---- dispatch ---- */

/* Selects the memory of the next dispatch. */
static struct set *begin_set(struct moe *moe, const struct epa_problem *problem)
{
    uint64_t n = moe->dispatches++;
    struct set *s = &moe->set[n % moe->sets];

    s->own = !moe->base.caller->params.library_memory && n / moe->sets % 2 == 0;
    s->late_weights = moe->weights_may_be_late && n / moe->sets % 2 != 0;
    if (s->own)
        s->got = s->memory;
    else
        s->got = (struct epa2a_received){.size = sizeof(s->got)};
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
    status = epa2a_dispatch(moe->object, &s->in, &s->got, NULL);
    if (status == EPA2A_OK)
        set_views(moe, s, &problem->u.moe);
    return caller_called(moe->base.caller, status);
}

static enum epa_status dispatch_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct moe *moe = moe_of(a);
    struct set *s = begin_set(moe, problem);

    set_tokens(s, &problem->u.moe);
    return caller_called(moe->base.caller, epa2a_dispatch_send(moe->object, &s->in, &s->got, NULL));
}

static enum epa_status dispatch_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct moe *moe = moe_of(a);
    struct set *s = *set_of(moe, problem);
    int status = epa2a_dispatch_recv(moe->object, &s->got, NULL);

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
    return caller_called(moe->base.caller, epa2a_combine(moe->object, &s->got, &s->outputs, NULL));
}

static enum epa_status combine_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct moe *moe = moe_of(a);
    struct set *s = *set_of(moe, problem);

    set_outputs(moe, s, &problem->u.moe);
    return caller_called(moe->base.caller,
                         epa2a_combine_send(moe->object, &s->got, &s->outputs, NULL));
}

static enum epa_status combine_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct moe *moe = moe_of(a);

    return caller_called(moe->base.caller,
                         epa2a_combine_recv(moe->object, &(*set_of(moe, problem))->got, NULL));
}

/* ---- completed views ---- */

/* Writes the origins of the rows of one range for each source rank; `first` is the row at which the
 * ranges begin. */
static void write_origins(const struct moe *moe, const struct set *s, uint64_t first,
                          const int64_t *range)
{
    for (uint32_t r = 0; r < moe->ranks; r++) {
        uint64_t begin = first + ((uint64_t)range[r] >> 32), n = (uint32_t)range[r];

        for (uint64_t i = begin; i < begin + n && i < moe->need.rows; i++)
            s->origin[i] = (struct epa_origin){r, (uint32_t)s->got.source_token[i]};
    }
}

/* Finds the weight and the choice of each entry in the lists of its row. An entry without choice gets
 * the choice topk, which no check accepts. */
static void write_choices(const struct moe *moe, const struct set *s)
{
    const struct epa2a_received *got = &s->got;

    for (uint32_t e = 0; e < moe->local; e++)
        for (uint64_t i = got->start[e]; i < got->start[e] + got->count[e]; i++) {
            size_t at = (size_t)got->row[i] * moe->topk;
            uint32_t k = 0;

            while (k < moe->topk && got->topk_idx[at + k] != (int32_t)e)
                k++;
            s->k[i] = (uint8_t)k;
            s->weight[i] = k < moe->topk ? got->topk_weight[at + k] : 0;
        }
}

static void complete(struct caller_object *o, struct epa_problem *problem)
{
    struct moe *moe = (struct moe *)(void *)o;
    const struct set *s = *set_of(moe, problem);
    struct epa_moe *m = &problem->u.moe;

    for (uint32_t e = 0; !moe->by_rank && e < moe->local; e++)
        write_origins(moe, s, s->got.start[e], s->got.source_range + (size_t)e * moe->ranks);
    if (moe->by_rank) {
        write_origins(moe, s, 0, s->got.source_range);
        write_choices(moe, s);
    }
    m->origin = s->origin;
    m->origin_stride = sizeof(*s->origin);
    m->recv_weight = s->weight;
    m->recv_k = s->k;
}

/* Memory of the library stays valid until the combine. */
static bool keeps_rows(struct caller_object *o, const struct epa_problem *problem)
{
    return (*set_of((struct moe *)(void *)o, problem))->own;
}

/* ---- creation ---- */

static void free_set(struct set *s)
{
    free(s->memory.x);
    free(s->memory.x_scale);
    free(s->memory.count);
    free(s->memory.start);
    free(s->memory.row);
    free(s->memory.topk_idx);
    free(s->memory.topk_weight);
    free(s->memory.source_token);
    free(s->memory.source_range);
    free(s->memory.y);
    free(s->origin);
    free(s->weight);
    free(s->k);
}

static void destroy(struct epa_algorithm *a)
{
    struct moe *moe = moe_of(a);

    epa2a_moe_destroy(moe->object);
    moe->base.caller->object = NULL;
    for (uint32_t i = 0; i < moe->sets; i++)
        free_set(&moe->set[i]);
    free(moe->of_slot);
    free(moe);
}

static void allocate_set(const struct moe *moe, struct set *s)
{
    size_t rows = moe->need.rows, entries = moe->need.entries, row = moe->row_bytes;
    size_t choices = rows * moe->topk, ranges = (moe->by_rank ? 1 : moe->local) * moe->ranks;
    struct epa2a_received *m = &s->memory;

    *m = (struct epa2a_received){.size = sizeof(*m)};
    s->in.size = sizeof(s->in);
    s->outputs.size = sizeof(s->outputs);
    s->origin = memory_alloc(rows, sizeof(*s->origin));
    if (moe->by_rank) {
        s->weight = memory_alloc(entries, sizeof(*s->weight));
        s->k = memory_alloc(entries, sizeof(*s->k));
    }
    if (moe->base.caller->params.library_memory)
        return;
    m->x = memory_alloc(rows, row);
    m->x_scale = moe->fp8 ? memory_alloc(rows * moe->groups, sizeof(float)) : NULL;
    m->count = memory_alloc(moe->local, sizeof(*m->count));
    m->start = memory_alloc(moe->local, sizeof(*m->start));
    m->source_token = memory_alloc(rows, sizeof(*m->source_token));
    m->source_range = memory_alloc(ranges, sizeof(*m->source_range));
    m->y = memory_alloc(rows, row * (moe->fp8 ? 2 : 1));
    if (!moe->by_rank)
        return;
    m->row = memory_alloc(entries, sizeof(*m->row));
    m->topk_idx = memory_alloc(choices, sizeof(*m->topk_idx));
    m->topk_weight = memory_alloc(choices, sizeof(*m->topk_weight));
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
    EPA2A_STRUCT(epa2a_moe_shape, s);
    enum epa_status status;

    caller_shape(c, &s);
    moe->base = (struct caller_object){.base = {.stages = moe->stage,
                                                .discard = discard,
                                                .combines_again = true,
                                                .explain = caller_explain,
                                                .destroy = destroy},
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
    for (moe->sets = 0; moe->sets < s.in_flight; moe->sets++)
        allocate_set(moe, &moe->set[moe->sets]);
    return EPA_OK;
}
