/* AllGather and GEMM on GPUs: what the host gives the kernels (ag_gemm_cuda.c has the protocol). */
#ifndef AG_GEMM_CUDA_H
#define AG_GEMM_CUDA_H

#include <cuda_runtime_api.h>

#include <epa2a/ring.h>

#include "ag_gemm.h"
#include "gemm_cuda.h"

enum {
    AG_GEMM_SETS = 2,
    AG_GEMM_RANKS = 16,           /* at most: bits of 16 say who gets a rank's rows */
    AG_GEMM_THREADS = 384,        /* of a block */
    AG_GEMM_HOPS = AG_GEMM_RANKS, /* own rows, and those that are passed on */
    AG_GEMM_CHUNKS = 64,          /* of a rank, at most */
    AG_GEMM_PIECE = 8192          /* bytes that a warp moves at a time */
};

/* What a kernel gave up waiting for. epa_fault: peer is the source of the rows, index their chunk,
 * stage the first row of the tile (in C), what this and the rows of the tile << 8. */
enum ag_gemm_wait {
    AG_GEMM_WAIT_TILE,
    AG_GEMM_WAIT_PANEL, /* any tile: stage is the first row of C that those in turn lack */
    AG_GEMM_WAIT_PASS,  /* rows to pass on */
    AG_GEMM_WAIT_LOAD,  /* rows to pull */
    AG_GEMM_WAIT_RING,  /* room for a put to another node: peer is who gets the rows */
    AG_GEMM_WAIT_END
};

/* Rows of `source` that this rank has, and who gets them: bits of ranks. */
struct ag_gemm_hop {
    uint16_t source, store, signal;
};

/* A block's: calls that gathered, kernels that have ended. */
struct ag_gemm_count {
    uint64_t calls, kernels;
};

/* To the kernel, by value. */
struct ag_gemm_args {
    struct gemm_rows_map gathered, own; /* the rows of the set at hand; this rank's, as given */
    CUtensorMap weights;
    struct epa_device_view v;
    uint64_t timeout_ns;
    /* Offsets of the set at hand from the start of any rank's heap: rows; FP8: their scales. */
    uint64_t set_rows, set_scales;
    uint32_t signal, chunks, chunk_rows, max_rows;
    uint32_t row_bytes, groups;                 /* of a row; groups: scales of it, 0: not FP8 */
    uint32_t n, k_blocks, columns, step, panel; /* columns: tiles across, of `step` columns */
    uint32_t tile_rows;                         /* of a cluster's tiles; panel: so many down */
    uint32_t order, comm_blocks;
    bool padded;  /* rank r's rows begin at r * max_rows, else behind those of the rank before */
    bool across;  /* tiles go across the borders of ranks */
    bool engines; /* copy engines push own rows */
    bool moves, multiplies;        /* what this kernel does; both: tiles wait for their rows */
    bool wide;                     /* rows of C can be stored 16 bytes at a time */
    uint8_t turn[AG_GEMM_RANKS];   /* ranks in the order of their tiles */
    uint16_t loaded;               /* bits of sources whose rows are pulled, */
    uint8_t sender[AG_GEMM_RANKS]; /* from here: who signals a source's chunks to this rank */
    uint32_t hops;
    struct ag_gemm_hop hop[AG_GEMM_HOPS]; /* the first: own rows */

    const uint32_t *rows;
    const char *a;
    const float *a_scale, *b_scale, *bias; /* bias NULL: none */
    char *c;

    /* This rank's alone. */
    struct ag_gemm_count *count; /* [blocks] */
    uint32_t *stored;   /* [2 * size * chunks + 2] parts of what is moved; 0 in between. [chunks] of
                       * what is put */
    uint64_t *placed;   /* [size * chunks + 2] calls: rows pulled, or own; own borders */
    uint32_t *taken[2]; /* [panels] tiles: kernels use them in turn */
    uint32_t panels;
    uint64_t *next_call; /* the number of the next call, for its copy engines */
};

/* To the kernel that has own rows put to ranks of other nodes. */
struct ag_gemm_far_args {
    struct ag_gemm_args a;
    struct epa_device_ring ring;
    uint32_t peers;   /* bits of those ranks */
    uint32_t *copied; /* [chunks] blocks; 0 in between */
};

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t ag_gemm_far_load(void);
cudaError_t ag_gemm_far_queue(cudaStream_t, uint32_t blocks, const struct ag_gemm_far_args *);

/* Takes a struct ag_gemm_args; dtype: of A and B; tile_cols: 128 or 256; cluster: blocks, 1, or
 * with 256 columns 1 or 2. */
const void *ag_gemm_kernel(int dtype, uint32_t tile_cols, uint32_t cluster);
uint32_t ag_gemm_shared_bytes(uint32_t tile_cols, uint32_t cluster);

#ifdef __cplusplus
}
#endif
#endif
