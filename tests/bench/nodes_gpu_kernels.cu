/* Puts and signals to a rank of another node, by one warp of a kernel. */
#include "nodes_gpu_kernels.h"

#include <epa2a/ring.cuh>

EPA_DEV bool send(const struct nodes_run &a, uint64_t dst, uint64_t value, bool signals)
{
    uint32_t op = (a.bytes > 0 ? EPA_RING_PUT : 0u) | (signals ? EPA_RING_SET : 0u);
    struct epa_descriptor what = {0,       op,    a.peer, dst, a.v.peer_heap[a.v.rank] + a.src,
                                  a.bytes, value, 0,      1,   0};

    return epa_dev_ask_far_warp(a.v, a.ring, what, a.timeout_ns, {0, 0, a.peer, 0});
}

EPA_DEV bool see(const struct nodes_run &a, uint64_t value)
{
    bool ok = true;

    if (threadIdx.x == 0)
        ok = epa_dev_wait_for(a.v, 0, value, a.timeout_ns, {0, 1, a.peer, 0});
    return __shfl_sync(0xffffffffu, (int)ok, 0) != 0;
}

static __global__ void ping(const __grid_constant__ struct nodes_run a)
{
    bool first = a.v.rank < a.peer, ok = true;
    uint64_t begun = 0;

    for (uint32_t turn = 0; turn <= a.n && ok; turn++) {
        begun = turn == 1 ? epa_dev_time() : begun; /* both kernels run */
        if (first)
            ok = send(a, a.dst, a.value + turn + 1, true);
        ok = ok && see(a, a.value + turn + 1);
        if (ok && !first)
            ok = send(a, a.dst, a.value + turn + 1, true);
    }
    if (threadIdx.x == 0)
        *a.ns = ok ? epa_dev_time() - begun : 0;
}

static __global__ void stream(const __grid_constant__ struct nodes_run a)
{
    bool first = a.v.rank == 0, ok = true;
    uint64_t begun, slots = a.room / a.bytes;
    struct nodes_run answer = a;

    answer.bytes = 0;
    /* Both are here. */
    ok = first || send(answer, 0, a.value + 1, true);
    ok = ok && (!first || see(a, a.value + 1));
    begun = epa_dev_time();
    for (uint32_t i = 0; i < a.n && ok && first; i++)
        ok = send(a, a.dst + i % slots * a.bytes, a.value + 2, i + 1 == a.n);
    ok = ok && see(a, a.value + 2);
    if (ok && !first)
        ok = send(answer, 0, a.value + 2, true);
    if (threadIdx.x == 0)
        *a.ns = ok ? epa_dev_time() - begun : 0;
}

cudaError_t nodes_queue_ping(cudaStream_t s, const struct nodes_run *run)
{
    ping<<<1, 32, 0, s>>>(*run);
    return cudaGetLastError();
}

cudaError_t nodes_queue_stream(cudaStream_t s, const struct nodes_run *run)
{
    stream<<<1, 32, 0, s>>>(*run);
    return cudaGetLastError();
}
