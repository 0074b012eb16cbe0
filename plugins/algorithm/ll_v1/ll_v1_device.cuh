/* What the kernels of ll_v1 share: calls and how they count, and units of work: a part of a
 * row, or of an expert output. */
#ifndef LL_V1_DEVICE_CUH
#define LL_V1_DEVICE_CUH

#include "device/packets.cuh"
#include "ll_v1.h"
#include "ll_v1_cuda.h"

/* Until the kernel before has ended, and what it wrote can be read; then the next may be set
 * up. Returns the number of this call, one more than have ended. */
static __device__ __forceinline__ uint64_t v1_begin(const struct v1_args &a)
{
    epa_dev_after_kernel();
    epa_dev_next_kernel();
    uint64_t ended = __ldcg(a.calls + blockIdx.x);

    /* Of the call before, which has ended. */
    if (blockIdx.x == 0 && threadIdx.x < V1_WORK_COUNTERS)
        a.work_counters->taken[ended % 2][threadIdx.x] = 0;
    return ended + 1;
}

/* Counts the call, for this block and for those that the next may have beyond these. */
static __device__ __forceinline__ void v1_end(const struct v1_args &a, uint64_t call)
{
    __syncthreads(); /* all of the block have read it */
    if (threadIdx.x == 0)
        for (uint32_t i = blockIdx.x; i < a.most_blocks; i += gridDim.x)
            a.calls[i] = call;
}

/* For the next unit (dev_next); one warp. */
static __device__ __forceinline__ uint32_t v1_ask(const struct v1_args &a,
                                                  enum v1_work_counter which, uint64_t call,
                                                  uint32_t warps, uint32_t all)
{
    return dev_ask(&a.work_counters->taken[call % 2][which], warps, all);
}

#endif
