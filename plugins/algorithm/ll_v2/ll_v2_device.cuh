/* What the kernels of ll_v2 share: their arguments, and the steps that a warp or a block
 * makes.
 *
 * Work is divided into units that one warp does from beginning to end: a part of a row, or
 * all of it where there are many. Warps of one block do not wait for each other while rows
 * move. */
#ifndef LL_V2_DEVICE_CUH
#define LL_V2_DEVICE_CUH

#include <epa2a/device.cuh>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "ll_v2.h"
#include "ll_v2_cuda.h"
#include "ll_v2_quantise.h"

enum { LL_WARP = 32, LL_ALL = 0xffffffffu };

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

static __device__ __forceinline__ uint32_t ll_lane(void)
{
    return threadIdx.x % LL_WARP;
}

/* Until the kernel before has ended, and what it wrote can be read; then the next may be
 * set up. Returns the number of this call, one more than have ended. Where the kernel
 * before has not counted calls of this kind it can be read while that runs. */
static __device__ __forceinline__ uint64_t ll_begin(const struct ll_args &a)
{
    uint64_t ended = 0;

    if (a.counts_early)
        ended = __ldcg(a.calls + blockIdx.x);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
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
    if (all > warps && ll_lane() == 0)
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

static __device__ __forceinline__ uint4 ll_load16(const char *from)
{
    return __ldcg(reinterpret_cast<const uint4 *>(from));
}

static __device__ __forceinline__ void ll_store16(char *to, uint4 v)
{
    *reinterpret_cast<uint4 *>(to) = v;
}

/* ---- bf16 and FP8 ---- */

static __device__ __forceinline__ float ll_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float ll_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

static __device__ __forceinline__ void ll_unpack(uint4 raw, float *value)
{
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        value[2 * i] = ll_low(word[i]);
        value[2 * i + 1] = ll_high(word[i]);
    }
}

static __device__ __forceinline__ uint32_t ll_pack_bf16(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);

    return *reinterpret_cast<uint32_t *>(&pair);
}

static __device__ __forceinline__ uint4 ll_pack(const float *value)
{
    return make_uint4(ll_pack_bf16(value[0], value[1]), ll_pack_bf16(value[2], value[3]),
                      ll_pack_bf16(value[4], value[5]), ll_pack_bf16(value[6], value[7]));
}

/* Four codes; the sign is that of the pairs they come from. */
static __device__ __forceinline__ uint32_t ll_pack_fp8(const float *size, uint32_t low,
                                                       uint32_t high)
{
    uint32_t first =
        __nv_cvt_float2_to_fp8x2(make_float2(size[0], size[1]), __NV_SATFINITE, __NV_E4M3);
    uint32_t second =
        __nv_cvt_float2_to_fp8x2(make_float2(size[2], size[3]), __NV_SATFINITE, __NV_E4M3);

    return first | second << 16 | (__byte_perm(low, high, 0x7531) & 0x80808080u);
}

/* Of bf16, and of two. */
enum { LL_NOT_FINITE = 0x7f80, LL_FINITE = 0x7f807f80, LL_NO_SIGN = 0x7fff7fff };

/* What the short way would get wrong: infinity, NaN, scales too small or too large. Seldom,
 * so it is to take few registers: four channels at a time, from words that move on. */
static __device__ __forceinline__ uint4 ll_divide16(uint4 low, uint4 high, float by)
{
    uint4 out = make_uint4(0, 0, 0, 0);

#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        const float size[4] = {__fdiv_rn(ll_low(low.x & LL_NO_SIGN), by),
                               __fdiv_rn(ll_high(low.x & LL_NO_SIGN), by),
                               __fdiv_rn(ll_low(low.y & LL_NO_SIGN), by),
                               __fdiv_rn(ll_high(low.y & LL_NO_SIGN), by)};

        out = make_uint4(out.y, out.z, out.w, ll_pack_fp8(size, low.x, low.y));
        low = make_uint4(low.z, low.w, high.x, high.y);
        high = make_uint4(high.z, high.w, 0, 0);
    }
    return out;
}

