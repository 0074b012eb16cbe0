/* AllGather and GEMM on GPUs, for the algorithms that do both at once (ag_gemm_2d) or one after the
 * other (ag_then_gemm): their settings, and where everything lies. Nothing here needs CUDA. */
#ifndef AG_GEMM_H
#define AG_GEMM_H

#include <epa2a/algorithm.h>
#include <epa2a/plugin.h>

/* Who moves rows within a node. Between nodes they are always pushed. */
enum ag_gemm_mode { AG_GEMM_PUSH, AG_GEMM_PULL };
/* What moves a rank's own rows; rows of others are passed on, and pulled, by multiprocessors. */
enum ag_gemm_mover { AG_GEMM_AUTO, AG_GEMM_COPY_ENGINE, AG_GEMM_SM };
/* Of tiles. */
enum ag_gemm_order { AG_GEMM_ARRIVAL, AG_GEMM_SWIZZLE, AG_GEMM_NONE };
/* What multiplies gathered rows, where nothing overlaps: own kernels; cuBLASLt where it is there
 * and can; cuBLASLt or nothing. */
enum ag_gemm_library { AG_GEMM_KERNELS, AG_GEMM_TRY_CUBLASLT, AG_GEMM_CUBLASLT };

struct ag_gemm_config {
    int mode, mover, order; /* the enums above */
    int library;            /* enum ag_gemm_library; not KERNELS: mover is SM, `overlap` false */
    bool two_level;         /* between nodes to the rank of the same place, which passes rows on */
    bool across_ranks;      /* a tile may have rows of several ranks */
    bool overlap;       /* tiles start as rows arrive; else a kernel gathers, another multiplies */
    uint32_t chunks;    /* of a rank's rows; 0: as many as pay */
    uint32_t tile_cols; /* 128, 256 or 0: 128 where 256 leaves blocks without a tile */
    uint32_t cluster;   /* blocks that load weights together: 1, 2 or 0: 2 where that pays */
    uint32_t panel;     /* tiles down before the next column of tiles */
    uint32_t comm_blocks; /* that move rows and multiply nothing; 0: a warp of each block moves */
    uint32_t blocks;      /* at most; 0: one for each multiprocessor */
};

enum { AG_GEMM_TILE_ROWS = 128, AG_GEMM_TILE_COLS = 256 };

#ifdef __cplusplus
extern "C" {
#endif

/* As epa_algorithm_plugin.plan and .create, for the algorithm `name`. Refused is what needs other
 * options, in the words of both plugins; nothing has begun then. */
enum epa_status ag_gemm_cuda_plan(const char *name, const struct epa_ag_gemm *,
                                  const struct epa_world *, const struct ag_gemm_config *,
                                  struct epa_footprint *out, struct epa_error *);
enum epa_status ag_gemm_cuda_create(const char *name, const struct epa_algorithm_params *,
                                    const struct ag_gemm_config *, struct epa_algorithm **out,
                                    struct epa_error *);

/* ---- ag_gemm_layout.c: before any GPU is touched ---- */

struct ag_gemm_args; /* ag_gemm_cuda.h */

/* Of the heap, alike on all ranks. */
struct ag_gemm_layout {
    uint32_t size, max_rows, groups, chunks, chunk_rows, panels;
    uint64_t row_bytes, scales_at, set_bytes;
    bool two_level, padded;
};

/* Refuses what needs other options, in words that begin with `name`. */
enum epa_status ag_gemm_layout_make(const char *name, const struct epa_ag_gemm *,
                                    const struct epa_world *, const struct ag_gemm_config *,
                                    struct ag_gemm_layout *out, struct epa_error *);

/* The rank's own memory, into `out` and next_call[AG_GEMM_SETS]; from NULL it only counts.
 * Returns bytes. */
uint64_t ag_gemm_place_private(const struct ag_gemm_layout *, uint32_t blocks, char *memory,
                               struct ag_gemm_args *out, uint64_t **next_call);

/* Who sends to whom, and the order of ranks' tiles, into `out`, which is all 0 there. Refuses
 * nodes of different sizes where rows go in two levels. */
enum epa_status ag_gemm_find_routes(const char *name, const struct ag_gemm_layout *,
                                    const struct ag_gemm_config *, const struct epa_world *,
                                    struct ag_gemm_args *out, struct epa_error *);

/* What a kernel gave up waiting for. */
void ag_gemm_explain_fault(const struct ag_gemm_layout *, const struct ag_gemm_args *,
                           const struct epa_fault *, struct epa_error *);

#ifdef __cplusplus
}
#endif
#endif
