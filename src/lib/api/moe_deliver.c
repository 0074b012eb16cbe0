/* Rows are written in ascending order of their places, so writes are sequential. */
#include "api/moe_deliver.h"

#include <string.h>

/* Returns the index of word w of the scales of `row`. */
static size_t word_index(const struct moe_places *p, const struct moe_form *f, uint64_t row,
                         uint32_t w)
{
    uint64_t major =
        p->l.layout == EPA2A_EXPERT_PADDED ? (uint64_t)p->l.ranks * p->l.max_tokens : p->l.rows;
    uint32_t words = moe_form_words(f);

    if (!f->by_group)
        return row * words + w;
    return (row / major * words + w) * major + row % major;
}

static enum epa_status write_scales(const struct moe_places *p, const struct moe_form *f,
                                    const float *scale, uint64_t row, uint32_t *words,
                                    uint32_t *out, struct epa_error *err)
{
    if (!moe_form_scales(f, scale, words))
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "row %llu has a scale that is not a power of two; set the same flags in "
                        "the tokens of all ranks",
                        (unsigned long long)row);
    for (uint32_t w = 0; w < moe_form_words(f); w++)
        out[word_index(p, f, row, w)] = words[w];
    return EPA_OK;
}

enum epa_status moe_deliver_rows(const struct moe_places *p, const struct moe_form *f,
                                 const struct epa_moe *m, void *x, void *x_scale, float *work,
                                 struct epa_error *err)
{
    uint32_t groups = f->fp8 ? moe_form_groups(f) : 0;
    uint32_t *words = (uint32_t *)(void *)(work + groups);
    size_t bytes = moe_form_row_bytes(f);
    bool quantise = f->fp8 && !f->sent_fp8;
    enum epa_status status = EPA_OK;

    for (uint64_t n = 0; n < p->rows && status == EPA_OK; n++) {
        const char *from = (const char *)m->recv + p->view[n] * m->recv_stride;
        char *to = x != NULL ? (char *)x + p->row[n] * bytes : NULL;

        if (quantise)
            moe_form_quantise(f, (const uint16_t *)(const void *)from, (uint8_t *)to, work);
        else if (to != NULL)
            memcpy(to, from, bytes);
        if (!f->fp8 || x_scale == NULL)
            continue;
        if (!quantise)
            memcpy(work, (const char *)m->recv_scale + p->view[n] * m->scale_stride,
                   groups * sizeof(*work));
        status = write_scales(p, f, work, p->row[n], words, x_scale, err);
    }
    return status;
}

static void write_source_tokens(const struct moe_places *p, const struct epa_moe *m, int32_t *out)
{
    for (uint64_t n = 0; n < p->rows; n++) {
        struct epa_origin origin;

        memcpy(&origin, (const char *)m->origin + p->view[n] * m->origin_stride, sizeof(origin));
        out[p->row[n]] = (int32_t)origin.token;
    }
}

/* RANK: drops all choices of the rows. */
static void clear_choices(const struct moe_places *p, uint32_t topk, const struct moe_lists *out)
{
    uint64_t runs = p->same ? 1 : p->rows, n = p->same ? p->rows : 1;

    for (uint64_t i = 0; i < runs; i++) {
        size_t at = p->same ? 0 : (size_t)p->row[i] * topk;

        memset(out->topk_idx + at, 0xff, n * topk * sizeof(*out->topk_idx)); /* -1 */
        memset(out->topk_weight + at, 0, n * topk * sizeof(*out->topk_weight));
    }
}

/* RANK: returns true if the layout and the view have the same list of entries. */
static bool has_entries_of_view(const struct moe_places *p, const struct epa_moe *m)
{
    bool same = p->same && p->entries != 0;

    for (uint32_t e = 0; e < p->l.local; e++)
        same = same & (p->start[e] == m->recv_start[e]);
    return same;
}

/* RANK: writes the list of entries. */
static void write_entries(const struct moe_places *p, const struct epa_moe *m, uint32_t *out)
{
    if (has_entries_of_view(p, m)) {
        memcpy(out, m->recv_row, p->entries * sizeof(*out));
        return;
    }
    for (uint32_t e = 0; e < p->l.local; e++)
        for (uint64_t j = 0; j < p->count[e]; j++) {
            uint32_t view = m->recv_row[m->recv_start[e] + j];

            out[p->start[e] + j] = p->same ? view : p->at[view];
        }
}

/* RANK: writes the choices of each row. */
static void write_choices(const struct moe_places *p, uint32_t topk, const struct epa_moe *m,
                          const struct moe_lists *out)
{
    /* Copies of the pointers, which no store can change. */
    int32_t *topk_idx = out->topk_idx;
    float *topk_weight = out->topk_weight;

    clear_choices(p, topk, out);
    for (uint32_t e = 0; e < p->l.local && p->entries != 0; e++) {
        const uint32_t *row = out->row + p->start[e];
        const uint8_t *k = m->recv_k + m->recv_start[e];
        const float *weight = m->recv_weight + m->recv_start[e];
        uint32_t n = p->count[e];

        for (uint32_t j = 0; j < n; j++) {
            size_t i = (size_t)row[j] * topk + k[j];

            topk_idx[i] = (int32_t)e;
            topk_weight[i] = weight[j];
        }
    }
}

void moe_deliver_lists(const struct moe_places *p, const struct moe_form *f,
                       const struct epa_moe *m, const struct moe_lists *out)
{
    uint32_t groups = moe_layout_is_rank(&p->l) ? 1 : p->l.local;

    if (out->count != NULL)
        memcpy(out->count, p->count, p->l.local * sizeof(*out->count));
    if (out->start != NULL)
        memcpy(out->start, p->start, p->l.local * sizeof(*out->start));
    if (out->source_range != NULL)
        memcpy(out->source_range, p->range,
               (size_t)groups * p->l.ranks * sizeof(*out->source_range));
    if (out->source_token != NULL)
        write_source_tokens(p, m, out->source_token);
    if (moe_layout_is_rank(&p->l)) {
        write_entries(p, m, out->row);
        write_choices(p, f->topk, m, out);
    }
    for (uint32_t e = 0; e < p->l.local; e++) {
        if (out->host_count != NULL)
            out->host_count[e] = p->count[e];
        if (out->seen != NULL)
            out->seen[e] += (int32_t)p->count[e];
    }
    if (out->host_count != NULL)
        out->host_count[p->l.local] = (uint32_t)p->rows;
}

void moe_gather_outputs(const struct moe_places *p, uint32_t hidden, const void *y, void *to)
{
    size_t bytes = 2 * (size_t)hidden;

    for (uint64_t n = 0; n < p->rows; n++)
        memcpy((char *)to + p->view[n] * bytes, (const char *)y + p->row[n] * bytes, bytes);
}
