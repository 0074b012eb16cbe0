/* Copies of choices and weights. */
#ifndef CUDA_CHOICES_H
#define CUDA_CHOICES_H

#include <cuda_runtime_api.h>

#include <epa2a/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues a kernel of at most `blocks` blocks. early: the kernel is set up while the previous kernel
 * runs. */
cudaError_t choices_queue(const struct epa_choices_copy *, uint32_t blocks, bool early,
                          cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
