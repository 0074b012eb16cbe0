/* Kernels that put and signal to ranks of other nodes, for far.c and ../bench/nodes_gpu.c. */
#ifndef FAR_KERNELS_H
#define FAR_KERNELS_H

#include <cuda_runtime_api.h>
#include <epa2a/transport.h>

enum {
    FAR_BLOCKS = 4,
    FAR_THREADS = 64,
    FAR_PART = 40000, /* bytes of the rows of a block, in the heap of each rank */
    /* Signals of each block by purpose. */
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
    uint64_t own, timeout_ns;  /* own: offset of the source, [FAR_BLOCKS][FAR_PART] */
    unsigned long long *wrong; /* wrong bytes; each timed-out wait adds 1 << 32 */
};

struct nodes_run {
    struct epa_device_view v;
    struct epa_device_ring ring;
    uint32_t peer, bytes, n; /* n: number of puts, or of round trips */
    uint64_t src, dst;       /* offsets in the heap */
    uint64_t room;           /* bytes from dst on that consecutive puts cycle through */
    uint64_t value;          /* value of the signal before the run */
    uint64_t timeout_ns;
    uint64_t *ns; /* in GPU memory; 0 after a timed-out wait */
};

#ifdef __cplusplus
extern "C" {
#endif
/* Puts rows [FAR_BLOCKS][FAR_PART] to the start of the heap of `to`, in turns by a put with signal,
 * and by a put, a fence and a signal. Checks the rows that `from` puts here. */
cudaError_t far_queue_rounds(cudaStream_t, const struct far_run *);
/* Sends more signals than a ring holds, without answers. */
cudaError_t far_queue_flood(cudaStream_t, const struct far_run *);
/* Bounces signal 0 n times in each direction; the lower rank begins. */
cudaError_t nodes_queue_ping(cudaStream_t, const struct nodes_run *);
/* Streams puts from rank 0; the last put carries a signal, which the peer answers. */
cudaError_t nodes_queue_stream(cudaStream_t, const struct nodes_run *);
#ifdef __cplusplus
}
#endif

#endif
