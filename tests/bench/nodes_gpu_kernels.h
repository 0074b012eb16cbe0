/* Kernels of nodes_gpu.c. */
#ifndef NODES_GPU_KERNELS_H
#define NODES_GPU_KERNELS_H

#include <cuda_runtime_api.h>
#include <epa2a/transport.h>

struct nodes_run {
    struct epa_device_view v;
    struct epa_device_ring ring;
    uint32_t peer, bytes, n; /* puts, or turns there and back */
    uint64_t src, dst;       /* in the heap */
    uint64_t room;           /* that puts of a stream go through, from dst on */
    uint64_t value;          /* of the signal, before */
    uint64_t timeout_ns;
    uint64_t *ns; /* in the memory of the GPU: 0 where a wait was in vain */
};

#ifdef __cplusplus
extern "C" {
#endif
/* Signal 0, one way n times each; the lower rank begins. */
cudaError_t nodes_queue_ping(cudaStream_t, const struct nodes_run *);
/* From rank 0; the last put is with a signal, which is answered. */
cudaError_t nodes_queue_stream(cudaStream_t, const struct nodes_run *);
#ifdef __cplusplus
}
#endif

#endif
