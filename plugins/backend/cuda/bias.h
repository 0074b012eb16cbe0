/* Addition of biases to sums. */
#ifndef CUDA_BIAS_H
#define CUDA_BIAS_H

#include <cuda_runtime_api.h>

#include <epa2a/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues a kernel of at most `blocks` blocks. */
cudaError_t bias_queue(const void *const bias[2], enum epa_dtype dtype, uint64_t n, void *out,
                       uint32_t blocks, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
