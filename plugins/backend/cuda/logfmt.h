/* Rounding of expert outputs to LogFMT-10. */
#ifndef CUDA_LOGFMT_H
#define CUDA_LOGFMT_H

#include <cuda_runtime_api.h>

#include <epa2a/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues a kernel of at most `blocks` blocks; epa_backend_ops.round_outputs has the other arguments. early:
 * see launch_early.cuh. */
cudaError_t logfmt_queue(const struct epa_moe *view, uint32_t experts, const void *y, void *out,
                         uint32_t blocks, bool early, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
