/* Quantisation of tokens. */
#ifndef CUDA_QUANTISE_H
#define CUDA_QUANTISE_H

#include <cuda_runtime_api.h>

#include <epa2a/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues a kernel of at most `blocks` blocks. */
cudaError_t quantise_queue(const struct epa_quantise *, uint32_t blocks, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
