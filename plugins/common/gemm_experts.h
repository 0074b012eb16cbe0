/* Kernels for experts on GPUs of compute capability 9.0: y = W_down a(W_up x) for the rows that
 * dispatch delivered (epa2a/problem.h, struct epa_mlp), as two consecutive kernels. The kernels
 * read the numbers of rows on the device, so a recorded graph uses the current counts at each
 * replay. */
#ifndef GEMM_EXPERTS_H
#define GEMM_EXPERTS_H

#include <cuda_runtime_api.h>

#include "gemm_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GEMM_EXPERTS = 2048 }; /* maximum number of experts */

enum gemm_out_type { GEMM_OUT_BF16, GEMM_OUT_F16, GEMM_OUT_F32, GEMM_OUT_FP8, GEMM_OUTS };

/* Kernel argument, passed by value: one product of the rows of each expert, C = A * B^T. */
struct gemm_args {
    struct gemm_rows_map rows; /* tensor maps of A */
    CUtensorMap weights;       /* B of all experts, one after the other; boxes of GEMM_BOX rows */
    const char *packed;        /* B packed by gemm_pack(); NULL: `weights` */
    uint32_t experts, k_blocks;
    uint32_t weight_rows;      /* rows of weights per expert */
    uint32_t weight_blocks;    /* FP8: blocks of weight_rows with scales */
    uint32_t second;           /* distance in rows between the two boxes of a tile; the distance
                                * of their scales is second / GEMM_BOX blocks, rounded up */
    uint32_t tiles, step;      /* tiles across the columns of C, and columns of each tile */
    uint32_t columns;          /* columns of C: a multiple of 32, or, for C in FP8, of out_group */
    const uint32_t *count;     /* [experts]: number of rows */
    const uint64_t *start;     /* [experts]: first row; NULL: one expert after the other */
    uint32_t in_packed;        /* rows of A are one expert after the other, regardless of `start` */
    uint32_t out_packed;       /* the same for rows of C */
    const float *row_scale;    /* FP8: scales of A, [rows][row_groups] */
    size_t row_scale_stride;   /* floats */
    uint32_t row_group;        /* values per scale of A: 128 or 64 */
    uint32_t row_groups;       /* groups of K, which is a multiple of row_group */
    const float *weight_scale; /* FP8: [experts][weight_blocks][k_blocks] */
    char *out;                 /* C */
    size_t out_stride;         /* bytes, a multiple of 16 */
    float *out_scale;          /* scales of C in FP8: [rows][columns / out_group] */
    uint32_t out_group;        /* values per scale of C: 128 or 64 */
    /* The kernel may load weights before the previous kernel has ended. That kernel must be one of
     * gemm_launch() with the same counts. */
    uint32_t early;
    /* FP8 in groups of 128: a last tile of up to 16 rows joins the tile before it, which loads the
     * same weights. Set it if most experts have more than 128 rows; otherwise it costs 2 %. */
    uint32_t more;
};

/* Queues the product. dtype: type of A and B: EPA_BF16, EPA_F16 or EPA_FP8_E4M3. `out` is float32
 * or dtype; for FP8 any type. `swiglu`: the boxes are gate and up, C is their activation, in dtype.
 * `blocks`: number of multiprocessors. */
cudaError_t gemm_launch(const struct gemm_args *, int dtype, enum gemm_out_type out, bool swiglu,
                        uint32_t blocks, cudaStream_t);

/* Queues the packing of `weights`. Both addresses are device addresses; `to` is a multiple of
 * 16. */
cudaError_t gemm_pack(char *to, const void *weights, const struct gemm_packing *, uint32_t experts,
                      cudaStream_t);

#ifdef __cplusplus
}
#endif
#endif
