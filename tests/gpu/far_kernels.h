/* Kernels that put and signal to ranks of other nodes, for far.c, and for ../bench/nodes_gpu.c. */
#ifndef FAR_KERNELS_H
#define FAR_KERNELS_H

#include <cuda_runtime_api.h>
#include <epa2a/transport.h>

enum {
    FAR_BLOCKS = 4,
    FAR_THREADS = 64,
    FAR_PART = 40000, /* bytes of a block's rows, in the heap for each rank */
    /* Signals of each block, by what they say. */
    FAR_PUT = 0,
    FAR_SET = FAR_PUT + FAR_BLOCKS,
    FAR_ANSWER = FAR_SET + FAR_BLOCKS,
    FAR_FLOOD = FAR_ANSWER + FAR_BLOCKS,
    FAR_SIGNALS = FAR_FLOOD + FAR_BLOCKS,
};

struct far_run {
    struct epa_device_view v;
    struct epa_device_ring ring;
    uint32_t to, from; /* ranks of other nodes */
    uint32_t rounds, flood;
    uint64_t own, timeout_ns;  /* own: offset of what is put, [FAR_BLOCKS][FAR_PART] */
    unsigned long long *wrong; /* bytes, and 1 << 32 for a wait in vain */
};

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
/* Rows of [FAR_BLOCKS][FAR_PART] at the start of the heap of `to`, by a put with a signal, by a
 * put, a fence and a signal, in turns; `from` does so here. */
cudaError_t far_queue_rounds(cudaStream_t, const struct far_run *);
/* Signals without an answer, more than a ring holds. */
cudaError_t far_queue_flood(cudaStream_t, const struct far_run *);
/* Signal 0, one way n times each; the lower rank begins. */
cudaError_t nodes_queue_ping(cudaStream_t, const struct nodes_run *);
/* From rank 0; the last put is with a signal, which is answered. */
cudaError_t nodes_queue_stream(cudaStream_t, const struct nodes_run *);
#ifdef __cplusplus
}
#endif

#endif
