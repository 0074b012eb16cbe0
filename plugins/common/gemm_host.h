/* Host code that AllGather-GEMM plugins share: weights that are packed once, packing of rows of A
 * with k padded to the kernels' unit, and a tile of C from panels of A. The places of ranks in
 * nodes are also for plugins on GPUs. */
#ifndef GEMM_HOST_H
#define GEMM_HOST_H

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>
#include <epa2a/gemm.h>
#include <epa2a/quant.h>
#include <epa2a/status.h>

#include "kernels/rows.h"

enum { GEMM_K_UNIT = 128 };

/* B of a problem in the kernels' layout: n padded to whole panels and k to whole groups of 128,
 * with zeros. bias and b_scale point to the problem's arrays. */
struct gemm_weights {
    const struct epa_gemm *kernels;
    struct epa_backend *backend; /* allocated b, in huge pages */
    uint32_t n, k;               /* sizes of the problem */
    uint32_t padded_n, padded_k; /* sizes of the product */
    void *b;
    const float *b_scale, *bias;
    const struct epa_kernels *rounding; /* kernels that round to a C of 16 bits; NULL: FP8 */
    const struct gemm_rows *rows;       /* kernels that quantise C */
};

static inline uint32_t gemm_round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static inline uint32_t gemm_padded_k(uint32_t k)
{
    return gemm_round_up(k, GEMM_K_UNIT);
}

/* Bytes of the packed weights of a rank with max_n columns. */
uint64_t gemm_weights_bytes(const struct epa_ag_gemm *);

enum epa_status gemm_weights_create(const struct epa_ag_gemm *, struct epa_backend *,
                                    struct gemm_weights *out, struct epa_error *);
void gemm_weights_destroy(struct gemm_weights *); /* accepts a zeroed struct */

/* Returns the bytes of a row of A in the problem's layout. */
static inline size_t gemm_row_bytes(const struct epa_ag_gemm *g)
{
    return (size_t)g->k * (g->dtype == EPA_FP8_E4M3 ? 1 : 2);
}

/* Packs row `row` of the panels at `panels`. line: buffer of padded_k * 2 bytes for padded rows,
 * initially zero; NULL if k is not padded. */
void gemm_pack_row(const struct gemm_weights *, const void *x, void *panels, uint32_t row,
                   void *line);

/* Tile of C: columns from `column` (a multiple of EPA_GEMM_COLS, with C in FP8 of GEMM_K_UNIT) on.
 * `columns` is such a multiple, too, or ends at padded_n. */
struct gemm_tile {
    const void *a;        /* start of a panel */
    const float *a_scale; /* FP8: [rows][padded_k / 128] */
    uint32_t rows, column, columns;
    /* First element, and with FP8 first scale, of the tile's first row in C. */
    void *c;
    float *c_scale;
};

/* Points a tile to row `row` of C. */
void gemm_tile_place(const struct epa_ag_gemm *, uint64_t row, struct gemm_tile *);

/* Computes a tile. scratch: [rows][columns] floats, aligned to a cache line. */
void gemm_tile_run(const struct gemm_weights *, const struct gemm_tile *, float *scratch);

/* ---- ranks and nodes ---- */

enum { GEMM_PLACES = 64 };

struct gemm_places {
    uint32_t node[GEMM_PLACES], place[GEMM_PLACES]; /* node of each rank, and its place within
                                                     * the node */
    uint32_t size, nodes;
};

/* Finds node and place of each rank. With two levels it rejects nodes of different sizes; `name`
 * begins the message. */
enum epa_status gemm_find_places(const char *name, const struct epa_world *, bool two_level,
                                 struct gemm_places *out, struct epa_error *);

uint32_t gemm_rank_at(const struct gemm_places *, uint32_t node, uint32_t place);

/* Returns the position of a rank's tiles in the order of tiles: own rows, then rows of the
 * following ranks of the node, then of the following nodes. The following ranks push to this rank
 * first, so their rows arrive first. */
static inline uint32_t gemm_turn_of(const struct gemm_places *p, uint32_t me, uint32_t rank)
{
    uint32_t node = (p->node[rank] + p->nodes - p->node[me]) % p->nodes;

    return node * p->size + (p->place[rank] + p->size - p->place[me]) % p->size;
}

#endif
