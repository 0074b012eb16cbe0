/* What the kernels of ll_v2 share: calls and how they count, signals, and units of work: a part
 * of a row, or all of it where there are many. */
#ifndef LL_V2_DEVICE_CUH
#define LL_V2_DEVICE_CUH

#include "device/packets.cuh"
#include "ll_v2.h"
#include "ll_v2_cuda.h"

/* A lane stores 16 bytes at a time, of 8 channels in bf16 or 16 in FP8: links carry half as
 * much in packets of less. */
template <bool FP8> struct ll_width {
    enum {
        LANE = FP8 ? 16 : 8, /* channels */
        SWEEP = LANE * DEV_WARP,
        HALVES = LANE / 8, /* 16 bytes each of bf16 */
        UNIT_SWEEPS = LL_UNIT_CHANNELS / SWEEP,
        SHARE_CHANNELS =
            FP8 ? LL_CODE_PACKETS * LL_MOST_CHUNKS * LL_CHUNK : LL_SHARE_CHANNELS,
        SHARE_SWEEPS = (SHARE_CHANNELS + SWEEP - 1) / SWEEP
    };
};

/* Until the kernel before has ended, and what it wrote can be read; then the next may be
 * set up. Returns the number of this call, one more than have ended. Where the kernel
 * before has not counted calls of this kind it can be read while that runs. */
static __device__ __forceinline__ uint64_t ll_begin(const struct ll_args &a)
{
    uint64_t ended = 0;

    if (a.counts_early)
        ended = __ldcg(a.calls + blockIdx.x);
    epa_dev_after_kernel();
    epa_dev_next_kernel();
    if (!a.counts_early)
        ended = __ldcg(a.calls + blockIdx.x);
    /* Of the call before, which has ended. */
    if (blockIdx.x == 0 && threadIdx.x < LL_WORK_COUNTERS)
        a.work_counters->taken[ended % 2][threadIdx.x] = 0;
    return ended + 1;
}

/* Counts the call, for this block and for those that the next may have beyond these. The
 * first half of a call leaves that to the second. */
static __device__ __forceinline__ void ll_end(const struct ll_args &a, uint64_t epoch)
{
    __syncthreads(); /* all of the block have read it */
    if (threadIdx.x == 0 && (a.halves & LL_RECEIVE) != 0)
        for (uint32_t i = blockIdx.x; i < a.most_blocks; i += gridDim.x)
            a.calls[i] = epoch;
}

/* For the next unit (dev_next); one warp. */
static __device__ __forceinline__ uint32_t ll_ask(const struct ll_args &a,
                                                  enum ll_work_counter which, uint64_t epoch,
                                                  uint32_t warps, uint32_t all)
{
    return dev_ask(&a.work_counters->taken[epoch % 2][which], warps, all);
}

static __device__ __forceinline__ uint32_t ll_signal_of(const struct ll_args &a,
                                                        enum ll_signal kind,
                                                        uint32_t source)
{
    return a.signal + (uint32_t)kind * a.v.size + source;
}

/* One thread for each source; true in all threads if all have come. Blocks only. */
static __device__ __forceinline__ bool ll_wait_all(const struct ll_args &a, uint32_t stage,
                                                   enum ll_signal kind, uint64_t epoch)
{
    bool ok = true;

    if (threadIdx.x < a.v.size) {
        struct epa_dev_wait w = {stage, (uint32_t)kind, threadIdx.x, 0};

        ok = epa_dev_wait_for(a.v, ll_signal_of(a, kind, threadIdx.x), epoch, a.timeout_ns,
                              w);
    }
    return __syncthreads_and(ok);
}

/* After __syncthreads(): every rank learns that this block, or the kernel before, is
 * done. */
static __device__ __forceinline__ void ll_signal_all(const struct ll_args &a,
                                                   enum ll_signal kind, uint64_t epoch)
{
    if (threadIdx.x < a.v.size)
        epa_dev_signal(a.v, ll_signal_of(a, kind, a.v.rank), epoch, threadIdx.x);
}

/* Until a packet of what `source` tells has come; one thread. False: it did not. */
static __device__ __forceinline__ bool ll_packet_wait(const struct ll_args &a,
                                                      const char *from, uint64_t epoch,
                                                      uint32_t source, uint2 *out)
{
    struct epa_dev_wait w = {LL_DISPATCH, LL_COUNT, source, 0};

    return dev_packet_wait(a, from, epoch, w, out);
}

#endif
