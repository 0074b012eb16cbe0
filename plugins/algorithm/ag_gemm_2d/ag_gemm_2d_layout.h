/* ag_gemm_2d: options, and the layout of the heap on hosts (plugins/common/ag_gemm_cuda.c has the
 * layout on GPUs).
 *
 * The heap is two buffer sets, which calls use alternately. A set contains the rows of A of all
 * ranks in the form in which the GEMM reads them, at the same offsets on all ranks: panels
 * (gemm.h), and for FP8 their scales. If puts may be needed, it also contains the unpacked rows,
 * the targets of puts. */
#ifndef AG_GEMM_2D_LAYOUT_H
#define AG_GEMM_2D_LAYOUT_H

#include "../../common/ag_gemm.h"
#include "../../common/gemm_host.h"

enum ag2_gather { AG2_TWO_LEVEL, AG2_DIRECT };

struct ag2_config {
    int mode, order; /* enum ag_gemm_mode, ag_gemm_order */
    int gather;      /* enum ag2_gather */
    /* tile_rows, tile_cols: 0: 256 on hosts, 128 and 256 on GPUs */
    uint32_t chunks, tile_rows, tile_cols;
    bool across_ranks, comm_worker;
    int mover, forward; /* CUDA code: enum ag_gemm_mover; also the following lines */
    int product;        /* enum ag_gemm_product */
    uint32_t cluster, panel, comm_blocks, blocks, put_blocks;
};

enum { AG2_SETS = 2, AG2_RANKS = GEMM_PLACES };

struct ag2_layout {
    uint32_t size, max_rows, n, k;
    bool fp8, puts, two_level;
    struct ag2_config config; /* with tile_rows and tile_cols limited to the size of C */
    /* chunks of a rank; rows of a chunk, of which the last may have fewer */
    uint32_t chunks, chunk_rows;
    uint32_t panel_rows; /* rows of all ranks, with rounded borders */
    uint64_t panel_row_bytes, scale_row_bytes, raw_row_bytes;
    /* Offsets from the start of a set. raw: [size * max_rows], if puts may be needed. */
    uint64_t panels_at, scales_at, raw_at, raw_scales_at;
    uint64_t set_bytes, heap_bytes;
    uint32_t signals; /* [size][chunks] */
};

/* Returns the index of this rank's word for chunk `chunk` of `source`. */
static inline uint32_t ag2_signal(const struct ag2_layout *l, uint32_t source, uint32_t chunk)
{
    return source * l->chunks + chunk;
}

#endif
