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
        SHARE_SWEEPS = FP8 ? (LL_FP8_BYTES + SWEEP - 1) / SWEEP : LL_SHARE_CHANNELS / SWEEP
    };
};

static __device__ __forceinline__ uint32_t ll_lane(void)
{
    return threadIdx.x % LL_WARP;
}

/* Until the kernel before has ended, and what it wrote can be read; then the next may be
 * set up. Returns the number of this call, one more than have ended. Where the kernel
 * before has not counted calls of this kind it can be read while that runs. */
static __device__ __forceinline__ uint64_t ll_begin(const struct ll_args &a,
                                                    const unsigned long long *count)
{
    uint64_t ended = 0;

    if (a.counts_early)
        ended = __ldcg(count);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
    if (!a.counts_early)
        ended = __ldcg(count);
    return ended + 1;
}

/* The last block to come here counts the call; nobody reads the count any more. */
static __device__ __forceinline__ void ll_end(const struct ll_args &a,
                                              unsigned long long *count, uint64_t epoch)
{
    __syncthreads();
    if (threadIdx.x != 0 || atomicInc(&a.state->done, gridDim.x - 1) != gridDim.x - 1)
        return;
    a.state->ticket[LL_SENDING] = a.state->ticket[LL_RECEIVING] = 0;
    *count = epoch;
}

/* Work beyond the first unit of each of `warps` warps is taken as they are free: links do
 * not serve multiprocessors alike. Asked for before the unit at hand is done, as it takes a
 * while. */
static __device__ __forceinline__ uint32_t ll_next(const struct ll_args &a,
                                                   enum ll_ticket which, uint32_t warps,
                                                   uint32_t all)
{
    uint32_t ticket = 0;

    if (all <= warps)
        return all;
    if (ll_lane() == 0)
        ticket = atomicAdd(&a.state->ticket[which], 1u);
    return warps + __shfl_sync(LL_ALL, ticket, 0);
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

static __device__ __forceinline__ uint32_t ll_pack_fp8(const float *value)
{
    uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(value[0], value[1]), __NV_SATFINITE,
                                            __NV_E4M3);
    uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(value[2], value[3]),
                                             __NV_SATFINITE, __NV_E4M3);

    return low | high << 16;
}

/* The conversion gives NaN without its sign. */
static __device__ __noinline__ uint2 ll_sign_nan(uint2 q, uint4 raw)
{
    uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
    uint32_t out[2] = {q.x, q.y};

    for (int i = 0; i < 8; i++) {
        uint32_t bits = word[i / 2] >> (16 * (i % 2)) & 0xffffu;

        if ((bits & 0x7fffu) > 0x7f80u)
            out[i / 4] |= (bits >> 8 & 0x80u) << (8 * (i % 4));
    }
    return make_uint2(out[0], out[1]);
}

static __device__ __forceinline__ void ll_largest(const float *value, float *amax,
                                                  bool *odd)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float size = fabsf(value[i]);
        bool finite = size < __int_as_float(0x7f800000);

        *amax = fmaxf(*amax, finite ? size : 0.0f);
        *odd = *odd || !finite;
    }
}

static __device__ __forceinline__ void ll_divide(float *value, float by, float inverse)
{
    if (by >= LL_LEAST_SCALE && by <= LL_MOST_SCALE) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            value[i] = ll_quotient(value[i], by, inverse);
    } else {
        for (int i = 0; i < 8; i++)
            value[i] = __fdiv_rn(value[i], by);
    }
}

/* Sixteen channels of a lane; the group's other lanes are its neighbours, `lanes` of them
 * (a power of 2). All lanes of the warp call. *scale is the group's. */
static __device__ __forceinline__ uint4 ll_quantise16(uint4 low, uint4 high, uint32_t lanes,
                                                      float *scale)
{
    float a[8], b[8], amax = 0.0f, by = 1.0f, inverse;
    bool odd = false;
    uint2 first, second;

    ll_unpack(low, a);
    ll_unpack(high, b);
    ll_largest(a, &amax, &odd);
    ll_largest(b, &amax, &odd);
    for (uint32_t step = lanes / 2; step > 0; step /= 2)
        amax = fmaxf(amax, __shfl_xor_sync(LL_ALL, amax, step));
    if (amax != 0.0f)
        by = amax * (1.0f / 448.0f);
    inverse = __frcp_rn(by);
    ll_divide(a, by, inverse);
    ll_divide(b, by, inverse);
    first = make_uint2(ll_pack_fp8(a), ll_pack_fp8(a + 4));
    second = make_uint2(ll_pack_fp8(b), ll_pack_fp8(b + 4));
    if (odd) {
        first = ll_sign_nan(first, low);
        second = ll_sign_nan(second, high);
    }
    *scale = by;
    return make_uint4(first.x, first.y, second.x, second.y);
}

/* Eight codes times their scale, each product rounded. */
static __device__ __forceinline__ void ll_unpack_fp8(uint32_t low, uint32_t high,
                                                     float scale, float *value)
{
    const uint32_t word[2] = {low, high};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(
            (__nv_fp8x2_storage_t)(word[i / 2] >> (16 * (i % 2))), __NV_E4M3);
        float2 both = __half22float2(*reinterpret_cast<__half2 *>(&pair));

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

/* Forgets the stamps of the call before. */
template <bool PROFILE>
static __device__ __forceinline__ void ll_stamps_clear(const struct ll_args &a)
{
    if (!PROFILE || ll_lane() != 0)
        return;
    uint32_t warp = blockIdx.x * (blockDim.x / LL_WARP) + threadIdx.x / LL_WARP;

    for (int i = 0; i < LL_PHASES; i++)
        if (i / LL_STAGE_PHASES == (int)a.stage)
            a.stamps[warp].at[i][0] = a.stamps[warp].at[i][1] = 0;
}

#endif
