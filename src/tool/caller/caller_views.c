/* Completes the views of dispatches. The lists of a device are copied to host memory, converted there,
 * and the results are copied back, since checks and experts read views in memory of the backend. */
#include "caller/caller_views.h"

#include <stdlib.h>

#include "base/memory.h"

/* The lists of epa2a_received that the conversion reads. */
enum list { COUNT, START, SOURCE_TOKEN, SOURCE_RANGE, ROW, TOPK_IDX, TOPK_WEIGHT, LISTS };

/* Views of a slot. */
struct slot_views {
    struct op_buffer origin, weight, k;
    uint64_t iteration; /* of the inputs */
    bool known;
};

struct caller_views {
    struct caller_views_params p;
    struct slot_views *slot; /* [slots] */
    void *copy[LISTS];       /* host copies of the lists of a device; NULL on hosts */
};

static bool on_device(const struct caller_views *v)
{
    return v->p.backend->memory != EPA_MEMORY_HOST;
}

/* Returns the bytes of a list at full capacity; 0: the layout has no such list. */
static size_t list_bytes(const struct caller_views_params *p, enum list list)
{
    const size_t choices = p->rows * p->topk;
    const size_t bytes[LISTS] = {
        [COUNT] = p->local * sizeof(uint32_t),
        [START] = p->local * sizeof(uint64_t),
        [SOURCE_TOKEN] = p->rows * sizeof(int32_t),
        [SOURCE_RANGE] = (size_t)(p->by_rank ? 1 : p->local) * p->ranks * sizeof(int64_t),
        [ROW] = p->by_rank ? p->entries * sizeof(uint32_t) : 0,
        [TOPK_IDX] = p->by_rank ? choices * sizeof(int32_t) : 0,
        [TOPK_WEIGHT] = p->by_rank ? choices * sizeof(float) : 0,
    };

    return bytes[list];
}

enum epa_status caller_views_create(const struct caller_views_params *p, struct caller_views **out,
                                    struct epa_error *err)
{
    struct caller_views *v = memory_alloc(1, sizeof(*v));
    enum epa_status status = EPA_OK;

    v->p = *p;
    v->slot = memory_alloc(p->slots, sizeof(*v->slot));
    *out = v;
    for (enum list i = COUNT; i < LISTS && on_device(v); i++)
        v->copy[i] = memory_alloc(1, list_bytes(p, i));
    for (uint32_t i = 0; i < p->slots && status == EPA_OK; i++) {
        struct slot_views *s = &v->slot[i];

        status = op_buffer_alloc(p->backend, "the origins of rows",
                                 p->rows * sizeof(struct epa_origin), &s->origin, err);
        if (status == EPA_OK && p->by_rank)
            status = op_buffer_alloc(p->backend, "the weights of entries",
                                     p->entries * sizeof(float), &s->weight, err);
        if (status == EPA_OK && p->by_rank)
            status = op_buffer_alloc(p->backend, "the choices of entries", p->entries, &s->k, err);
    }
    return status;
}

void caller_views_destroy(struct caller_views *v)
{
    if (v == NULL)
        return;
    for (uint32_t i = 0; i < v->p.slots; i++) {
        op_buffer_free(v->p.backend, &v->slot[i].origin);
        op_buffer_free(v->p.backend, &v->slot[i].weight);
        op_buffer_free(v->p.backend, &v->slot[i].k);
    }
    for (enum list i = COUNT; i < LISTS; i++)
        free(v->copy[i]);
    free(v->slot);
    free(v);
}

bool caller_views_known(const struct caller_views *v, uint32_t slot, uint64_t iteration)
{
    return v->slot[slot].known && v->slot[slot].iteration == iteration;
}

/* Copies the lists of a device to host memory. `out` has the pointers to the copies. */
static enum epa_status read_lists(struct caller_views *v, const struct epa2a_received *got,
                                  struct epa2a_received *out, struct epa_error *err)
{
    const void *const from[LISTS] = {[COUNT] = got->count,
                                     [START] = got->start,
                                     [SOURCE_TOKEN] = got->source_token,
                                     [SOURCE_RANGE] = got->source_range,
                                     [ROW] = got->row,
                                     [TOPK_IDX] = got->topk_idx,
                                     [TOPK_WEIGHT] = got->topk_weight};
    struct epa_backend *b = v->p.backend;
    enum epa_status status = EPA_OK;

