/* Matrix products on GPUs of compute capability 9.0, as hosts see them: C = A * B^T, where A are
 * rows of tokens, some for each expert, and B the weights of the experts. The main loops for
 * kernels are in gemm_cuda.cuh; gemm_experts.cu has kernels that do nothing else. */
#ifndef GEMM_CUDA_H
#define GEMM_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#include <epa2a/problem.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GEMM_ROWS = 128,     /* of A in a tile, at most */
    GEMM_MORE = 16,      /* FP8: that a tile of GEMM_ROWS may have besides */
    GEMM_BOX = 128,      /* rows of weights in a box; a tile has two */
    GEMM_BLOCK = 128,    /* bytes of K in a block: 64 values of 16 bits, or 128 of FP8 */
    GEMM_HEIGHTS = 5,    /* boxes of 8, 16, 32, 64 and 128 rows of A */
    GEMM_FP8_GROUP = 128 /* values of K that share a scale */
};

/* A: `rows` rows of `k` values, every `stride` bytes. One map for each height of a box. */
struct gemm_rows_map {
    CUtensorMap height[GEMM_HEIGHTS];
};

/* Maps of what is at `address`, a multiple of 16 as `stride` is; nothing is read. dtype: EPA_BF16,
 * EPA_F16 or EPA_FP8_E4M3. False: the driver refuses, or is too old. */
bool gemm_map_rows(struct gemm_rows_map *out, int dtype, const void *address, uint64_t rows,
                   uint32_t k, size_t stride);
/* Boxes of `box` rows of weights [rows][k]. */
bool gemm_map_weights(CUtensorMap *out, int dtype, const void *address, uint64_t rows, uint32_t k,
                      uint32_t box);

/* Weights in the order in which tiles read them: 32 KiB for a tile and a block of K, swizzled as in
 * shared memory. Memory is read in one piece: 3 % less time where it is what takes it. */
struct gemm_packing {
    uint32_t k_blocks, weight_rows, second, tiles,
        step;           /* as in struct gemm_args (gemm_experts.h) */
    uint32_t row_bytes; /* of a row of weights, a multiple of 16; the rest of its last block is 0 */
};

static inline uint64_t gemm_packed_bytes(const struct gemm_packing *p, uint32_t experts)
{
    return (uint64_t)experts * p->tiles * p->k_blocks * 2 * GEMM_BOX * GEMM_BLOCK;
}

#ifdef __cplusplus
}
#endif
#endif
