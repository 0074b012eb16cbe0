/* Memory for outputs of dispatch: of the caller, of the moe, or of the algorithm.
 *
 * Without `routing`, x, x_scale and y are views of the algorithm's memory if its rows have the
 * order and form of the layout. A dispatch with `routing` copies them to memory of the moe, since a
 * later call may repeat an earlier dispatch in the memory of the algorithm. */
#include "api/moe_outputs.h"

#include <stdlib.h>
#include <string.h>

size_t moe_outputs_bytes(const struct moe_plan *p, enum moe_array which)
{
    const struct moe_layout *l = &p->layout;
    const struct epa2a_moe_shape *s = &p->shape;
    bool by_rank = moe_layout_is_rank(l);

    switch (which) {
    case MOE_X:
    case MOE_Y:
        return l->rows * s->hidden * 2;
    case MOE_X_SCALE:
        return l->rows * (s->hidden / s->fp8_group) * sizeof(float);
    case MOE_COUNT:
        return l->local * sizeof(uint32_t);
    case MOE_START:
        return l->local * sizeof(uint64_t);
    case MOE_ROW:
        return by_rank ? l->entries * sizeof(uint32_t) : 0;
    case MOE_TOPK_IDX:
        return by_rank ? l->rows * s->topk * sizeof(int32_t) : 0;
    case MOE_TOPK_WEIGHT:
        return by_rank ? l->rows * s->topk * sizeof(float) : 0;
    case MOE_ARRAYS:
        break;
    }
    return 0;
}

/* Returns the pointers of the struct that may refer to memory of the moe. */
static void list_pointers(struct epa2a_received *got, void **out[MOE_ARRAYS])
{
    out[MOE_X] = &got->x;
    out[MOE_X_SCALE] = &got->x_scale;
    out[MOE_COUNT] = (void **)(void *)&got->count;
    out[MOE_START] = (void **)(void *)&got->start;
    out[MOE_ROW] = (void **)(void *)&got->row;
    out[MOE_TOPK_IDX] = (void **)(void *)&got->topk_idx;
    out[MOE_TOPK_WEIGHT] = (void **)(void *)&got->topk_weight;
    out[MOE_Y] = &got->y;
}

/* Returns true for memory of this moe, from an earlier use of the struct. */
static bool is_own(const struct epa2a_moe *moe, const void *pointer)
{
    const char *heap = moe->ep.transport->heap, *p = pointer;

    if (p >= heap && p < heap + moe->ep.transport->heap_bytes)
        return true;
    for (uint32_t i = 0; i < moe->sets; i++)
        for (int a = 0; a < MOE_ARRAYS; a++)
            if (p != NULL && p == moe->record[i].array[a])
                return true;
    return false;
}

static bool may_be_view(const struct epa2a_moe *moe, const struct moe_form *f,
                        const struct moe_record *r, enum moe_array which)
{
    if (r->route != 0 || moe->plan.footprint.u.moe.recv_rows < moe->plan.layout.rows)
        return false;
    if (which == MOE_X)
        return f->fp8 == f->sent_fp8;
    if (which == MOE_X_SCALE)
        return f->fp8 && f->sent_fp8 && !f->ue8m0 && !f->by_group;
    return which == MOE_Y;
}

static enum epa_status allocate_array(struct epa2a_moe *moe, struct moe_record *r,
                                      enum moe_array which, struct epa_error *err)
{
    size_t bytes = moe_outputs_bytes(&moe->plan, which);

    if (r->array[which] != NULL || bytes == 0)
        return EPA_OK;
    r->array[which] = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (r->array[which] == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %zu bytes of received rows", bytes);
    return EPA_OK;
}

enum epa_status moe_outputs_prepare(struct epa2a_moe *moe, const struct moe_form *f,
                                    struct moe_record *r, struct epa2a_received *got,
                                    struct epa_error *err)
{
    void **pointer[MOE_ARRAYS];
    enum epa_status status = EPA_OK;

