/* Places of received rows in a layout of epa2a.h.
 *
 * An algorithm delivers rows in its own order (struct epa_moe, "view"). A layout of epa2a.h has the
 * order of source ranks, then of tokens. struct moe_places maps one to the other. Most algorithms
 * deliver this order, so the map is often the identity. */
#ifndef API_MOE_PLACES_H
#define API_MOE_PLACES_H

#include <epa2a.h>
#include <epa2a/problem.h>
#include <epa2a/status.h>

#include <stdbool.h>

struct moe_layout {
    enum epa2a_layout layout;
    uint32_t rank, ranks, local; /* local: experts of a rank */
    uint32_t max_tokens;
    uint64_t rows, entries; /* capacity of a rank */
    uint64_t most;          /* maximum number of received rows; the rest of `rows` is gaps */
};

static inline bool moe_layout_is_rank(const struct moe_layout *l)
{
    return l->layout == EPA2A_RANK_PACKED || l->layout == EPA2A_RANK_PADDED;
}

struct moe_key {
    uint64_t key; /* source rank << 32 | token */
    uint32_t view;
};

struct moe_places {
    struct moe_layout l;
    uint64_t rows;    /* number of received rows */
    uint64_t entries; /* sum of count */
    bool same;        /* row[n] == view[n] for all n */
    bool listed;      /* row, view, at and range are filled */
    uint32_t *row;    /* [rows]: index of row n in the layout; ascending */
    uint32_t *view;   /* [rows]: index of row n in the view */
    uint32_t *count;  /* [local] */
    uint64_t *start;  /* [local]: first entry of each expert in the layout */
    int64_t *range;   /* source_range of struct epa2a_received */
    uint32_t *at;     /* RANK: index in the layout, by index in the view */
    struct moe_key *key;
};

/* Allocates the arrays of a map. EPA_ERR_NOMEM: out of memory. */
EPA_CHECKED enum epa_status moe_places_init(struct moe_places *, const struct moe_layout *,
                                            struct epa_error *);
void moe_places_finish(struct moe_places *); /* accepts a zeroed struct */

/* Computes the map of a dispatch. If `same` holds and the view has the counts of each source, the lists
 * stay empty, and in the layouts EXPERT the ranges, too. EPA_ERR_SYSTEM: the view contains a row of an
 * unknown token, wrong counts, or more rows than the capacity. */
EPA_CHECKED enum epa_status moe_places_find(struct moe_places *, const struct epa_moe *view,
                                            struct epa_error *);

/* Fills the ranges of sources and the lists of rows, which copies of rows and of source tokens need.
 * EPA_ERR_SYSTEM: wrong counts of the sources. */
EPA_CHECKED enum epa_status moe_places_list(struct moe_places *, const struct epa_moe *view,
                                            struct epa_error *);

/* Returns the bytes that moe_places_init() allocates. */
uint64_t moe_places_bytes(const struct moe_layout *);

#endif
