/* Layout rank: the order of received rows, and copies in this order. */
#ifndef CUDA_PLACES_H
#define CUDA_PLACES_H

#include <cuda_runtime_api.h>

#include <epa2a/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queue kernels of at most `blocks` blocks. The map of the rows precedes the other calls. */
cudaError_t places_queue(const struct epa_moe *view, uint32_t experts, const struct epa_places *,
                         uint32_t blocks, cudaStream_t);
cudaError_t places_deliver_queue(const struct epa_moe *view, const struct epa_delivery *,
                                 uint32_t blocks, cudaStream_t);
cudaError_t places_gather_queue(const struct epa_places *, uint32_t row_bytes, const void *y,
                                void *to, uint32_t blocks, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
