/* What the kernels of ll_v2 share: their arguments, and the steps that a warp or a block
 * makes.
 *
 * Work is divided into units that one warp does from beginning to end: a part of a row, or
 * all of it where there are many. Warps of one block do not wait for each other while rows
 * move. */
#ifndef LL_V2_DEVICE_CUH
#define LL_V2_DEVICE_CUH

#include <epa2a/device.cuh>

#include "kernels/rows.cuh"
#include "ll_v2.h"
#include "ll_v2_cuda.h"

enum { LL_WARP = DEV_WARP, LL_ALL = DEV_ALL };

/* A lane stores 16 bytes at a time, of 8 channels in bf16 or 16 in FP8: links carry half as
 * much in packets of less. */
template <bool FP8> struct ll_width {
    enum {
        LANE = FP8 ? 16 : 8, /* channels */
        SWEEP = LANE * LL_WARP,
        HALVES = LANE / 8, /* 16 bytes each of bf16 */
        UNIT_SWEEPS = LL_UNIT_CHANNELS / SWEEP,
        SHARE_CHANNELS =
            FP8 ? LL_CODE_LINES * LL_MOST_CHUNKS * LL_CHUNK : LL_SHARE_CHANNELS,
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
    if (blockIdx.x == 0 && threadIdx.x < LL_TICKETS)
        a.tickets->taken[ended % 2][threadIdx.x] = 0;
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

/* Work beyond the first unit of each of `warps` warps is taken as they are free: links do
 * not serve multiprocessors alike. A warp asks for its next unit before it does the one at
 * hand, as the answer takes a while; lane 0 gets it. */
static __device__ __forceinline__ uint32_t ll_ask(const struct ll_args &a,
                                                  enum ll_ticket which, uint64_t epoch,
                                                  uint32_t warps, uint32_t all)
{
    uint32_t ticket = 0;

    /* Of additions the compiler would make one for all lanes that may be there, and wait for
     * it at once to hand out their numbers; of this not. */
    if (all > warps && dev_lane() == 0)
        ticket = atomicInc(&a.tickets->taken[epoch % 2][which], INT32_MAX);
    return ticket;
}

/* The unit that was asked for, or what is beyond all. */
static __device__ __forceinline__ uint32_t ll_next(uint32_t ticket, uint32_t warps,
                                                   uint32_t all)
{
    return all <= warps ? all : warps + __shfl_sync(LL_ALL, ticket, 0);
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
static __device__ __forceinline__ void ll_tell_all(const struct ll_args &a,
                                                   enum ll_signal kind, uint64_t epoch)
{
    if (threadIdx.x < a.v.size)
        epa_dev_signal(a.v, ll_signal_of(a, kind, a.v.rank), epoch, threadIdx.x);
}

/* ---- words that carry their epoch ---- */

/* 16 bytes that arrive as one: who reads this epoch reads what came with it. No fence, so
 * that it need not wait for the rows on the way. */
static __device__ __forceinline__ void ll_packet_store(char *to, uint32_t first,
                                                       uint32_t second, uint64_t epoch)
{
    epa_dev_store_pair(to, (uint64_t)second << 32 | first, epoch);
}

static __device__ __forceinline__ uint2 ll_packet_load(const char *from, uint64_t *epoch)
{
    uint64_t word;

    epa_dev_load_pair(from, &word, epoch);
    return make_uint2((uint32_t)word, (uint32_t)(word >> 32));
}

/* Until a packet of this epoch has come; one thread. False: it did not. */
static __device__ __forceinline__ bool ll_packet_wait(const struct ll_args &a,
                                                      const char *from, uint64_t epoch,
                                                      uint32_t source, uint2 *out)
{
    struct epa_dev_patience patience = {0, 0, 0};
    struct epa_dev_wait w = {LL_DISPATCH, LL_COUNT, source, 0};
    uint64_t came;

    for (;;) {
        *out = ll_packet_load(from, &came);
        if (came >= epoch)
            return true;
        if (!epa_dev_patient(a.v, &patience, a.timeout_ns, w, came, epoch))
            return false;
    }
}

/* ---- profile ---- */

/* Lane 0 notes when its warp began and ended a phase: the first beginning and the last
 * end. */
template <bool PROFILE>
static __device__ __forceinline__ void ll_stamp(const struct ll_args &a,
                                                enum ll_phase phase, bool ends)
{
    if (!PROFILE || dev_lane() != 0)
        return;
    uint32_t warp = blockIdx.x * (blockDim.x / LL_WARP) + threadIdx.x / LL_WARP;
    struct ll_stamps *s = &a.stamps[warp];

    if (ends || s->at[phase][0] == 0)
        s->at[phase][ends] = epa_dev_time();
}

/* Forgets the stamps of the call before, which may have had more blocks. */
template <bool PROFILE>
static __device__ __forceinline__ void ll_stamps_clear(const struct ll_args &a)
{
    if (!PROFILE || dev_lane() != 0)
        return;
    uint32_t warps = blockDim.x / LL_WARP;
    uint32_t warp = blockIdx.x * warps + threadIdx.x / LL_WARP;

    for (uint32_t w = warp; w < a.stamped; w += gridDim.x * warps)
        for (int i = 0; i < LL_PHASES; i++)
            if (i / LL_STAGE_PHASES == (int)a.stage)
                a.stamps[w].at[i][0] = a.stamps[w].at[i][1] = 0;
}

#endif
