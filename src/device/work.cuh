/* For kernels: work divided into units that one warp does from beginning to end, so that warps
 * of one block do not wait for each other; sums over a block; and when warps did what. */
#ifndef DEVICE_WORK_CUH
#define DEVICE_WORK_CUH

#include <epa2a/device.cuh>

#include "device/rows.cuh"

static __device__ __forceinline__ char *dev_own(const epa_device_view &v, uint64_t offset)
{
    return v.peer_heap[v.rank] + offset;
}

/* The pointer that another lane has. */
template <typename T>
static __device__ __forceinline__ T *dev_from_lane(T *p, uint32_t lane)
{
    return reinterpret_cast<T *>(
        __shfl_sync(DEV_ALL, reinterpret_cast<unsigned long long>(p), lane));
}

/* ---- units ---- */

/* Each block's first warp before any block's second, as few units are to be on many
 * multiprocessors. */
static __device__ __forceinline__ uint32_t dev_warp_of(uint32_t block, uint32_t blocks)
{
    return block + threadIdx.x / DEV_WARP * blocks;
}

/* Work beyond the first unit of each of `workers` warps or blocks is taken as they are free:
 * links do not serve multiprocessors alike. Who works asks for the next unit before the one
 * at hand, as the answer takes a while. One warp, whose lane 0 gets it; `taken` counts for
 * all. */
static __device__ __forceinline__ uint32_t dev_ask(uint32_t *taken, uint32_t workers,
                                                   uint32_t all)
{
    uint32_t work_index = 0;

    /* Of additions the compiler would make one for all lanes that may be there, and wait for
     * it at once to hand out their numbers; of this not. */
    if (all > workers && dev_lane() == 0)
        work_index = atomicInc(taken, INT32_MAX);
    return work_index;
}

/* The unit that lane 0 asked for, or what is beyond all. */
static __device__ __forceinline__ uint32_t dev_next(uint32_t work_index, uint32_t workers,
                                                    uint32_t all)
{
    return all <= workers ? all : workers + __shfl_sync(DEV_ALL, work_index, 0);
}

/* ---- sums ---- */

/* Of a block of so many warps: the sum of the values of the threads before this one; *total
 * is that of all. */
template <int WARPS> static __device__ uint32_t dev_scan(uint32_t value, uint32_t *total)
{
    __shared__ uint32_t warp_sum[WARPS];
    uint32_t warp = threadIdx.x / DEV_WARP, sum = value, before = 0;

    for (uint32_t step = 1; step < DEV_WARP; step *= 2) {
        uint32_t other = __shfl_up_sync(DEV_ALL, sum, step);

        sum += dev_lane() >= step ? other : 0;
    }
    __syncthreads(); /* who called before has read the sums */
    if (dev_lane() == DEV_WARP - 1)
        warp_sum[warp] = sum;
    __syncthreads();
    *total = 0;
    for (uint32_t i = 0; i < WARPS; i++) {
        before += i < warp ? warp_sum[i] : 0;
        *total += warp_sum[i];
    }
    return before + sum - value;
}

/* ---- profile ---- */

/* In blocks of WARPS; STAMPS: a struct of [phases][2], named `at`, as stamps.h has it. */

/* Lane 0 notes when its warp began and ended a phase: the first beginning and the last
 * end. */
template <bool PROFILE, int WARPS, typename STAMPS>
static __device__ __forceinline__ void dev_stamp(STAMPS *stamps, uint32_t phase, bool ends)
{
    if (!PROFILE || dev_lane() != 0)
        return;
    uint64_t *at = stamps[blockIdx.x * WARPS + threadIdx.x / DEV_WARP].at[phase];

    if (ends || at[0] == 0)
        at[ends] = epa_dev_time();
}

/* Forgets those of a stage, whose PHASES phases follow each other, of the call before, which
 * may have had more blocks: of [stamped] warps. */
template <bool PROFILE, int WARPS, int PHASES, typename STAMPS>
static __device__ __forceinline__ void dev_stamps_clear(STAMPS *stamps, uint32_t stamped,
                                                        uint32_t stage)
{
    if (!PROFILE || dev_lane() != 0)
        return;
    uint32_t warp = blockIdx.x * WARPS + threadIdx.x / DEV_WARP;

    for (uint32_t w = warp; w < stamped; w += gridDim.x * WARPS)
        for (uint32_t i = stage * PHASES; i < (stage + 1) * PHASES; i++)
            stamps[w].at[i][0] = stamps[w].at[i][1] = 0;
}

#endif
