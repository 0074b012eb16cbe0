/* The kernels of the transport: signals from the host, in stream order, and the runs of
 * device_peak(). Each wait has a time limit and writes the reason of its end to the view's fault. */
#include "nvlink_kernels.h"

#include <epa2a/device.cuh>

enum {
    STORE_THREADS = 512,     /* threads of a block */
    STORE_CHUNK = 32 * 1024, /* bytes that a block stores at once */
};

/* One thread. The kernel starts after the earlier copies of the stream; the fence makes these copies
 * visible to a reader of the word. */
static __global__ void signal_word(uint64_t *word, uint64_t value, bool add)
{
    epa_dev_fence();
    if (add)
        atomicAdd_system((unsigned long long *)word, (unsigned long long)value);
    else
        epa_dev_store_relaxed(word, value);
}

/* One warp. Lane p signals the arrival of this rank to rank p and waits for the signal of rank p.
 * The next kernel of the stream then starts on all ranks within the latency of a signal. */
static __global__ void meet_all(const __grid_constant__ epa_device_view v, uint32_t word,
                                uint64_t epoch, uint64_t timeout_ns)
{
    uint32_t peer = threadIdx.x;

    if (peer >= v.size || peer == v.rank)
        return;
    epa_dev_signal(v, word + v.rank, epoch, peer);
    (void)epa_dev_wait_for(v, word + peer, epoch, timeout_ns,
                           {.stage = 0, .what = 0, .peer = peer, .index = 0});
}

/* Any grid. A block stores a chunk at a time, to one peer after the other, so that all
 * links are busy from the start. */
static __global__ void __launch_bounds__(STORE_THREADS)
    store_to_all(const __grid_constant__ epa_device_view v, uint64_t part, uint32_t passes)
{
    uint32_t peers = v.size - 1;
    uint64_t chunks = (part + STORE_CHUNK - 1) / STORE_CHUNK;
    uint64_t items = chunks * peers * passes;

    for (uint64_t item = blockIdx.x; item < items; item += gridDim.x) {
        uint32_t peer = (v.rank + 1 + (uint32_t)(item % peers)) % v.size;
        uint64_t begin = item / peers % chunks * STORE_CHUNK;
        uint64_t end = min(begin + STORE_CHUNK, part);
        uint32_t place = v.rank < peer ? v.rank : v.rank - 1; /* index of this rank among the peer's peers */
        char *to = v.peer_heap[peer] + place * part;
        uint4 value = make_uint4((uint32_t)item, v.rank, peer, threadIdx.x);

        for (uint64_t at = begin + threadIdx.x * sizeof(value); at < end;
             at += STORE_THREADS * sizeof(value))
            *(uint4 *)(to + at) = value;
    }
}

/* One thread on each of two ranks; the lower rank starts each turn. The first turn waits for the
 * peer's kernel and is not timed. */
static __global__ void ping(const __grid_constant__ epa_device_view v,
                            const __grid_constant__ struct ping_run run)
{
    const struct epa_dev_wait who = {.stage = 0, .what = 0, .peer = run.peer, .index = 0};
    bool first = v.rank < run.peer;
    uint64_t begun = 0;

    for (uint32_t turn = 0; turn <= run.turns; turn++) {
        uint64_t value = run.base + turn;

        if (turn == 1)
            begun = epa_dev_time();
        if (first)
            epa_dev_signal(v, run.word + v.rank, value, run.peer);
        if (!epa_dev_wait_for(v, run.word + run.peer, value, run.timeout_ns, who))
            return;
        if (!first)
            epa_dev_signal(v, run.word + v.rank, value, run.peer);
    }
    *run.time = epa_dev_time() - begun;
}

cudaError_t nvlink_load_kernels(void)
{
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, signal_word);

    if (error == cudaSuccess)
        error = cudaFuncGetAttributes(&attributes, meet_all);
    if (error == cudaSuccess)
        error = cudaFuncGetAttributes(&attributes, store_to_all);
    if (error == cudaSuccess)
        error = cudaFuncGetAttributes(&attributes, ping);
    return error;
}

cudaError_t nvlink_queue_signal(cudaStream_t stream, uint64_t *word, uint64_t value, bool add)
{
    signal_word<<<1, 1, 0, stream>>>(word, value, add);
    return cudaGetLastError();
}

cudaError_t nvlink_queue_meet(cudaStream_t stream, const struct epa_device_view *view,
                              uint32_t word, uint64_t epoch, uint64_t timeout_ns)
{
    meet_all<<<1, 32, 0, stream>>>(*view, word, epoch, timeout_ns);
    return cudaGetLastError();
}

cudaError_t nvlink_queue_stores(cudaStream_t stream, const struct epa_device_view *view,
                                uint64_t part, uint32_t passes, uint32_t blocks)
{
    store_to_all<<<blocks, STORE_THREADS, 0, stream>>>(*view, part, passes);
    return cudaGetLastError();
}

cudaError_t nvlink_queue_ping(cudaStream_t stream, const struct epa_device_view *view,
                              const struct ping_run *run)
{
    ping<<<1, 1, 0, stream>>>(*view, *run);
    return cudaGetLastError();
}