    /* Also memory that only rows in another order need: an allocation after the arrival of data could
     * not fail without the other ranks. Unused pages take no memory. */
    list_pointers(got, pointer);
    for (int a = 0; a < MOE_ARRAYS && status == EPA_OK; a++) {
        if (is_own(moe, *pointer[a]))
            *pointer[a] = NULL;
        if (*pointer[a] == NULL && (a != MOE_X_SCALE || f->fp8))
            status = allocate_array(moe, r, (enum moe_array)a, err);
    }
    return status;
}

/* Returns the row stride of scales in memory of the moe: with by_group, from group to group. */
static size_t scale_stride(const struct moe_plan *p, const struct moe_form *f)
{
    uint64_t rows = p->layout.layout == EPA2A_EXPERT_PADDED
                        ? (uint64_t)p->layout.ranks * p->layout.max_tokens
                        : p->layout.rows;

    return f->by_group ? rows * sizeof(float) : moe_form_words(f) * sizeof(float);
}

/* Sets a pointer to the view, or to memory of the moe if the rows are not in the order of the layout.
 * *copies: the rows have to be copied there. */
static void set_pointer(const struct epa2a_moe *moe, const struct moe_form *f,
                        const struct moe_record *r, enum moe_array which, const void *view,
                        void **out, bool *copies)
{
    *copies = !r->places.same || !may_be_view(moe, f, r, which);
    *out = *copies ? r->array[which] : (void *)(uintptr_t)view;
}

/* Sets x, x_scale and y where the caller provided no memory. */
static void set_rows(const struct epa2a_moe *moe, const struct moe_form *f,
                     const struct moe_record *r, struct epa2a_received *got, bool *copy_x,
                     bool *copy_scale)
{
    const struct epa_moe *m = &r->problem.u.moe;
    bool unused;

    *copy_x = true;
    *copy_scale = f->fp8;
    got->x_stride = got->x_scale_stride = 0;
    if (got->x == NULL) {
        set_pointer(moe, f, r, MOE_X, m->recv, &got->x, copy_x);
        got->x_stride = *copy_x ? moe_form_row_bytes(f) : m->recv_stride;
    }
    if (f->fp8 && got->x_scale == NULL) {
        set_pointer(moe, f, r, MOE_X_SCALE, m->recv_scale, &got->x_scale, copy_scale);
        got->x_scale_stride = *copy_scale ? scale_stride(&moe->plan, f) : m->scale_stride;
    }
    if (got->y == NULL)
        set_pointer(moe, f, r, MOE_Y, m->y_space, &got->y, &unused);
}

enum epa_status moe_outputs_fill(struct epa2a_moe *moe, const struct moe_input *in,
                                 struct moe_record *r, struct epa2a_received *got,
                                 struct epa_error *err)
{
    void **pointer[MOE_ARRAYS];
    bool copy_x, copy_scale;
    enum epa_status status = moe_places_find(&r->places, &r->problem.u.moe, err);

    if (status != EPA_OK)
        return status;
    if (moe_layout_is_rank(&moe->plan.layout) && r->places.entries != 0 &&
        r->problem.u.moe.recv_k == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s does not deliver the index of choices (recv_k)",
                        moe->name);
    set_rows(moe, &in->form, r, got, &copy_x, &copy_scale);
    list_pointers(got, pointer);
    for (int a = MOE_COUNT; a <= MOE_TOPK_WEIGHT; a++)
        if (*pointer[a] == NULL)
            *pointer[a] = r->array[a];
    if (copy_x || copy_scale || got->source_token != NULL || got->source_range != NULL)
        status = moe_places_list(&r->places, &r->problem.u.moe, err);
    if (status != EPA_OK)
        return status;
    moe_deliver_lists(&r->places, &in->form, &r->problem.u.moe,
                      &(struct moe_lists){.count = got->count,
                                          .start = got->start,
                                          .row = got->row,
                                          .topk_idx = got->topk_idx,
                                          .topk_weight = got->topk_weight,
                                          .source_token = got->source_token,
                                          .source_range = got->source_range,
                                          .host_count = got->host_count,
                                          .seen = in->seen});
    got->id = r->id;
    got->rows = moe->plan.layout.rows;
    got->entries = moe->plan.layout.entries;
    if (!copy_x && !copy_scale)
        return EPA_OK;
    return moe_deliver_rows(&r->places, &in->form, &r->problem.u.moe, copy_x ? got->x : NULL,
                            copy_scale ? got->x_scale : NULL, moe->scales, err);
}

void moe_outputs_free(struct moe_record *r)
{
    for (int a = 0; a < MOE_ARRAYS; a++) {
        free(r->array[a]);
        r->array[a] = NULL;
    }
}
