/* Dispatch: this rank's choices sorted by expert, and told to those who get them.
 *
 * Each block that sends sorts for itself, as far as it needs: it counts all choices once, adds
 * them up, and then knows of the tokens that it takes how many of their experts' choices come
 * before theirs. So no block waits for another. */
#ifndef LL_V1_SORT_CUH
#define LL_V1_SORT_CUH

#include "ll_v1_device.cuh"

/* In shared memory, by expert. */
struct v1_sorted {
    uint32_t *first;  /* [experts + 1] rows of the experts before: where its own begin */
    uint32_t *before; /* choices by tokens before the chunk at hand */
    uint32_t *bits;   /* which tokens of the chunk choose it */
};

/* Adds up the choices of the tokens from `begin` to `end`. The loads of a batch leave before
 * the first is used. */
static __device__ __forceinline__ void v1_count(const struct v1_args &a, uint32_t begin,
                                                uint32_t end, uint32_t *count)
{
    enum { BATCH = 8 };

    for (uint32_t i = begin * a.topk + threadIdx.x; i < end * a.topk;
         i += BATCH * V1_THREADS) {
        uint32_t expert[BATCH];

#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) {
            uint32_t at = i + j * V1_THREADS;

            expert[j] = at < end * a.topk ? (uint32_t)__ldg(a.expert + at) : ~0u;
        }
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++)
            if (expert[j] < a.experts)
                atomicAdd(&count[expert[j]], 1u);
    }
}

/* Where each expert's rows begin. False: a rank gets more rows than it has room for. */
static __device__ bool v1_sort(const struct v1_args &a, const struct v1_sorted &s)
{
    uint32_t carry = 0;
    bool fits = true;

    for (uint32_t e = threadIdx.x; e <= a.experts; e += V1_THREADS)
        s.first[e] = 0;
    for (uint32_t e = threadIdx.x; e < a.experts; e += V1_THREADS)
        s.before[e] = s.bits[e] = 0;
    __syncthreads();
    v1_count(a, 0, a.tokens, s.first);
    __syncthreads();
    for (uint32_t at = 0; at < a.experts; at += V1_THREADS) {
        uint32_t e = at + threadIdx.x, total;
        uint32_t rows = dev_scan<V1_WARPS>(e < a.experts ? s.first[e] : 0, &total);

        if (e < a.experts)
            s.first[e] = carry + rows;
        carry += total;
    }
    if (threadIdx.x == 0)
        s.first[a.experts] = carry;
    __syncthreads();
    if (threadIdx.x < a.v.size) {
        struct epa_dev_wait w = {V1_DISPATCH, V1_NO_ROOM, threadIdx.x, 0};
        uint32_t rows =
            s.first[(threadIdx.x + 1) * a.local] - s.first[threadIdx.x * a.local];

        fits = rows <= a.max_m;
        if (!fits)
            epa_dev_fault(a.v, EPA_ERR_CONFIG, w, rows, a.max_m, 0);
    }
    return __syncthreads_and(fits);
}

static __device__ __forceinline__ uint64_t v1_split(const struct v1_args &a, uint64_t call,
                                                    uint32_t source, uint32_t expert)
{
    return a.splits[call % V1_POSITIONS] +
           ((uint64_t)source * a.local + expert) * sizeof(struct v1_packet);
}

/* This block's share of the splits, a rank's at a time. */
static __device__ __forceinline__ void
v1_send_splits(const struct v1_args &a, const struct v1_sorted &s, uint64_t call)
{
    for (uint32_t i = blockIdx.x; i < a.v.size; i += a.senders) {
        uint32_t peer = (a.v.rank + 1 + i) % a.v.size;

        for (uint32_t j = threadIdx.x; j < a.local; j += V1_THREADS) {
            const uint32_t *first = s.first + peer * a.local + j;

            dev_packet_store(a.v.peer_heap[peer] + v1_split(a, call, a.v.rank, j),
                             first[1] - first[0], first[0], call);
        }
    }
}

/* The tokens from `begin` on, `n` of them, become the chunk; `counted`: those that `before`
 * has. All threads of the block. */
static __device__ __forceinline__ void v1_take_chunk(const struct v1_args &a,
                                                     const struct v1_sorted &s,
                                                     uint32_t counted, uint32_t begin,
                                                     uint32_t n)
{
    v1_count(a, counted, begin, s.before);
    for (uint32_t i = threadIdx.x; i < n * a.topk; i += V1_THREADS) {
        uint32_t expert = (uint32_t)__ldg(a.expert + (size_t)begin * a.topk + i);

        if (expert < a.experts)
            atomicOr(&s.bits[expert], 1u << i / a.topk);
    }
    __syncthreads();
}

/* Done with the chunk. */
static __device__ __forceinline__ void v1_leave_chunk(const struct v1_args &a,
                                                      const struct v1_sorted &s)
{
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < a.experts; e += V1_THREADS)
        s.bits[e] = 0;
    __syncthreads();
}

#endif
