/* AllGather and GEMM on GPUs: settings and memory layout. Used by ag_gemm_2d, which overlaps both,
 * and by ag_then_gemm, which runs one after the other. This header does not need CUDA. */
#ifndef AG_GEMM_H
#define AG_GEMM_H

#include <epa2a/algorithm.h>
#include <epa2a/plugin.h>

/* Direction of transfers within a node. Between nodes rows are always pushed. */
enum ag_gemm_mode { AG_GEMM_PUSH, AG_GEMM_PULL };
/* Engine that moves a rank's own rows. Multiprocessors forward and pull the rows of other ranks. */
enum ag_gemm_mover { AG_GEMM_AUTO, AG_GEMM_COPY_ENGINE, AG_GEMM_SM };
/* Order of tiles. */
enum ag_gemm_order { AG_GEMM_ARRIVAL, AG_GEMM_SWIZZLE, AG_GEMM_NONE };
/* Library that multiplies gathered rows if nothing overlaps: own kernels; cuBLASLt if it is
 * available and supports the problem; cuBLASLt or failure. */
enum ag_gemm_library { AG_GEMM_KERNELS, AG_GEMM_TRY_CUBLASLT, AG_GEMM_CUBLASLT };

struct ag_gemm_config {
    int mode, mover, order; /* the enums above */
    int library;            /* enum ag_gemm_library; other than KERNELS: mover is SM and
                             * `overlap` is false */
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
};

enum { AG_GEMM_TILE_ROWS = 128, AG_GEMM_TILE_COLS = 256 };

#ifdef __cplusplus
extern "C" {
#endif

/* Implement epa_algorithm_plugin.plan and .create for the algorithm `name`. They reject settings
 * that need other options, with messages that suit both plugins, before any work begins. */
enum epa_status ag_gemm_cuda_plan(const char *name, const struct epa_ag_gemm *,
                                  const struct epa_world *, const struct ag_gemm_config *,
                                  struct epa_footprint *out, struct epa_error *);
enum epa_status ag_gemm_cuda_create(const char *name, const struct epa_algorithm_params *,
                                    const struct ag_gemm_config *, struct epa_algorithm **out,
                                    struct epa_error *);

/* ---- ag_gemm_layout.c: set-up without a GPU ---- */

struct ag_gemm_args; /* ag_gemm_cuda.h */

/* Layout of the heap, identical on all ranks. */
struct ag_gemm_layout {
    uint32_t size, max_rows, groups, chunks, chunk_rows, panels;
    uint64_t row_bytes, scales_at, set_bytes;
    bool two_level, padded;
};

/* Computes the layout. Rejects settings that need other options; `name` begins the message. */
enum epa_status ag_gemm_layout_make(const char *name, const struct epa_ag_gemm *,
                                    const struct epa_world *, const struct ag_gemm_config *,
                                    struct ag_gemm_layout *out, struct epa_error *);

/* Places the rank's private memory: sets pointers in `out` and next_call[AG_GEMM_SETS]. With memory
 * NULL it only counts. Returns the number of bytes. */
uint64_t ag_gemm_place_private(const struct ag_gemm_layout *, uint32_t blocks, char *memory,
                               struct ag_gemm_args *out, uint64_t **next_call);

/* Writes the routes between ranks and the order of ranks' tiles into `out`, which must be 0 in
 * these fields. With two levels it rejects nodes of different sizes. */
enum epa_status ag_gemm_find_routes(const char *name, const struct ag_gemm_layout *,
                                    const struct ag_gemm_config *, const struct epa_world *,
                                    struct ag_gemm_args *out, struct epa_error *);

/* Explains the time-out of a kernel. */
void ag_gemm_explain_fault(const struct ag_gemm_layout *, const struct ag_gemm_args *,
                           const struct epa_fault *, struct epa_error *);

#ifdef __cplusplus
}
#endif
#endif