/* Sixteen channels of a lane; the group's other lanes are its neighbours, `lanes` of them
 * (a power of 2). All lanes of the warp call. *scale is the group's. Magnitudes of bf16 are
 * in the order of their bits; a lane finds its largest two at a time. */
static __device__ __forceinline__ uint4 ll_quantise16(uint4 low, uint4 high, uint32_t lanes,
                                                      float *scale)
{
    const uint32_t pair[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    uint32_t most = 0, out[4];
    float amax, inverse;
    bool odd;

#pragma unroll
    for (int i = 0; i < 8; i++)
        most = __vmaxu2(most, pair[i] & LL_NO_SIGN);
    odd = most % 65536 >= LL_NOT_FINITE || most >> 16 >= LL_NOT_FINITE;
    if (odd) { /* without those */
        most = 0;
        for (int i = 0; i < 8; i++)
            most = __vmaxu2(most, pair[i] & LL_NO_SIGN &
                                      __vcmpltu2(pair[i] & LL_NO_SIGN, LL_FINITE));
    }
    most = max(most % 65536, most >> 16);
    for (uint32_t step = lanes / 2; step > 0; step /= 2)
        most = max(most, __shfl_xor_sync(LL_ALL, most, step));
    amax = ll_low(most);
    *scale = most != 0 ? amax * (1.0f / 448.0f) : 1.0f;
    inverse = __frcp_rn(*scale);
    if (odd || *scale < LL_LEAST_SCALE || *scale > LL_MOST_SCALE)
        return ll_divide16(low, high, *scale);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t first = pair[2 * i] & LL_NO_SIGN, second = pair[2 * i + 1] & LL_NO_SIGN;
        const float size[4] = {ll_quotient(ll_low(first), *scale, inverse),
                               ll_quotient(ll_high(first), *scale, inverse),
                               ll_quotient(ll_low(second), *scale, inverse),
                               ll_quotient(ll_high(second), *scale, inverse)};

        out[i] = ll_pack_fp8(size, pair[2 * i], pair[2 * i + 1]);
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* Four codes times their scale, each product rounded. */
static __device__ __forceinline__ void ll_unpack_fp8(uint32_t codes, float scale,
                                                     float *value)
{
    uint32_t pair[2];

    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; "
        "cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high; }"
        : "=r"(pair[0]), "=r"(pair[1])
        : "r"(codes));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float2 both = __half22float2(*reinterpret_cast<__half2 *>(&pair[i]));

        value[2 * i] = __fmul_rn(both.x, scale);
        value[2 * i + 1] = __fmul_rn(both.y, scale);
    }
}

/* ---- words that carry their epoch ---- */

/* 16 bytes that arrive as one: who reads this epoch reads what came with it. No fence, so
 * that it need not wait for the rows on the way. */
static __device__ __forceinline__ void ll_packet_store(char *to, uint32_t first,
                                                       uint32_t second, uint64_t epoch)
{
    uint64_t word = (uint64_t)second << 32 | first;

    asm volatile(
        "{ .reg .b128 t; mov.b128 t, {%1, %2}; st.relaxed.sys.global.b128 [%0], t; }" ::"l"(
            to),
        "l"(word), "l"(epoch)
        : "memory");
}

static __device__ __forceinline__ uint2 ll_packet_load(const char *from, uint64_t *epoch)
{
    uint64_t word;

    asm volatile(
        "{ .reg .b128 t; ld.relaxed.sys.global.b128 t, [%2]; mov.b128 {%0, %1}, t; }"
        : "=l"(word), "=l"(*epoch)
        : "l"(from)
        : "memory");
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
    if (!PROFILE || ll_lane() != 0)
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
    if (!PROFILE || ll_lane() != 0)
        return;
    uint32_t warps = blockDim.x / LL_WARP;
    uint32_t warp = blockIdx.x * warps + threadIdx.x / LL_WARP;

    for (uint32_t w = warp; w < a.stamped; w += gridDim.x * warps)
        for (int i = 0; i < LL_PHASES; i++)
            if (i / LL_STAGE_PHASES == (int)a.stage)
                a.stamps[w].at[i][0] = a.stamps[w].at[i][1] = 0;
}

#endif
