/* The kernel that puts own rows to ranks of other nodes. */
#ifndef AG_GEMM_FAR_H
#define AG_GEMM_FAR_H

#include "ag_gemm_device.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t ag_gemm_far_load(void);
/* Queues the kernel. Each multiprocessor has room for a block. */
cudaError_t ag_gemm_far_queue(cudaStream_t, uint32_t blocks, const struct ag_gemm_far_args *);

#ifdef __cplusplus
}
#endif

#endif
