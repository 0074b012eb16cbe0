/* Experts on GPUs of compute capability 9.0, and nothing else: y = W_down a(W_up x) for the rows
 * that dispatch delivered (epa2a/problem.h, struct epa_mlp), as two kernels, one after the other.
 * Numbers of rows are read on the device: a recorded call works with the counts of the moment. */
#ifndef GEMM_EXPERTS_H
#define GEMM_EXPERTS_H

#include <cuda_runtime_api.h>

#include "gemm_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GEMM_EXPERTS = 2048 }; /* at most */

enum gemm_out_type { GEMM_OUT_BF16, GEMM_OUT_F16, GEMM_OUT_F32, GEMM_OUT_FP8, GEMM_OUTS };

/* One product of the rows of each expert, C = A * B^T, by value to a kernel. */
struct gemm_args {
    struct gemm_rows_map rows; /* of A */
    CUtensorMap weights;       /* B of all experts, one after the other; boxes of GEMM_BOX rows */
    const char *packed;        /* or B from gemm_pack(); NULL: `weights` */
    uint32_t experts, k_blocks;
    uint32_t weight_rows;      /* of an expert */
    uint32_t weight_blocks;    /* FP8: of weight_rows, that have scales */
    uint32_t second;           /* the second box of a tile is so many rows after the first; its
                                * scales are second / GEMM_BOX blocks after, rounded up */
    uint32_t tiles, step;      /* across the columns of C: how many, and columns of each */
    uint32_t columns;          /* of C, a multiple of 32, or of out_group where C is FP8 */
    const uint32_t *count;     /* [experts] rows */
    const uint64_t *start;     /* [experts] where they begin; NULL: one expert after the other */
    uint32_t in_packed;        /* rows of A are one expert after the other, whatever `start` */
    uint32_t out_packed;       /* rows of C */
    const float *row_scale;    /* FP8: of A, [rows][row_groups] */
    size_t row_scale_stride;   /* floats */
    uint32_t row_group;        /* 128 or 64 */
    uint32_t row_groups;       /* of K, a multiple of row_group */
    const float *weight_scale; /* FP8: [experts][weight_blocks][k_blocks] */
    char *out;                 /* C */
    size_t out_stride;         /* bytes, a multiple of 16 */
    float *out_scale;          /* C in FP8: [rows][columns / out_group] */
    uint32_t out_group;        /* 128 or 64 */
    /* Weights may be loaded before the kernel before this one has ended. That must be one of
     * gemm_launch() for the same counts. */
    uint32_t early;
    /* FP8 in groups of 128: a last tile of up to 16 rows goes with the tile before it, which loads
     * the same weights. Set it where most experts have more than 128 rows; else it costs 2 %. */
    uint32_t more;
};

/* Queues it. dtype: of A and B: EPA_BF16, EPA_F16 or EPA_FP8_E4M3. `out` is float32, or for FP8
 * any, else dtype. `swiglu`: the boxes are gate and up, C is their activation, in dtype. `blocks`:
 * how many multiprocessors. */
cudaError_t gemm_launch(const struct gemm_args *, int dtype, enum gemm_out_type out, bool swiglu,
                        uint32_t blocks, cudaStream_t);

/* `to` is a multiple of 16, on the device as `weights` is. */
cudaError_t gemm_pack(char *to, const void *weights, const struct gemm_packing *, uint32_t experts,
                      cudaStream_t);

#ifdef __cplusplus
}
#endif
#endif
