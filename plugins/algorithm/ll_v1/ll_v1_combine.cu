/* Combine on GPUs. Expert outputs are pushed: the experts' rank stores each, as lines that carry the
 * count of the call, where its choice stands as the source sorted it, so that what goes to a
 * rank lies there as one block from recv_offset on. Or they are pulled: the token's rank loads
 * them from where the experts wrote them. Either way they are added up in float32, in the
 * order of choices.
 *
 * Every rank signals to all, at the start of each call, that it has begun: what it read in
 * the calls before is free, and its experts have answered. Every rank waits for all of these,
 * also of those that have nothing for it. */
#include "ll_v1_outputs.cuh"

/* After the kernel before has ended: the release covers what experts wrote there. Pairs with
 * the acquire in wait_begun() of the peer. */
static __device__ __forceinline__ void tell_begun(const struct v1_args &a, uint64_t call)
{
    if (threadIdx.x < a.v.size)
        epa_dev_signal(a.v, a.signal + v1_signal_of(a.v.size, V1_COMBINE, call, a.v.rank),
                       call, threadIdx.x);
}

/* One thread for each rank; true in all threads of the block if all have begun. */
static __device__ __forceinline__ bool wait_begun(const struct v1_args &a, uint64_t call)
{
    bool ok = true;

    if (threadIdx.x < a.v.size) {
        struct epa_dev_wait w = {V1_COMBINE, V1_WAIT_BEGUN, threadIdx.x, 0};

        ok = epa_dev_wait_for(
            a.v, a.signal + v1_signal_of(a.v.size, V1_COMBINE, call, threadIdx.x), call,
            a.timeout_ns, w);
    }
    return __syncthreads_and(ok);
}

template <bool PROFILE>
static __device__ __forceinline__ void send(const struct v1_args &a, uint64_t call)
{
    uint32_t warps = a.senders * V1_WARPS, all = __ldcg(a.rows) * a.pieces;

    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_SEND_OUTPUTS, false);
    for (uint32_t u = dev_warp_of(blockIdx.x, a.senders), work_index; u < all;
         u = dev_next(work_index, warps, all)) {
        work_index = v1_ask(a, V1_SENDING, call, warps, all);
        v1_push_piece(a, u / a.pieces, u % a.pieces, call);
    }
    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_SEND_OUTPUTS, true);
}

/* Choices are read while signals or expert outputs are on their way. */
template <bool F16, bool PULL, bool PROFILE>
static __device__ __forceinline__ void receive(const struct v1_args &a, uint64_t call,
                                               uint32_t block, uint32_t blocks)
{
    uint32_t warps = blocks * V1_WARPS, all = a.tokens * a.shares;
    uint32_t u = dev_warp_of(block, blocks), work_index;
    struct v1_choices of = {};

    if (u < all)
        of = v1_choices_of(a, u / a.shares);
    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_WAIT_OUTPUTS, false);
    if ((PULL || block == 0) && !wait_begun(a, call))
        return;
    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_WAIT_OUTPUTS, true);
    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_REDUCE, false);
    while (u < all) {
        work_index = v1_ask(a, V1_RECEIVING, call, warps, all);
        if (PULL)
            v1_pull_share<F16>(a, u / a.shares, u % a.shares, of);
        else if (!v1_take_share<F16>(a, u / a.shares, u % a.shares, of, call))
            return;
        u = dev_next(work_index, warps, all);
        if (u < all)
            of = v1_choices_of(a, u / a.shares);
    }
    dev_stamp<PROFILE, V1_WARPS>(a.stamps, V1_REDUCE, true);
}

/* Where expert outputs are pushed the last blocks only receive. In a kernel of one block it does
 * both. With 64 registers there is room for the kernel that comes next to be set up beside
 * this; of float16 it takes more to have four expert outputs unpacked. */
template <bool F16, bool PULL, bool PROFILE>
static __global__ void __launch_bounds__(V1_THREADS, F16 && !PULL ? 3 : 4)
    combine(const __grid_constant__ struct v1_args a)
{
    uint32_t first = a.senders < gridDim.x ? a.senders : 0;
    uint64_t call = v1_begin(a);

    dev_stamps_clear<PROFILE, V1_WARPS, V1_STAGE_PHASES>(a.stamps, a.stamped, a.mode);
    if (blockIdx.x == 0)
        tell_begun(a, call);
    if (!PULL && blockIdx.x < a.senders)
        send<PROFILE>(a, call);
    if (blockIdx.x >= first)
        receive<F16, PULL, PROFILE>(a, call, blockIdx.x - first, gridDim.x - first);
    v1_end(a, call);
}

#define KERNELS(f16, pull) \
    { \
        (const void *)combine<f16, pull, false>, (const void *)combine<f16, pull, true> \
    }

const void *v1_combine_kernel(bool f16, bool pull, bool profile)
{
    static const void *const kernel[2][2][2] = {
        {KERNELS(false, false), KERNELS(false, true)},
        {KERNELS(true, false), KERNELS(true, true)}};

    return kernel[f16][pull][profile];
}
