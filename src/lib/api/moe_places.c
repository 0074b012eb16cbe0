/* A group of rows is one expert in the EXPERT layouts, or all rows in the RANK layouts. Each group
 * is sorted by source and token, unless the algorithm delivered this order. */
#include "api/moe_places.h"

#include <stdlib.h>
#include <string.h>

static uint32_t groups_of(const struct moe_layout *l)
{
    return moe_layout_is_rank(l) ? 1 : l->local;
}

uint64_t moe_places_bytes(const struct moe_layout *l)
{
    return l->most * (3 * sizeof(uint32_t) + sizeof(struct moe_key)) +
           l->local * (sizeof(uint32_t) + sizeof(uint64_t)) +
           (uint64_t)groups_of(l) * l->ranks * sizeof(int64_t);
}

void moe_places_finish(struct moe_places *p)
{
    free(p->row);
    free(p->view);
    free(p->count);
    free(p->start);
    free(p->range);
    free(p->at);
    free(p->key);
    *p = (struct moe_places){.rows = 0};
}

enum epa_status moe_places_init(struct moe_places *p, const struct moe_layout *l,
                                struct epa_error *err)
{
    /* Without rows a NULL result is no failure. */
    size_t rows = l->most != 0 ? l->most : 1;

    *p = (struct moe_places){.l = *l};
    p->row = calloc(rows, sizeof(*p->row));
    p->view = calloc(rows, sizeof(*p->view));
    p->count = calloc(l->local, sizeof(*p->count));
    p->start = calloc(l->local, sizeof(*p->start));
    p->range = calloc((size_t)groups_of(l) * l->ranks, sizeof(*p->range));
    p->at = calloc(rows, sizeof(*p->at));
    p->key = calloc(rows, sizeof(*p->key));
    if (p->row != NULL && p->view != NULL && p->count != NULL && p->start != NULL &&
        p->range != NULL && p->at != NULL && p->key != NULL)
        return EPA_OK;
    moe_places_finish(p);
    return epa_fail(err, EPA_ERR_NOMEM, "no memory for the places of %llu rows",
                    (unsigned long long)l->most);
}

/* Returns an element of source_range. */
static int64_t source_range(uint64_t begin, uint64_t count)
{
    return (int64_t)(begin << 32 | count);
}

static int compare_keys(const void *a, const void *b)
{
    uint64_t x = ((const struct moe_key *)a)->key, y = ((const struct moe_key *)b)->key;

    return (x > y) - (x < y);
}

/* Reads the origins of rows `first` to `first` + n of the view, and sorts them. */
static enum epa_status sort_origins(struct moe_places *p, const struct epa_moe *m, uint64_t first,
                                    uint64_t n, struct epa_error *err)
{
    bool sorted = true;

    for (uint64_t i = 0; i < n; i++) {
        struct epa_origin origin;

        memcpy(&origin, (const char *)m->origin + (first + i) * m->origin_stride, sizeof(origin));
        if (origin.rank >= p->l.ranks || origin.token >= p->l.max_tokens)
            return epa_fail(err, EPA_ERR_SYSTEM,
                            "row %llu comes from token %u of rank %u, which does not exist",
                            (unsigned long long)(first + i), origin.token, origin.rank);
        p->key[i] =
            (struct moe_key){(uint64_t)origin.rank << 32 | origin.token, (uint32_t)(first + i)};
        sorted = sorted && (i == 0 || p->key[i - 1].key < p->key[i].key);
    }
    if (!sorted)
        qsort(p->key, n, sizeof(*p->key), compare_keys);
    return EPA_OK;
}

/* Assigns places to the n sorted rows of a group, whose first place is `base`, and fills the ranges
 * of the sources. */
static void place_group(struct moe_places *p, uint64_t n, uint64_t base, int64_t *range)
{
    uint64_t i = 0;

    for (uint32_t r = 0; r < p->l.ranks; r++) {
        uint64_t begin = p->l.layout == EPA2A_RANK_PADDED ? (uint64_t)r * p->l.max_tokens : i;
        uint64_t count = 0;

        for (; i < n && p->key[i].key >> 32 == r; i++, count++) {
            uint32_t row = (uint32_t)(base + begin + count), view = p->key[i].view;

            p->row[p->rows] = row;
            p->view[p->rows++] = view;
            p->same = p->same && row == view;
            if (moe_layout_is_rank(&p->l))
                p->at[view] = row;
        }
        range[r] = source_range(begin, count);
    }
}

/* ---- views with the counts of each source ---- */

/* Returns the number of rows of a source in a group. */
static uint32_t source_count(const struct moe_places *p, const struct epa_moe *m, uint32_t source,
                             uint32_t group)
{
    return m->recv_source[(size_t)source * groups_of(&p->l) + group];
}

