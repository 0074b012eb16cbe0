/* fused on GPUs: which kernel a shape takes, and where things stand in the heap. */
#ifndef FUSED_CUDA_LAYOUT_H
#define FUSED_CUDA_LAYOUT_H

#include <cuda_runtime_api.h>

#include "fused.h"
#include "fused_device.h"

#define FUSED_USUAL \
    "with FP8 weights in groups of 128 channels, and the defaults of dedup, tail, launches, " \
    "ready, combine_mode and workers"
#define FUSED_NO_FP8_INPUT "fused on GPUs takes inputs in FP8 " FUSED_USUAL

/* Offsets from the first byte of the algorithm's heap. */
struct fused_cuda_layout {
    struct fused_kernel_kind kind;
    uint32_t size, experts, local, max_tokens, topk, hidden, ffn, up_rows;
    uint32_t block_rows;    /* GEMM_ROWS, or GEMM_MORE more */
    uint32_t blocks;        /* of all experts here, at most */
    uint64_t capacity;      /* rows, of those blocks */
    uint64_t rows;          /* that are received */
    uint32_t element_bytes; /* of what is multiplied */
    uint32_t row_bytes;     /* of an element of a row that is sent */
    uint32_t message_bytes, scales_at, meta_at, scales, act_groups;
    uint32_t parts, part_channels, waves;
    bool sorted, spread, swiglu, direct;
    uint32_t few;           /* tokens of all ranks together, or 0 */
    bool sends_fp8, widens; /* widens: FP8 rows, for weights of 16 bits */
    struct fused_ways ways;
    uint64_t returns; /* rows of sums or outputs */
    uint32_t up_tiles, down_tiles;
    uint32_t up_steps, down_steps; /* blocks of K */ /* of FUSED_COLUMNS rows of weights */
    uint64_t counts_at, counts_bytes;                /* two sets */
    uint64_t recv_at, arrived_at, partial_at, flags_at, heap_bytes;
};

/* Refused in words: shapes and options that no kernel takes, and what has no room. */
enum epa_status fused_cuda_layout_make(const struct epa_moe *, const struct epa_world *,
                                       const struct fused_config *, struct fused_cuda_layout *,
                                       struct epa_error *);
/* Shared memory of a thread block, and what of the arguments it depends on. */
uint32_t fused_cuda_shared_bytes(const struct fused_cuda_layout *, struct fused_args *);

#endif
