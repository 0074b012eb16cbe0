/* Kernels that measure what links can do; limit.c queues them. Each wait in them is
 * bounded, and writes why it ended to the view's fault. */
#include "kernels.h"

#include <epa2a/device.cuh>

/* One warp; lane p tells rank p that this rank has come, and waits for it. The next kernel
 * in the stream then starts at the same time on all ranks, but for the latency of a
 * signal. */
static __global__ void meet_all(const __grid_constant__ epa_device_view v, uint32_t word,
                                uint64_t epoch, uint64_t timeout_ns)
{
    uint32_t peer = threadIdx.x;

    if (peer >= v.size || peer == v.rank)
        return;
    epa_dev_signal(v, word + v.rank, epoch, peer);
    (void)epa_dev_wait_for(v, word + peer, epoch, timeout_ns,
                           {.stage = 0, .what = LIMIT_MEET, .peer = peer, .index = 0});
}

/* Any grid. A block stores a chunk at a time, to one peer after the other, so that all
 * links are busy from the start. */
static __global__ void __launch_bounds__(STORE_THREADS)
    store_to_all(const __grid_constant__ epa_device_view v,
                 const __grid_constant__ struct store_run run)
{
    uint32_t peers = v.size - 1;
    uint64_t chunks = (run.part + STORE_CHUNK - 1) / STORE_CHUNK;
    uint64_t items = chunks * peers * run.passes;

    for (uint64_t item = blockIdx.x; item < items; item += gridDim.x) {
        uint32_t peer = (v.rank + 1 + (uint32_t)(item % peers)) % v.size;
        uint64_t begin = item / peers % chunks * STORE_CHUNK;
        uint64_t end = min(begin + STORE_CHUNK, run.part);
        uint32_t place = v.rank < peer ? v.rank : v.rank - 1; /* among the peer's peers */
        char *to = v.peer_heap[peer] + run.at + place * run.part;
        uint4 value = make_uint4((uint32_t)item, v.rank, peer, threadIdx.x);

        for (uint64_t at = begin + threadIdx.x * sizeof(value); at < end;
             at += STORE_THREADS * sizeof(value))
            *(uint4 *)(to + at) = value;
    }
}

/* One thread here, one at the peer: who has `times` begins each turn, the other expert outputs. */
static __global__ void ping(const __grid_constant__ epa_device_view v,
                            const __grid_constant__ struct ping_run run)
{
    const struct epa_dev_wait who = {
        .stage = 0, .what = LIMIT_PING, .peer = run.peer, .index = 0};
    uint64_t turn = run.base;

    for (uint32_t batch = 0; batch < run.batches; batch++) {
        uint64_t begun = epa_dev_time();

        for (uint32_t i = 0; i < run.turns; i++) {
            turn++;
            if (run.times != nullptr)
                epa_dev_signal(v, run.word + v.rank, turn, run.peer);
            if (!epa_dev_wait_for(v, run.word + run.peer, turn, run.timeout_ns, who))
                return;
            if (run.times == nullptr)
                epa_dev_signal(v, run.word + v.rank, turn, run.peer);
        }
        if (run.times != nullptr)
            run.times[batch] = epa_dev_time() - begun;
    }
}

cudaError_t nvlink_load_peak(void)
{
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, meet_all);

    if (error == cudaSuccess)
        error = cudaFuncGetAttributes(&attributes, store_to_all);
    if (error == cudaSuccess)
        error = cudaFuncGetAttributes(&attributes, ping);
    return error;
}

cudaError_t nvlink_queue_meet(cudaStream_t stream, const struct epa_device_view *view,
                              uint32_t word, uint64_t epoch, uint64_t timeout_ns)
{
    meet_all<<<1, 32, 0, stream>>>(*view, word, epoch, timeout_ns);
    return cudaGetLastError();
}

cudaError_t nvlink_queue_store(cudaStream_t stream, const struct epa_device_view *view,
                               const struct store_run *run)
{
    store_to_all<<<run->blocks, STORE_THREADS, 0, stream>>>(*view, *run);
    return cudaGetLastError();
}

cudaError_t nvlink_queue_ping(cudaStream_t stream, const struct epa_device_view *view,
                              const struct ping_run *run)
{
    ping<<<1, 1, 0, stream>>>(*view, *run);
    return cudaGetLastError();
}
