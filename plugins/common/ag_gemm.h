/* AllGather and GEMM on GPUs: settings and memory layout. Used by ag_gemm_2d, which overlaps both,
 * and by ag_then_gemm, which runs one after the other. This header does not need CUDA. */
#ifndef AG_GEMM_H
#define AG_GEMM_H

#include <epa2a/algorithm.h>
#include <epa2a/plugin.h>

/* Direction of transfers within a node. Between nodes rows are always pushed. */
enum ag_gemm_mode { AG_GEMM_PUSH, AG_GEMM_PULL };
/* Engine that moves a rank's own rows, or that forwards rows of other nodes (not AUTO then).
 * Multiprocessors pull the rows of other ranks. */
enum ag_gemm_mover { AG_GEMM_AUTO, AG_GEMM_COPY_ENGINE, AG_GEMM_SM };
/* Order of tiles. */
enum ag_gemm_order { AG_GEMM_ARRIVAL, AG_GEMM_SWIZZLE, AG_GEMM_NONE };
/* Library that multiplies gathered rows if nothing overlaps: own kernels; cuBLASLt if it is
 * available and supports the problem; cuBLASLt or failure. */
enum ag_gemm_library { AG_GEMM_KERNELS, AG_GEMM_TRY_CUBLASLT, AG_GEMM_CUBLASLT };
/* Product that overlaps with the gather: tiles of own kernels; cuBLASLt, once for the rows of each
 * rank; one of both, selected by the shape. */
enum ag_gemm_product { AG_GEMM_OWN, AG_GEMM_LIBRARY, AG_GEMM_BY_SHAPE };

struct ag_gemm_config {
    int mode, mover, order; /* the enums above */
    int forward;            /* enum ag_gemm_mover; 0: SM */
    int library;            /* enum ag_gemm_library; other than KERNELS: mover is SM and
                             * `overlap` is false */
    int product;            /* enum ag_gemm_product; other than OWN: `overlap` is true */
    bool two_level;         /* rows for another node go to its rank of the same place, which
                             * forwards them */
    bool across_ranks;      /* a tile may contain rows of several ranks */
    bool overlap;           /* tiles start as rows arrive; otherwise one kernel gathers, and another
                         * multiplies */
    uint32_t chunks;        /* chunks of a rank's rows; 0: automatic */
    uint32_t tile_cols;     /* 128, 256 or 0: 128 if 256 leaves blocks without a tile */
    uint32_t cluster;       /* blocks that load weights together: 1, 2 or 0: 2 if that is faster */
    uint32_t panel;         /* number of tiles down before the next column of tiles */
    uint32_t comm_blocks;   /* blocks that only move rows; 0: one warp of each block moves rows */
    uint32_t blocks;        /* maximum number of blocks; 0: one per multiprocessor */
    uint32_t put_blocks;    /* multiprocessors that put rows to other nodes during the kernel, which
                             * leaves them free; 0: all, before the kernel */
};

enum { AG_GEMM_TILE_ROWS = 128, AG_GEMM_TILE_COLS = 256 };

#endif
