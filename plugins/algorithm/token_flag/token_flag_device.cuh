/* What the kernels of token_flag share: calls and their numbers, work that is taken by
 * work counters, and stamps. */
#ifndef TOKEN_FLAG_DEVICE_CUH
#define TOKEN_FLAG_DEVICE_CUH

#include "device/packets.cuh"
#include "token_flag_cuda.h"

enum {
    TF_FOURS = TF_UNIT_PACKETS / DEV_PACKETS,
    TF_META_LANE = 6 /* of the eight that have the last line */
};

/* The next kernel may be set up. A half that sends begins when the kernel before it has ended,
 * and what that wrote can be read. A half that receives runs beside the one that sends, which
 * comes before it and lets it only when all before both has ended: what peers store vouches for
 * itself, and tf_end() waits. Returns the number of this dispatch or combine, one more than
 * have ended. */
static __device__ __forceinline__ uint64_t tf_begin(const struct tf_args &a, bool receives)
{
    uint64_t ended;

    if (!receives)
        epa_dev_after_kernel();
    epa_dev_next_kernel();
    ended = __ldcg(a.calls + blockIdx.x);
    /* Of the call before, which has ended. */
    if (blockIdx.x == 0 && threadIdx.x == 0)
        a.work_counters->taken[ended % 2][a.stage] = 0;
    return ended + 1;
}

/* Ends the second half of a dispatch or combine, when the first has ended, too: who waits for
 * this one waits for both. Counts the call, for this block and for those that the next may have
 * beyond these. */
static __device__ __forceinline__ void tf_end(const struct tf_args &a, uint64_t epoch)
{
    epa_dev_after_kernel();
    __syncthreads(); /* all of the block have read it */
    if (threadIdx.x == 0)
        for (uint32_t i = blockIdx.x; i < a.most_blocks; i += gridDim.x)
            a.calls[i] = epoch;
}

/* For the next unit (dev_next); one warp, or its lane 0. */
static __device__ __forceinline__ uint32_t tf_ask(const struct tf_args &a, uint64_t epoch,
                                                  uint32_t workers, uint32_t all)
{
    return dev_ask(&a.work_counters->taken[epoch % 2][a.stage], workers, all);
}

/* A part of a row or answer: lines of it that one warp takes, and its words. */
struct tf_part {
    uint32_t unit, packets;
};

static __device__ __forceinline__ struct tf_part tf_part_at(uint32_t packets, uint32_t unit)
{
    return {unit, min(packets - unit * TF_UNIT_PACKETS, (uint32_t)TF_UNIT_PACKETS)};
}

template <bool PROFILE>
static __device__ __forceinline__ void tf_stamp(const struct tf_args &a,
                                                enum tf_phase phase, bool ends)
{
    dev_stamp<PROFILE, TF_WARPS>(a.stamps, a.stage * TF_PHASES + phase, ends);
}

template <bool PROFILE>
static __device__ __forceinline__ void tf_stamps_clear(const struct tf_args &a)
{
    dev_stamps_clear<PROFILE, TF_WARPS, TF_PHASES>(a.stamps, a.stamped, a.stage);
}

#endif
