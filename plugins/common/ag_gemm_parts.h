/* Small kernels between the products of cuBLASLt. */
#ifndef AG_GEMM_PARTS_H
#define AG_GEMM_PARTS_H

#include "ag_gemm_device.h"

/* Argument of the kernel that waits for the rows of a rank, before cuBLASLt multiplies them. */
struct ag_gemm_await {
    struct epa_device_view v;
    uint64_t timeout_ns;
    uint32_t signal, chunks, source; /* signal: as in struct ag_gemm_args */
    const uint64_t *number;          /* number of the call */
    uint64_t *next_call;             /* of struct ag_gemm_args; NULL: not the last rank */
};

/* Argument of the kernel that transposes scales of FP8 rows: [rows][groups] to [groups][rows]. */
struct ag_gemm_transpose {
    const float *from;
    float *to;
    uint32_t rows, groups;
};

/* Argument of the kernel that closes gaps between the rows of ranks in C. */
struct ag_gemm_gaps {
    const uint32_t *rows;
    char *c;
    uint32_t size, max_rows;
    uint32_t vectors; /* 16 bytes each, of a row of C */
};

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t ag_gemm_parts_load(void);
/* Queues a wait for the rows of a rank, on one warp. */
cudaError_t ag_gemm_await_queue(cudaStream_t, const struct ag_gemm_await *);
cudaError_t ag_gemm_transpose_queue(cudaStream_t, const struct ag_gemm_transpose *);
/* Queues the moves of rows of C to their places, if a rank has fewer rows than its room. */
cudaError_t ag_gemm_gaps_queue(cudaStream_t, const struct ag_gemm_gaps *);

#ifdef __cplusplus
}
#endif

#endif
