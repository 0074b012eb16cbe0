/* Copies of received rows of layout expert. */
#ifndef CUDA_DELIVER_H
#define CUDA_DELIVER_H

#include <cuda_runtime_api.h>

#include <epa2a/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues a kernel of at most `blocks` blocks. Layout expert. early: the kernel is set up while the
 * previous kernel runs. */
cudaError_t deliver_queue(const struct epa_moe *view, const struct epa_delivery *, uint32_t blocks,
                          bool early, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
