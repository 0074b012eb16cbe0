/* AllGather and GEMM on GPUs, for the algorithms that do it at once or one after the other: what
 * the host gives the kernel, and the algorithm that is made of both (ag_gemm_cuda.c has the
 * protocol). */
#ifndef AG_GEMM_CUDA_H
#define AG_GEMM_CUDA_H

#include <cuda_runtime_api.h>

#include <epa2a/algorithm.h>
#include <epa2a/plugin.h>
#include <epa2a/ring.h>

#include "gemm_cuda.h"

/* Who moves rows within a node. Between nodes they are always pushed. */
enum ag_gemm_mode { AG_GEMM_PUSH, AG_GEMM_PULL };
/* What moves a rank's own rows; rows of others are passed on, and pulled, by multiprocessors. */
enum ag_gemm_mover { AG_GEMM_AUTO, AG_GEMM_COPY_ENGINE, AG_GEMM_SM };
/* Of tiles. */
enum ag_gemm_order { AG_GEMM_ARRIVAL, AG_GEMM_SWIZZLE, AG_GEMM_NONE };

struct ag_gemm_config {
    int mode, mover, order; /* the enums above */
    bool two_level;         /* between nodes to the rank of the same place, which passes rows on */
    bool across_ranks;      /* a tile may have rows of several ranks */
    bool overlap;       /* tiles start as rows arrive; else a kernel gathers, another multiplies */
    uint32_t chunks;    /* of a rank's rows; 0: as many as pay */
    uint32_t tile_cols; /* 128, 256 or 0: 128 where 256 leaves blocks without a tile */
    uint32_t panel;     /* tiles down before the next column of tiles */
    uint32_t comm_blocks; /* that move rows and multiply nothing; 0: a warp of each block moves */
    uint32_t blocks;      /* at most; 0: one for each multiprocessor */
};

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
    uint32_t order, comm_blocks, turns;
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

/* Takes a struct ag_gemm_args; dtype: of A and B; tile_cols: 128 or 256. */
const void *ag_gemm_kernel(int dtype, uint32_t tile_cols);
uint32_t ag_gemm_shared_bytes(uint32_t tile_cols);

/* As epa_algorithm_plugin.plan and .create, for the algorithm `name`. Refused is what needs other
 * options, in the words of both plugins; nothing has begun then. */
enum epa_status ag_gemm_cuda_plan(const char *name, const struct epa_ag_gemm *,
                                  const struct epa_world *, const struct ag_gemm_config *,
                                  struct epa_footprint *out, struct epa_error *);
enum epa_status ag_gemm_cuda_create(const char *name, const struct epa_algorithm_params *,
                                    const struct ag_gemm_config *, struct epa_algorithm **out,
                                    struct epa_error *);

#ifdef __cplusplus
}
#endif
#endif
