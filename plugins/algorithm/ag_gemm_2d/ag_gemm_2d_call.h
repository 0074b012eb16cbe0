/* What a rank has to do in a call of ag_gemm_2d on hosts: by which way each rank's rows come, and
 * the chunks of rows and blocks of tiles of one call. */
#ifndef AG_GEMM_2D_CALL_H
#define AG_GEMM_2D_CALL_H

#include "ag_gemm_2d.h"

/* How a source's chunks come to this rank. */
enum ag2_way { AG2_OWN, AG2_STORED, AG2_LOADED, AG2_PUT };

/* Between this rank and the others; the same in all calls. */
struct ag2_routes {
    uint32_t node[AG2_RANKS], place[AG2_RANKS]; /* of each rank; place: in its node */
    uint32_t me, nodes, per_node;
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
