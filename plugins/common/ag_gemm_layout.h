/* AllGather and GEMM on GPUs, before any of them is touched: where everything lies, and who
 * sends to whom. */
#ifndef AG_GEMM_LAYOUT_H
#define AG_GEMM_LAYOUT_H

#include "ag_gemm_cuda.h"

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

#endif
