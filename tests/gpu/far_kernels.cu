/* Implements far_kernels.h. */
#include "far_kernels.h"

#include <epa2a/ring.cuh>

/* Bytes per put; the first two are not multiples of the copy unit. */
enum { WARPS_PUT = 3001, THREADS_PUT = 117, WORDS_PUT = 64 };

EPA_DEV char byte_of(uint32_t rank, uint32_t block, uint32_t round, uint32_t i)
{
    return (char)(rank * 101 + block * 53 + round * 31 + i * 7);
}

/* Each block works on its own. */
static __global__ void rounds(const __grid_constant__ struct far_run a)
{
    uint32_t block = blockIdx.x, part = block * FAR_PART;
    char *own = a.v.peer_heap[a.v.rank] + a.own + part;
    const char *here = a.v.peer_heap[a.v.rank] + part;
    const struct epa_dev_wait w = {0, 0, a.from, block};
    unsigned long long wrong = 0;

    for (uint32_t round = 1; round <= a.rounds; round++) {
        bool with = round % 2 != 0, ok = true;
        uint32_t signal = (with ? FAR_PUT : FAR_SET) + block;

        for (uint32_t i = threadIdx.x; i < FAR_PART; i += FAR_THREADS)
            own[i] = byte_of(a.v.rank, block, round, i);
        __syncthreads();
        if (with && threadIdx.x < 32) /* inline, by a warp */
            ok = epa_dev_ask_far_warp(a.v, a.ring,
                                      {0, EPA_RING_PUT, a.to, part, own, WARPS_PUT, 0, 0, 1, 0},
                                      a.timeout_ns, w);
        if (threadIdx.x == 0) {
            if (with) { /* by one thread, as words, and by the copy engine; the parts overlap */
                uint32_t at = WARPS_PUT / 16 * 16, rest = at + THREADS_PUT / 16 * 16;
                uint32_t end = rest + WORDS_PUT;

                ok = ok &&
                     epa_dev_far_put(a.v, a.ring, part + at, own + at, THREADS_PUT, a.to,
                                     a.timeout_ns, w) &&
                     epa_dev_far_put(a.v, a.ring, part + rest, own + rest, WORDS_PUT, a.to,
                                     a.timeout_ns, w) &&
                     epa_dev_far_put_signal(a.v, a.ring, part + end, own + end, FAR_PART - end,
                                            signal, round, a.to, a.timeout_ns, w);
            } else {
                ok = epa_dev_far_put(a.v, a.ring, part, own, FAR_PART, a.to, a.timeout_ns, w) &&
                     epa_dev_far_fence(a.v, a.ring, a.to, a.timeout_ns, w) &&
                     epa_dev_far_signal(a.v, a.ring, signal, round, a.to, a.timeout_ns, w);
            }
            ok = ok && epa_dev_wait_for(a.v, signal, round, a.timeout_ns, w);
        }
        if (!__syncthreads_and(ok)) {
            wrong += threadIdx.x == 0 ? 1ull << 32 : 0;
            break;
        }
        for (uint32_t i = threadIdx.x; i < FAR_PART; i += FAR_THREADS)
            wrong += here[i] != byte_of(a.from, block, round, i);
        __syncthreads(); /* all threads have read: the peer may put the next rows */
        if (threadIdx.x == 0)
            ok = epa_dev_far_signal(a.v, a.ring, FAR_ANSWER + block, round, a.from, a.timeout_ns,
                                    w) &&
                 epa_dev_wait_for(a.v, FAR_ANSWER + block, round, a.timeout_ns, w);
        if (!__syncthreads_and(ok)) {
            wrong += threadIdx.x == 0 ? 1ull << 32 : 0;
            break;
        }
    }
    atomicAdd(a.wrong, wrong);
}

static __global__ void flood(const __grid_constant__ struct far_run a)
{
    const struct epa_dev_wait w = {0, 1, a.to, blockIdx.x};
    bool ok = true;

    if (threadIdx.x != 0)
        return;
    for (uint32_t i = 1; i <= a.flood && ok; i++)
        ok = epa_dev_far_signal(a.v, a.ring, FAR_FLOOD + blockIdx.x, i, a.to, a.timeout_ns, w);
    ok = ok && epa_dev_wait_for(a.v, FAR_FLOOD + blockIdx.x, a.flood, a.timeout_ns, w);
    atomicAdd(a.wrong, ok ? 0 : 1ull << 32);
}

cudaError_t far_queue_rounds(cudaStream_t stream, const struct far_run *run)
{
    rounds<<<FAR_BLOCKS, FAR_THREADS, 0, stream>>>(*run);
    return cudaGetLastError();
}

cudaError_t far_queue_flood(cudaStream_t stream, const struct far_run *run)
{
    flood<<<FAR_BLOCKS, FAR_THREADS, 0, stream>>>(*run);
    return cudaGetLastError();
}

/* ---- timed puts and signals, by one warp ---- */

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
        begun = turn == 1 ? epa_dev_time() : begun; /* both kernels are running */
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
    /* Both ranks have arrived. */
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