    *out = *got;
    if (!on_device(v))
        return EPA_OK;
    for (enum list i = COUNT; i < LISTS && status == EPA_OK; i++)
        if (list_bytes(&v->p, i) != 0)
            status = b->ops->read(b, v->copy[i], from[i], list_bytes(&v->p, i));
    out->count = v->copy[COUNT];
    out->start = v->copy[START];
    out->source_token = v->copy[SOURCE_TOKEN];
    out->source_range = v->copy[SOURCE_RANGE];
    out->row = v->copy[ROW];
    out->topk_idx = v->copy[TOPK_IDX];
    out->topk_weight = v->copy[TOPK_WEIGHT];
    return op_backend_done(b, status, err, "cannot read the lists of a dispatch");
}

/* Writes the origins of the rows of one range for each source rank; `first` is the row at which the
 * ranges begin. */
static void write_origins(const struct caller_views *v, const struct epa2a_received *got,
                          uint64_t first, const int64_t *range, struct epa_origin *out)
{
    for (uint32_t r = 0; r < v->p.ranks; r++) {
        uint64_t begin = first + ((uint64_t)range[r] >> 32), n = (uint32_t)range[r];

        for (uint64_t i = begin; i < begin + n && i < v->p.rows; i++)
            out[i] = (struct epa_origin){r, (uint32_t)got->source_token[i]};
    }
}

/* Finds the weight and the choice of each entry in the lists of its row. An entry without choice gets
 * the choice topk, which no check accepts. */
static void write_choices(const struct caller_views *v, const struct epa2a_received *got,
                          float *weight, uint8_t *choice)
{
    uint32_t topk = v->p.topk;

    for (uint32_t e = 0; e < v->p.local; e++)
        for (uint64_t i = got->start[e]; i < got->start[e] + got->count[e] && i < v->p.entries;
             i++) {
            size_t at = (size_t)got->row[i] * topk;
            uint32_t k = got->row[i] < v->p.rows ? 0 : topk;

            while (k < topk && got->topk_idx[at + k] != (int32_t)e)
                k++;
            choice[i] = (uint8_t)k;
            weight[i] = k < topk ? got->topk_weight[at + k] : 0;
        }
}

static enum epa_status make_views(struct caller_views *v, struct slot_views *s,
                                  const struct epa2a_received *got, struct epa_error *err)
{
    struct epa_backend *b = v->p.backend;
    struct epa2a_received lists;
    enum epa_status status = read_lists(v, got, &lists, err);

    if (status != EPA_OK)
        return status;
    for (uint32_t e = 0; !v->p.by_rank && e < v->p.local; e++)
        write_origins(v, &lists, lists.start[e], lists.source_range + (size_t)e * v->p.ranks,
                      s->origin.here);
    if (v->p.by_rank) {
        write_origins(v, &lists, 0, lists.source_range, s->origin.here);
        write_choices(v, &lists, s->weight.here, s->k.here);
    }
    status = op_buffer_send(b, &s->origin, v->p.rows * sizeof(struct epa_origin));
    if (status == EPA_OK && v->p.by_rank)
        status = op_buffer_send(b, &s->weight, v->p.entries * sizeof(float));
    if (status == EPA_OK && v->p.by_rank)
        status = op_buffer_send(b, &s->k, v->p.entries);
    return op_backend_done(b, status, err, "cannot write the views of a dispatch");
}

enum epa_status caller_views_complete(struct caller_views *v, uint32_t slot, uint64_t iteration,
                                      const struct epa2a_received *got, struct epa_moe *out,
                                      struct epa_error *err)
{
    struct slot_views *s = &v->slot[slot];
    enum epa_status status = EPA_OK;

    if (!caller_views_known(v, slot, iteration))
        status = make_views(v, s, got, err);
    if (status != EPA_OK)
        return status;
    s->iteration = iteration;
    s->known = true;
    out->origin = s->origin.there;
    out->origin_stride = sizeof(struct epa_origin);
    out->recv_weight = s->weight.there;
    out->recv_k = s->k.there;
    return EPA_OK;
}
