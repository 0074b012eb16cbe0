/* Experts on GPUs of compute capability 9.0, and nothing else: y = W_down a(W_up x) for the rows that
 * dispatch delivered (epa2a/problem.h, struct epa_mlp), as two kernels, one after the other. Numbers
 * of rows are read on the device: a recorded call works with the counts of the moment. */
#ifndef GEMM_EXPERTS_H
#define GEMM_EXPERTS_H

#include <cuda_runtime_api.h>

#include "gemm_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gemm_out_type { GEMM_OUT_BF16, GEMM_OUT_F16, GEMM_OUT_F32, GEMM_OUT_FP8, GEMM_OUTS };

/* One product of the rows of each expert, by value to a kernel. */
struct gemm_args {
    struct gemm_rows_map rows; /* of A */
    CUtensorMap weights;       /* of all experts, one after the other; boxes of GEMM_BOX rows */
    uint32_t experts, k_blocks;
    uint32_t weight_rows; /* of an expert */
    uint32_t second;      /* the second box of a tile is so many rows after the first */
    uint32_t tiles;       /* across the columns of C */
    uint32_t step;        /* columns of C in a tile: GEMM_BOX, or both boxes */
    uint32_t columns;     /* of C */
    const uint32_t *count;          /* [experts] rows */
    const uint64_t *start;          /* [experts] where they begin; NULL: one expert after the other */
    const float *row_scale;         /* FP8: of A, [rows][k / 128] */
    size_t row_scale_stride;        /* floats */
    const float *weight_scale;      /* FP8: [experts][weight_rows / 128][k / 128] */
    char *out;                      /* C: rows like A's, but packed where `start` is not for them */
    size_t out_stride;              /* bytes */
    float *out_scale;               /* C in FP8: [rows][columns / 128] */
    uint32_t in_packed, out_packed; /* rows of A, of C: one expert after the other, whatever `start` */
    uint32_t early; /* weights may be loaded before the kernel before this one has ended; its counts
                       are those of that */
};

/* Queues it. dtype: of A and B. `swiglu`: the boxes are gate and up, and C is their activation.
 * `blocks`: multiprocessors to use. */
cudaError_t gemm_launch(const struct gemm_args *, int dtype, enum gemm_out_type, bool swiglu,
                        uint32_t blocks, cudaStream_t);

#ifdef __cplusplus
}
#endif
#endif
