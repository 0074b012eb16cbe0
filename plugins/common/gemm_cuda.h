/* Host interface of matrix products on GPUs of compute capability 9.0: C = A * B^T, where A holds
 * rows of tokens, several per expert, and B holds the weights of the experts. gemm_cuda.cuh has the
 * main loops for kernels; gemm_experts.cu has kernels that only multiply. */
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
    GEMM_ROWS = 128,     /* maximum number of rows of A in a tile */
    GEMM_MORE = 16,      /* FP8: maximum number of rows beyond GEMM_ROWS in a tile */
    GEMM_BOX = 128,      /* rows of weights in a box; a tile has two boxes */
    GEMM_BLOCK = 128,    /* bytes of K in a block: 64 values of 16 bits, or 128 of FP8 */
    GEMM_HEIGHTS = 5,    /* boxes of 8, 16, 32, 64 and 128 rows of A */
    GEMM_FP8_GROUP = 128 /* values of K that share a scale */
};

/* Tensor maps of A: `rows` rows of `k` values, `stride` bytes apart. One map per box height. */
struct gemm_rows_map {
    CUtensorMap height[GEMM_HEIGHTS];
};

/* Creates maps of memory at `address` without reading it. `address` and `stride` are multiples of
 * 16. dtype: EPA_BF16, EPA_F16 or EPA_FP8_E4M3. Returns false if the driver fails or is too old. */
bool gemm_map_rows(struct gemm_rows_map *out, int dtype, const void *address, uint64_t rows,
                   uint32_t k, size_t stride);
/* Creates a map of weights [rows][k] with boxes of `box` rows. */
bool gemm_map_weights(CUtensorMap *out, int dtype, const void *address, uint64_t rows, uint32_t k,
                      uint32_t box);

/* Weights in the order in which tiles read them: 32 KiB per tile and block of K, swizzled as in
 * shared memory. The contiguous reads save 3 % of the time of memory-bound products. */
struct gemm_packing {
    uint32_t k_blocks, weight_rows, second, tiles,
        step;           /* as in struct gemm_args (gemm_experts.h) */
    uint32_t row_bytes; /* bytes of a row of weights, a multiple of 16; the rest of its last
                         * block is 0 */
};

static inline uint64_t gemm_packed_bytes(const struct gemm_packing *p, uint32_t experts)
{
    return (uint64_t)experts * p->tiles * p->k_blocks * 2 * GEMM_BOX * GEMM_BLOCK;
}

#ifdef __cplusplus
}
#endif
#endif
