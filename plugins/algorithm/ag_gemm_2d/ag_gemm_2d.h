/* ag_gemm_2d: options, and the layout of the heap on hosts (that of GPUs is in
 * plugins/common/ag_gemm_cuda.c).
 *
 * The heap is two buffer sets, which calls use in turn. A set holds the rows of A of all ranks as
 * the GEMM reads them, at the same places on all ranks: panels (gemm.h), and for FP8 their scales;
 * and where puts may be needed the same rows as the problem has them, for rows to be put to. */
#ifndef AG_GEMM_2D_H
#define AG_GEMM_2D_H

#include <epa2a/algorithm.h>

enum ag2_mode { AG2_PUSH, AG2_PULL };
enum ag2_gather { AG2_TWO_LEVEL, AG2_DIRECT };
enum ag2_order { AG2_ARRIVAL, AG2_SWIZZLE, AG2_NONE };
enum ag2_mover { AG2_AUTO, AG2_COPY_ENGINE, AG2_SM }; /* CUDA code */

struct ag2_config {
    int mode, gather, order;               /* the enums above */
    uint32_t chunks, tile_rows, tile_cols; /* of a tile; 0: 256 on hosts, 128 and 256 on GPUs */
    bool across_ranks, comm_worker;
    int mover; /* CUDA code: an enum above, and the next three */
    uint32_t panel, comm_blocks, blocks;
};

enum { AG2_SETS = 2, AG2_RANKS = 64 };

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

/* CUDA code, where it is built in. */
enum epa_status ag2_cuda_plan(const struct epa_ag_gemm *, const struct epa_world *,
                              const struct ag2_config *, struct epa_footprint *out,
                              struct epa_error *);
enum epa_status ag2_cuda_create(const struct epa_algorithm_params *, struct epa_algorithm **out,
                                struct epa_error *);

#endif
