/* fused on GPUs: the choice of the kernel for a shape, and the layout of the heap. */
#ifndef FUSED_CUDA_LAYOUT_H
#define FUSED_CUDA_LAYOUT_H

#include <cuda_runtime_api.h>

#include "fused_layout.h"
#include "fused_device.h"

#define FUSED_USUAL \
    "with FP8 weights, groups of 128 channels in moe.fp8_group_size and expert.fp8_group_size, " \
    "and the defaults of dedup, tail, launches, ready, combine_mode and workers"
#define FUSED_NO_FP8_INPUT \
    "fused on GPUs takes inputs in FP8 " FUSED_USUAL "; set moe.input_dtype: native otherwise"

/* Layout for a shape. Offsets count from the first byte of the algorithm's heap. */
struct fused_cuda_layout {
    struct fused_kernel_kind kind;
    uint32_t size, experts, local, max_tokens, topk, hidden, ffn, up_rows;
    uint32_t block_rows;    /* rows per block: GEMM_ROWS, plus GEMM_MORE in kernels with `more` */
    uint32_t blocks;        /* maximum number of blocks of all local experts */
    uint64_t capacity;      /* number of rows in these blocks */
    uint64_t rows;          /* number of rows in the receive region */
    uint32_t element_bytes; /* bytes of an element in the products */
    uint32_t row_bytes;     /* bytes of an element of a sent row */
    uint32_t message_bytes, scales_at, meta_at, scales, act_groups;
    uint32_t parts, part_channels, waves;
    bool sorted, spread, swiglu, direct;
    uint32_t few;           /* number of tokens of all ranks, if they are few; otherwise 0 */
    bool sends_fp8, widens; /* widens: FP8 rows are converted to the 16 bits of the weights */
    struct fused_ways ways;
    uint64_t returns; /* maximum number of returning sums or outputs */
    uint32_t up_tiles, down_tiles;
    uint32_t up_steps, down_steps;    /* blocks of K per tile */
    uint64_t counts_at, counts_bytes; /* two sets */
    uint64_t recv_at, arrived_at, partial_at, flags_at, heap_bytes;
};

/* Computes the layout. Fails with a message for shapes and options without a kernel, and if memory
 * limits are exceeded. */
enum epa_status fused_cuda_layout_make(const struct epa_moe *, const struct epa_world *,
                                       const struct fused_config *, struct fused_cuda_layout *,
                                       struct epa_error *);
/* Returns the shared memory of a thread block and sets the arguments that determine it. */
uint32_t fused_cuda_shared_bytes(const struct fused_cuda_layout *, struct fused_args *);

#endif
