/* What the kernels of token_flag share: calls and their numbers, work that is taken by
 * tickets, and stamps. */
#ifndef TOKEN_FLAG_DEVICE_CUH
#define TOKEN_FLAG_DEVICE_CUH

#include <epa2a/device.cuh>

#include "kernels/rows.cuh"
#include "token_flag_cuda.h"

/* Until the kernel before has ended, and what it wrote can be read; then the next may be set
 * up. Returns the number of this dispatch or combine, one more than have ended. */
static __device__ __forceinline__ uint64_t tf_begin(const struct tf_args &a)
{
    uint64_t ended;

    epa_dev_after_kernel();
    epa_dev_next_kernel();
    ended = __ldcg(a.calls + blockIdx.x);
    /* Of the call before, which has ended. */
    if (blockIdx.x == 0 && threadIdx.x == 0)
        a.tickets->taken[ended % 2][a.stage] = 0;
    return ended + 1;
}

/* Counts the call, for this block and for those that the next may have beyond these: by the
 * second half of a dispatch or combine. */
static __device__ __forceinline__ void tf_end(const struct tf_args &a, uint64_t epoch)
{
    __syncthreads(); /* all of the block have read it */
    if (threadIdx.x == 0)
        for (uint32_t i = blockIdx.x; i < a.most_blocks; i += gridDim.x)
            a.calls[i] = epoch;
}

static __device__ __forceinline__ char *tf_own(const struct tf_args &a, uint64_t offset)
{
    return a.v.peer_heap[a.v.rank] + offset;
}

/* Warps of one block are far apart in the order of work, so that few units are on all
 * multiprocessors. */
static __device__ __forceinline__ uint32_t tf_warp_of(uint32_t block, uint32_t blocks)
{
    return block + threadIdx.x / DEV_WARP * blocks;
}

/* Work beyond the first unit of each of `workers` warps or blocks is taken as they are free:
 * links do not serve multiprocessors alike. Who works asks for the next unit before he does
 * the one at hand, as the answer takes a while. One thread. */
static __device__ __forceinline__ uint32_t tf_ask(const struct tf_args &a, uint64_t epoch,
                                                  uint32_t workers, uint32_t all)
{
    /* Of additions the compiler would make one for all lanes that may be there, and wait for
     * it at once to hand out their numbers; of this not. */
    return all > workers ? atomicInc(&a.tickets->taken[epoch % 2][a.stage], INT32_MAX) : 0;
}

/* The unit that lane 0 asked for, or what is beyond all. */
static __device__ __forceinline__ uint32_t tf_next(uint32_t ticket, uint32_t workers,
                                                   uint32_t all)
{
    return all <= workers ? all : workers + __shfl_sync(DEV_ALL, ticket, 0);
}

/* ---- profile ---- */

/* Lane 0 notes when its warp began and ended a phase: the first beginning and the last
 * end. */
template <bool PROFILE>
static __device__ __forceinline__ void tf_stamp(const struct tf_args &a,
                                                enum tf_phase phase, bool ends)
{
    if (!PROFILE || dev_lane() != 0)
        return;
    uint32_t warp = blockIdx.x * TF_WARPS + threadIdx.x / DEV_WARP;
    uint64_t *at = a.stamps[warp].at[a.stage][phase];

    if (ends || at[0] == 0)
        at[ends] = epa_dev_time();
}

/* Forgets the stamps of the call before, which may have had more blocks. */
template <bool PROFILE>
static __device__ __forceinline__ void tf_stamps_clear(const struct tf_args &a)
{
    if (!PROFILE || dev_lane() != 0)
        return;
    uint32_t warp = blockIdx.x * TF_WARPS + threadIdx.x / DEV_WARP;

    for (uint32_t w = warp; w < a.stamped; w += gridDim.x * TF_WARPS)
        for (int i = 0; i < TF_PHASES; i++)
            a.stamps[w].at[a.stage][i][0] = a.stamps[w].at[a.stage][i][1] = 0;
}

#endif
