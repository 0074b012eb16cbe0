/* ag_gemm_2d: options, and the layout of the heap on hosts (that of GPUs is in
 * plugins/common/ag_gemm_cuda.c).
 *
 * The heap is two buffer sets, which calls use in turn. A set holds the rows of A of all ranks as
 * the GEMM reads them, at the same places on all ranks: panels (gemm.h), and for FP8 their scales;
 * and where puts may be needed the same rows as the problem has them, for rows to be put to. */
#ifndef AG_GEMM_2D_H
#define AG_GEMM_2D_H

#include "../../common/ag_gemm.h"
#include "../../common/gemm_host.h"

enum ag2_gather { AG2_TWO_LEVEL, AG2_DIRECT };

struct ag2_config {
    int mode, order;                       /* enum ag_gemm_mode, ag_gemm_order */
    int gather;                            /* enum ag2_gather */
    uint32_t chunks, tile_rows, tile_cols; /* of a tile; 0: 256 on hosts, 128 and 256 on GPUs */
    bool across_ranks, comm_worker;
    int mover; /* CUDA code: enum ag_gemm_mover, and the next three */
    uint32_t cluster, panel, comm_blocks, blocks;
};

enum { AG2_SETS = 2, AG2_RANKS = GEMM_PLACES };

struct ag2_layout {
    uint32_t size, max_rows, n, k;
    bool fp8, puts, two_level;
    struct ag2_config config;    /* tile_rows, tile_cols: as large as there is need for */
    uint32_t chunks, chunk_rows; /* of a rank; the last chunk may be shorter */
    uint32_t panel_rows;         /* of all ranks, borders rounded up */
    uint64_t panel_row_bytes, scale_row_bytes, raw_row_bytes;
    /* Of a set, from its start. raw: [size * max_rows], where puts are needed. */
    uint64_t panels_at, scales_at, raw_at, raw_scales_at;
    uint64_t set_bytes, heap_bytes;
    uint32_t signals; /* [size][chunks] */
};

/* This rank's word for chunk `chunk` of `source`. */
static inline uint32_t ag2_signal(const struct ag2_layout *l, uint32_t source, uint32_t chunk)
{
    return source * l->chunks + chunk;
}

enum epa_status ag2_host_create(const struct epa_algorithm_params *, const struct ag2_layout *,
                                struct epa_algorithm **out, struct epa_error *);

/* What a rank has to do in a call of ag_gemm_2d on hosts: by which way each rank's rows arrive, and
 * the chunks of rows and blocks of tiles of one call. */

/* How a source's chunks reach this rank. */
enum ag2_way { AG2_OWN, AG2_STORED, AG2_LOADED, AG2_PUT };

/* Between this rank and the others; the same in all calls. */
struct ag2_routes {
    struct gemm_places at;
    uint32_t me;
    uint32_t sender[AG2_RANKS]; /* of each source's chunks, to this rank */
    enum ag2_way way[AG2_RANKS];
    bool passes_on[AG2_RANKS];              /* this rank does, a source's chunks within its node */
    uint32_t mates[AG2_RANKS], n_mates;     /* of this node, to which loads and stores reach */
    uint32_t put_to[AG2_RANKS], n_put_to;   /* that get own rows by puts */
    uint32_t pass_to[AG2_RANKS], n_pass_to; /* of this node, that get all rows by puts */
};

enum ag2_state { AG2_AWAITED, AG2_ARRIVED, AG2_TAKEN, AG2_PLACED, AG2_DONE };

struct ag2_chunk {
    uint32_t state; /* enum ag2_state; release: what was done before is seen by acquire */
    uint32_t source, index;
    uint32_t row, rows;  /* first row in the panels */
    uint32_t source_row; /* first row of the source's own */
};

/* Rows of C that are computed together, by tiles of some columns. */
struct ag2_block {
    uint32_t waits;  /* chunks that have yet to be placed */
    uint32_t column; /* tiles that were taken */
    uint32_t row, rows, c_row;
    uint32_t turn; /* for the order */
};

struct ag2_call {
    uint32_t start[AG2_RANKS + 1];     /* of each rank's rows in the panels */
    uint32_t raw_start[AG2_RANKS + 1]; /* and without padding */
    uint32_t n_chunks, n_blocks;
    uint32_t columns, untaken; /* tiles: of a block; which no worker has taken */
    bool in_order, blocks_wait;
    struct ag2_chunk *chunk; /* [l->signals] */
    struct ag2_block *block; /* [ag2_most_blocks()] */
    uint32_t *order;         /* the same: which block comes first */
};

/* Fails where nodes of several sizes are gathered from in two levels. */
enum epa_status ag2_find_routes(const struct ag2_layout *, const struct epa_world *,
                                char *const *peer_heap, struct ag2_routes *out,
                                struct epa_error *err);

/* Each rank may have a block that is not full. */
static inline uint32_t ag2_most_blocks(const struct ag2_layout *l)
{
    return l->panel_rows / l->config.tile_rows + l->size + 1;
}

/* For so many rows of each rank; tiles: there are some; blocks_wait: for their chunks. */
void ag2_call_begin(struct ag2_call *, const struct ag2_layout *, const struct ag2_routes *,
                    const uint32_t *rows, bool tiles, bool blocks_wait);

/* The rows of a chunk are in the panels. Workers call this and take_tile() at any time. */
void ag2_release_blocks(struct ag2_call *, const struct ag2_chunk *);

/* The next tile that has its rows; in a fixed order, the next one if it has. False: none. */
bool ag2_take_tile(struct ag2_call *, const struct ag2_block **block, uint32_t *column);

/* What a worker with nothing to do waits for: the first tile that has no worker yet, or NULL, and
 * the first chunk that it waits for; without one, any chunk that has not arrived, or NULL. */
const struct ag2_chunk *ag2_missing_chunk(const struct ag2_call *, const struct ag2_block **out);

#endif
