/* What the kernels of ll_v1 share: calls and how they count, units of work, stamps.
 *
 * Work is divided into units that one warp does from beginning to end: a part of a row, or of
 * an answer. Warps of one block do not wait for each other while rows move. */
#ifndef LL_V1_DEVICE_CUH
#define LL_V1_DEVICE_CUH

#include <epa2a/device.cuh>

#include "kernels/rows.cuh"
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
    if (blockIdx.x == 0 && threadIdx.x < V1_TICKETS)
        a.tickets->taken[ended % 2][threadIdx.x] = 0;
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

static __device__ __forceinline__ char *v1_own(const struct v1_args &a, uint64_t offset)
{
    return a.v.peer_heap[a.v.rank] + offset;
}

/* ---- units ---- */

/* Each block's first warp before any block's second, as few units are to be on many
 * multiprocessors. */
static __device__ __forceinline__ uint32_t v1_warp_of(uint32_t block, uint32_t blocks)
{
    return block + threadIdx.x / DEV_WARP * blocks;
}

/* Work beyond the first unit of each of `warps` warps is taken as they are free: links do not
 * serve multiprocessors alike. A warp asks for its next unit before it does the one at hand,
 * as the answer takes a while; lane 0 gets it. */
static __device__ __forceinline__ uint32_t v1_ask(const struct v1_args &a,
                                                  enum v1_ticket which, uint64_t call,
                                                  uint32_t warps, uint32_t all)
{
    uint32_t ticket = 0;

    /* Of additions the compiler would make one for all lanes that may be there, and wait for
     * it at once to hand out their numbers; of this not. */
    if (all > warps && dev_lane() == 0)
        ticket = atomicInc(&a.tickets->taken[call % 2][which], INT32_MAX);
    return ticket;
}

/* The unit that was asked for, or what is beyond all. */
static __device__ __forceinline__ uint32_t v1_next(uint32_t ticket, uint32_t warps,
                                                   uint32_t all)
{
    return all <= warps ? all : warps + __shfl_sync(DEV_ALL, ticket, 0);
}

static __device__ __forceinline__ char *v1_from_lane(char *p, uint32_t lane)
{
    return reinterpret_cast<char *>(
        __shfl_sync(DEV_ALL, reinterpret_cast<unsigned long long>(p), lane));
}

/* ---- profile ---- */

/* Lane 0 notes when its warp began and ended a phase: the first beginning and the last
 * end. */
template <bool PROFILE>
static __device__ __forceinline__ void v1_stamp(const struct v1_args &a,
                                                enum v1_phase phase, bool ends)
{
    if (!PROFILE || dev_lane() != 0)
        return;
    uint32_t warp = blockIdx.x * V1_WARPS + threadIdx.x / DEV_WARP;
    struct v1_stamps *s = &a.stamps[warp];

    if (ends || s->at[phase][0] == 0)
        s->at[phase][ends] = epa_dev_time();
}

/* Forgets the stamps of the call before, which may have had more blocks. */
template <bool PROFILE>
static __device__ __forceinline__ void v1_stamps_clear(const struct v1_args &a)
{
    if (!PROFILE || dev_lane() != 0)
        return;
    uint32_t warp = blockIdx.x * V1_WARPS + threadIdx.x / DEV_WARP;

    for (uint32_t w = warp; w < a.stamped; w += gridDim.x * V1_WARPS)
        for (int i = 0; i < V1_PHASES; i++)
            if (i / V1_STAGE_PHASES == (int)a.mode)
                a.stamps[w].at[i][0] = a.stamps[w].at[i][1] = 0;
}

#endif
