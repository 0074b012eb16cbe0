/* Routes and state of a call of ag_gemm_2d on hosts: the way of each rank's rows, the chunks of
 * rows, and the blocks of tiles. */
#ifndef AG_GEMM_2D_CALL_H
#define AG_GEMM_2D_CALL_H

#include "ag_gemm_2d_layout.h"

/* Way of a source's chunks to this rank. */
enum ag2_way { AG2_OWN, AG2_STORED, AG2_LOADED, AG2_PUT };

/* Routes between this rank and other ranks, constant over calls. */
struct ag2_routes {
    struct gemm_places at;
    uint32_t me;
    uint32_t sender[AG2_RANKS]; /* sender of each source's chunks to this rank */
    enum ag2_way way[AG2_RANKS];
    /* this rank passes the source's chunks on within its node */
    bool passes_on[AG2_RANKS];
    /* ranks of this node within reach of loads and stores */
    uint32_t mates[AG2_RANKS], n_mates;
    uint32_t put_to[AG2_RANKS], n_put_to;   /* ranks that get own rows by puts */
    uint32_t pass_to[AG2_RANKS], n_pass_to; /* ranks of this node that get all rows by puts */
};

enum ag2_state { AG2_AWAITED, AG2_ARRIVED, AG2_TAKEN, AG2_PLACED, AG2_DONE };

struct ag2_chunk {
    uint32_t state; /* enum ag2_state; a release store orders earlier work before it */
    uint32_t source, index;
    uint32_t row, rows;  /* range in the panels */
    uint32_t source_row; /* first row among the source's rows */
};

/* Rows of C that workers compute together, in tiles of some columns. */
struct ag2_block {
    uint32_t waits;  /* number of chunks that are not yet placed */
    uint32_t column; /* number of tiles that workers have taken */
    uint32_t row, rows, c_row;
    uint32_t turn; /* sort key of the order of blocks */
};

struct ag2_call {
    uint32_t start[AG2_RANKS + 1];     /* start of each rank's rows in the panels */
    uint32_t raw_start[AG2_RANKS + 1]; /* the same without padding */
    uint32_t n_chunks, n_blocks;
    /* number of tiles of a block; number of tiles that no worker has taken */
    uint32_t columns, untaken;
    bool in_order, blocks_wait;
    struct ag2_chunk *chunk; /* [l->signals] */
    struct ag2_block *block; /* [ag2_most_blocks()] */
    uint32_t *order;         /* [ag2_most_blocks()]: indices of blocks in their order */
};

/* Computes the routes. Fails for gather: 2d with nodes of different sizes. */
enum epa_status ag2_find_routes(const struct ag2_layout *, const struct epa_world *,
                                char *const *peer_heap, struct ag2_routes *out,
                                struct epa_error *err);

/* Maximum of blocks: each rank may have a block that is not full. */
static inline uint32_t ag2_most_blocks(const struct ag2_layout *l)
{
    return l->panel_rows / l->config.tile_rows + l->size + 1;
}

/* Initialises a call with the given rows of each rank. tiles: compute tiles; blocks_wait: blocks
 * wait for their chunks. */
void ag2_call_begin(struct ag2_call *, const struct ag2_layout *, const struct ag2_routes *,
                    const uint32_t *rows, bool tiles, bool blocks_wait);

/* Decrements the counts of blocks for a placed chunk. Workers may call this and ag2_take_tile()
 * concurrently. */
void ag2_release_blocks(struct ag2_call *, const struct ag2_chunk *);

/* Takes the next tile whose rows are placed; in a fixed order, only the next tile. Returns false if
 * there is no such tile. */
bool ag2_take_tile(struct ag2_call *, const struct ag2_block **block, uint32_t *column);

/* Finds the cause of a wait: returns the first missing chunk of the first tile without a worker,
 * and the tile's block. Without such a tile *out is NULL, and the result is any missing chunk or
 * NULL. */
const struct ag2_chunk *ag2_missing_chunk(const struct ag2_call *, const struct ag2_block **out);

#endif
