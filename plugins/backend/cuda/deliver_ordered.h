/* Copies of received rows of layout rank. */
#ifndef CUDA_DELIVER_ORDERED_H
#define CUDA_DELIVER_ORDERED_H

#include <cuda_runtime_api.h>

#include <epa2a/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues a kernel of at most `blocks` blocks. The view has recv_range. */
cudaError_t deliver_ordered_queue(const struct epa_moe *view, const struct epa_delivery *,
                                  uint32_t blocks, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
