/* fused on GPUs: rows of the experts of this rank in the last call. */
#ifndef FUSED_LAST_ROWS_H
#define FUSED_LAST_ROWS_H

#include <cuda_runtime_api.h>

#include "fused_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kernel argument: finds the rows of this rank's experts in the counts or choices that all ranks
 * sent for the last call. */
struct fused_count_args {
    const char *packets[2]; /* as `counts` of struct fused_args, in this rank's heap */
    const unsigned long long *calls;
    uint32_t rank, size, experts, local, topk, waves, block_rows;
    uint32_t few, picks; /* as in struct fused_args and struct fused_kernel_kind */
    uint32_t *count;     /* [local]: rows to multiply */
    uint64_t *start;     /* [local]: first received row */
};

/* Queues the kernel. */
cudaError_t fused_count_rows(const struct fused_count_args *, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