/* Fills the ranges of the sources of a group of n rows. */
static enum epa_status range_group(struct moe_places *p, const struct epa_moe *m, uint32_t group,
                                   uint64_t n, struct epa_error *err)
{
    int64_t *range = p->range + (size_t)group * p->l.ranks;
    uint64_t sum = 0;

    for (uint32_t r = 0; r < p->l.ranks; r++) {
        uint64_t begin = p->l.layout == EPA2A_RANK_PADDED ? (uint64_t)r * p->l.max_tokens : sum;
        uint32_t count = source_count(p, m, r, group);

        if (count > p->l.max_tokens)
            return epa_fail(err, EPA_ERR_SYSTEM,
                            "%u rows of rank %u arrived for one list, but a rank has at most %u "
                            "tokens",
                            count, r, p->l.max_tokens);
        p->same = p->same && (count == 0 || begin == sum);
        range[r] = source_range(begin, count);
        sum += count;
    }
    return sum == n ? EPA_OK
                    : epa_fail(err, EPA_ERR_SYSTEM,
                               "the sources of a list have %llu rows, but the list has %llu",
                               (unsigned long long)sum, (unsigned long long)n);
}

/* Lists the rows of a group, which begins at row `base` of the layout and at row `view` of the view. */
static void list_group(struct moe_places *p, uint32_t group, uint64_t base, uint64_t view)
{
    const int64_t *range = p->range + (size_t)group * p->l.ranks;

    for (uint32_t r = 0; r < p->l.ranks; r++) {
        uint64_t begin = base + ((uint64_t)range[r] >> 32);

        for (uint32_t i = 0; i < (uint32_t)range[r]; i++, view++) {
            p->row[p->rows] = (uint32_t)(begin + i);
            p->view[p->rows++] = (uint32_t)view;
            if (moe_layout_is_rank(&p->l))
                p->at[view] = (uint32_t)(begin + i);
        }
    }
}

/* Fills the ranges and lists of the layouts EXPERT. */
static enum epa_status list_experts(struct moe_places *p, const struct epa_moe *m,
                                    struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    p->rows = 0;
    for (uint32_t e = 0; e < p->l.local && status == EPA_OK; e++) {
        status = range_group(p, m, e, p->count[e], err);
        if (status == EPA_OK)
            list_group(p, e, p->start[e], m->recv_start[e]);
    }
    p->listed = true;
    return status;
}

/* Lists the rows of the layouts RANK, whose ranges are filled. */
static void list_rank(struct moe_places *p)
{
    p->rows = 0;
    list_group(p, 0, 0, 0);
    p->listed = true;
}

enum epa_status moe_places_list(struct moe_places *p, const struct epa_moe *m,
                                struct epa_error *err)
{
    if (p->listed)
        return EPA_OK;
    if (!moe_layout_is_rank(&p->l))
        return list_experts(p, m, err);
    list_rank(p);
    return EPA_OK;
}

/* Computes the map from the counts of each source, without a look at the rows. */
static enum epa_status count_places(struct moe_places *p, const struct epa_moe *m,
                                    struct epa_error *err)
{
    if (moe_layout_is_rank(&p->l)) {
        enum epa_status status = range_group(p, m, 0, m->recv_rows, err);

        p->listed = false;
        p->rows = m->recv_rows;
        if (status == EPA_OK && !p->same)
            list_rank(p);
        return status;
    }
    for (uint32_t e = 0; e < p->l.local; e++)
        p->same = p->same && (p->count[e] == 0 || p->start[e] == m->recv_start[e]);
    if (!p->same)
        return list_experts(p, m, err);
    p->listed = false;
    p->rows = p->entries;
    return EPA_OK;
}

static enum epa_status too_many(const struct moe_places *p, uint64_t rows, uint64_t entries,
                                struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_SYSTEM,
                    "%llu rows and %llu entries arrived, with room for %llu and %llu",
                    (unsigned long long)rows, (unsigned long long)entries,
                    (unsigned long long)p->l.most, (unsigned long long)p->l.entries);
}

enum epa_status moe_places_find(struct moe_places *p, const struct epa_moe *m,
                                struct epa_error *err)
{
    bool by_rank = moe_layout_is_rank(&p->l), padded = p->l.layout == EPA2A_EXPERT_PADDED;
    uint64_t stride = (uint64_t)p->l.ranks * p->l.max_tokens;
    enum epa_status status = EPA_OK;

    p->rows = p->entries = 0;
    p->same = p->listed = true;
    for (uint32_t e = 0; e < p->l.local; e++) {
        p->count[e] = m->recv_count[e];
        p->start[e] = padded ? e * stride : p->entries;
        p->entries += p->count[e];
        if (padded && p->count[e] > stride)
            return too_many(p, p->count[e], p->entries, err);
    }
    if (p->entries > p->l.entries || (by_rank ? m->recv_rows : p->entries) > p->l.most)
        return too_many(p, by_rank ? m->recv_rows : p->entries, p->entries, err);
    if (m->recv_source != NULL)
        return count_places(p, m, err);
    if (by_rank) {
        status = sort_origins(p, m, 0, m->recv_rows, err);
        if (status == EPA_OK)
            place_group(p, m->recv_rows, 0, p->range);
    }
    for (uint32_t e = 0; !by_rank && e < p->l.local && status == EPA_OK; e++) {
        status = sort_origins(p, m, m->recv_start[e], p->count[e], err);
        if (status == EPA_OK)
            place_group(p, p->count[e], p->start[e], p->range + (size_t)e * p->l.ranks);
    }
    return status;
}
