/* Dispatch on GPUs. The first blocks sort, tell each rank how its block is made up, and store
 * tokens in its slots, quantised on the way; they wait for nothing. The others, and they too
 * once they have sent, wait for the splits of all ranks and then copy what comes to where
 * each expert's rows stand side by side.
 *
 * Splits are packets and rows are lines, all of which carry the count of the call: none needs
 * a fence, nor a signal. Every rank waits for the splits of all, also of those that have
 * nothing for it: that is what lets the call after the next store without asking. */
#include "ll_v1_rows.cuh"

/* Of the block: tables by expert first, then a string for each warp. */
extern __shared__ __align__(16) uint32_t shared[];

static __device__ __forceinline__ uint64_t *payload_of(const struct v1_args &a)
{
    return reinterpret_cast<uint64_t *>(reinterpret_cast<char *>(shared) + a.payloads +
                                        threadIdx.x / DEV_WARP * a.payload);
}

/* Chunk by chunk, each by the whole block. Chunks that a block takes go up, so that it counts
 * on from the one before. */
template <int IN, bool F16>
static __device__ __forceinline__ void send_chunks(const struct v1_args &a,
                                                   const struct v1_sorted &s, uint64_t call)
{
    __shared__ uint32_t next;
    uint32_t chunks = (a.tokens + a.chunk - 1) / a.chunk, counted = 0, chunk = blockIdx.x;

    while (chunk < chunks) {
        uint32_t begin = chunk * a.chunk, n = min(a.chunk, a.tokens - begin);

        if (threadIdx.x == 0 && chunks > a.senders)
            next =
                a.senders + atomicInc(&a.work_counters->taken[call % 2][V1_SENDING], INT32_MAX);
        v1_take_chunk(a, s, counted, begin, n);
        counted = begin;
        for (uint32_t u = threadIdx.x / DEV_WARP; u < n * a.units; u += V1_WARPS)
            v1_send_part<IN, F16>(a, s, v1_part_at<IN>(a, begin + u / a.units, u % a.units),
                                  u / a.units, call, payload_of(a));
        chunk = chunks > a.senders ? next : chunks;
        v1_leave_chunk(a, s);
    }
}

template <int IN, bool F16, bool PROFILE>
static __device__ __forceinline__ bool send(const struct v1_args &a, uint64_t call)
{
    struct v1_sorted s = {shared, shared + a.experts + 1, shared + 2 * a.experts + 1};

    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_SORT, false);
    if (!v1_sort(a, s))
        return false;
    v1_send_splits(a, s, call);
    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_SORT, true);
    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_QUANTISE_AND_SEND, false);
    send_chunks<IN, F16>(a, s, call);
    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_QUANTISE_AND_SEND, true);
    return true;
}

/* One thread: until the split of an expert has come. False: it did not. */
static __device__ __forceinline__ bool wait_split(const struct v1_args &a, uint32_t source,
                                                  uint32_t expert, uint64_t call,
                                                  uint32_t *rows, uint32_t *begin)
{
    const char *from = dev_own(a.v, v1_split(a, call, source, expert));
    struct epa_dev_wait w = {V1_DISPATCH, V1_WAIT_SPLITS, source, 0};
    uint2 split;
    bool received = dev_packet_wait(a, from, call, w, &split);

    *rows = split.x;
    *begin = split.y;
    return received;
}

/* The cells, and how many entries there are. False: not all splits have come. */
static __device__ bool find_cells(const struct v1_args &a, uint64_t call,
                                  const struct v1_cells &c, uint32_t *total)
{
    bool ok = true;

    *total = 0;
    for (uint32_t at = 0; at < c.n; at += V1_THREADS) {
        uint32_t i = at + threadIdx.x, rows = 0, begin = 0, all, before;

        if (i < c.n)
            ok = ok && wait_split(a, i % a.v.size, i / a.v.size, call, &rows, &begin);
        before = dev_scan<V1_WARPS>(rows, &all);
        if (i < c.n) {
            c.entry[i] = *total + before;
            c.place[i] = begin;
        }
        if (i < a.v.size) /* of their first expert here */
            c.start[i] = begin;
        *total += all;
    }
    return __syncthreads_and(ok);
}

/* What experts are to know, and, where expert outputs are pulled, their sources. One block. */
static __device__ __forceinline__ void publish_views(const struct v1_args &a,
                                                const struct v1_cells &c, uint32_t total)
{
    if (threadIdx.x == 0)
        *a.rows = total;
    for (uint32_t e = threadIdx.x; e < a.local; e += V1_THREADS) {
        uint32_t begin = c.entry[e * a.v.size];

        a.recv_start[e] = begin;
        a.recv_count[e] = (e + 1 < a.local ? c.entry[(e + 1) * a.v.size] : total) - begin;
    }
    /* Seen by the time of a signal that a later kernel gives. */
    for (uint32_t i = threadIdx.x; i < c.n && a.pull != 0; i += V1_THREADS)
        reinterpret_cast<uint32_t *>(a.v.peer_heap[i % a.v.size] +
                                     a.starts)[a.v.rank * a.local + i / a.v.size] =
            c.entry[i];
}

/* By all blocks, of which this is number `block`. */
template <int IN, bool PROFILE>
static __device__ __forceinline__ void receive(const struct v1_args &a, uint64_t call,
                                               uint32_t block)
{
    struct v1_cells c = {a.experts, shared, shared + a.experts, shared + 2 * a.experts};
    uint32_t warps = gridDim.x * V1_WARPS, total, all;

    if (!find_cells(a, call, c, &total))
        return;
    if (block == 0)
        publish_views(a, c, total);
    all = total * a.units;
    for (uint32_t u = dev_warp_of(block, gridDim.x), work_index; u < all;
         u = dev_next(work_index, warps, all)) {
        work_index = v1_ask(a, V1_RECEIVING, call, warps, all);
        if (!v1_receive_part<IN, PROFILE>(a, c, u / a.units, u % a.units, call,
                                          payload_of(a)))
            return;
    }
}

template <int IN, bool F16, bool PROFILE>
static __global__ void __launch_bounds__(V1_THREADS, 4)
    dispatch(const __grid_constant__ struct v1_args a)
{
    uint64_t call = v1_begin(a);
    bool ok = true;

    dev_stamps_clear<PROFILE, V1_WARPS, V1_STAGE_PHASES>(a.stamps, a.stamped, a.mode);
    if (blockIdx.x < a.senders)
        ok = send<IN, F16, PROFILE>(a, call);
    __syncthreads(); /* shared memory is used anew */
    if (ok)
        receive<IN, PROFILE>(a, call, (blockIdx.x + gridDim.x - a.senders) % gridDim.x);
    v1_end(a, call);
}

#define KERNELS(in, f16) \
    { \
        (const void *)dispatch<in, f16, false>, (const void *)dispatch<in, f16, true> \
    }

const void *v1_dispatch_kernel(enum v1_input in, bool f16, bool profile)
{
    /* Only who quantises asks which 16 bits they are. */
    static const void *const kernel[V1_INPUTS][2] = {
        [V1_IN_DTYPE] = KERNELS(V1_IN_DTYPE, false),
        [V1_IN_QUANTISE] = KERNELS(V1_IN_QUANTISE, false),
        [V1_IN_FP8] = KERNELS(V1_IN_FP8, false)};
    static const void *const quantise_f16[2] = KERNELS(V1_IN_QUANTISE, true);

    return in == V1_IN_QUANTISE && f16 ? quantise_f16[profile] : kernel[in][profile];
}
