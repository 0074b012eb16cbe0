/* Weights that combine returns in layout rank. */
#ifndef CUDA_WEIGHTS_H
#define CUDA_WEIGHTS_H

#include <cuda_runtime_api.h>

#include <epa2a/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queue kernels of at most `blocks` blocks. */
cudaError_t weights_encode_queue(const struct epa_moe *view, const struct epa_weight_bytes *,
                                 const float *weight, void *y, uint32_t blocks, cudaStream_t);
cudaError_t weights_decode_queue(const struct epa_weight_bytes *, uint32_t tokens, const void *sum,
                                 float *weight, uint32_t blocks, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
