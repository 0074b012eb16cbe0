/* For kernels: conversion of token rows, 16 bytes per lane at a time, between the 16-bit type of an
 * experiment, float32 and FP8. The results equal the definitions of epa2a/problem.h and the results
 * of the CPU kernels, bit by bit. F16: the type is float16, else bfloat16. */
#ifndef EPA2A_QUANT_CUH
#define EPA2A_QUANT_CUH

#include <epa2a/both.h>
#include <epa2a/ptx.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

enum { EPA_DEV_WARP = 32, EPA_DEV_ALL = 0xffffffffu };

EPA_DEV uint4 epa_dev_load16(const char *from)
{
    return __ldcg(reinterpret_cast<const uint4 *>(from));
}

EPA_DEV void epa_dev_store16(char *to, uint4 v)
{
    epa_dev_store(reinterpret_cast<uint4 *>(to), v);
}

/* ---- 16 bits ---- */

/* Return the first and the second value of a pair. */
template <bool F16> EPA_DEV float epa_dev_low(uint32_t pair)
{
    if (F16)
        return __half2float(__ushort_as_half((unsigned short)pair));
    return __uint_as_float(pair << 16);
}

template <bool F16> EPA_DEV float epa_dev_high(uint32_t pair)
{
    if (F16)
        return __half2float(__ushort_as_half((unsigned short)(pair >> 16)));
    return __uint_as_float(pair & 0xffff0000u);
}

template <bool F16> EPA_DEV void epa_dev_unpack(uint4 raw, float *value)
{
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        value[2 * i] = epa_dev_low<F16>(word[i]);
        value[2 * i + 1] = epa_dev_high<F16>(word[i]);
    }
}

template <bool F16> EPA_DEV uint32_t epa_dev_pack2(float low, float high)
{
    if (F16) {
        __half2 pair = __floats2half2_rn(low, high);

        return *reinterpret_cast<uint32_t *>(&pair);
    }
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);

    return *reinterpret_cast<uint32_t *>(&pair);
}

template <bool F16> EPA_DEV uint4 epa_dev_pack(const float *value)
{
    return make_uint4(
        epa_dev_pack2<F16>(value[0], value[1]), epa_dev_pack2<F16>(value[2], value[3]),
        epa_dev_pack2<F16>(value[4], value[5]), epa_dev_pack2<F16>(value[6], value[7]));
}

/* ---- FP8 ---- */

/* Packs four FP8 codes; each code takes its sign from the source pairs. */
EPA_DEV uint32_t epa_dev_pack_fp8(const float *size, uint32_t low, uint32_t high)
{
    uint32_t first =
        __nv_cvt_float2_to_fp8x2(make_float2(size[0], size[1]), __NV_SATFINITE, __NV_E4M3);
    uint32_t second =
        __nv_cvt_float2_to_fp8x2(make_float2(size[2], size[3]), __NV_SATFINITE, __NV_E4M3);

    return first | second << 16 | (__byte_perm(low, high, 0x7531) & 0x80808080u);
}

enum { EPA_DEV_NO_SIGN = 0x7fff7fff }; /* mask of two magnitudes */

/* Returns the bits of the smallest magnitude that is infinity or NaN. */
template <bool F16> EPA_DEV uint32_t epa_dev_not_finite(void)
{
    return F16 ? 0x7c00 : 0x7f80;
}

/* Handles the cases that the fast path would round wrongly: infinity, NaN, scales too small or too
 * large. The cases are rare, so this path uses few registers: four channels at a time, from words
 * that shift. */
template <bool F16> EPA_DEV uint4 epa_dev_divide16(uint4 low, uint4 high, float by)
{
    uint4 out = make_uint4(0, 0, 0, 0);

#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        const float size[4] = {__fdiv_rn(epa_dev_low<F16>(low.x & EPA_DEV_NO_SIGN), by),
                               __fdiv_rn(epa_dev_high<F16>(low.x & EPA_DEV_NO_SIGN), by),
                               __fdiv_rn(epa_dev_low<F16>(low.y & EPA_DEV_NO_SIGN), by),
                               __fdiv_rn(epa_dev_high<F16>(low.y & EPA_DEV_NO_SIGN), by)};

        out = make_uint4(out.y, out.z, out.w, epa_dev_pack_fp8(size, low.x, low.y));
        low = make_uint4(low.z, low.w, high.x, high.y);
        high = make_uint4(high.z, high.w, 0, 0);
    }
    return out;
}

/* Quantises sixteen channels of a lane. The group's other lanes are its neighbours, `lanes` in
 * total (a power of 2). All lanes of the warp call. *scale is the group's scale. Magnitudes have
 * the order of their bits, so a lane compares two at a time. */
template <bool F16>
EPA_DEV uint4 epa_dev_quantise16(uint4 low, uint4 high, uint32_t lanes, float *scale)
{
    const uint32_t pair[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    uint32_t most = 0, out[4];
    float amax, inverse;
    bool odd;

#pragma unroll
    for (int i = 0; i < 8; i++)
        most = __vmaxu2(most, pair[i] & EPA_DEV_NO_SIGN);
    odd = most % 65536 >= epa_dev_not_finite<F16>() || most >> 16 >= epa_dev_not_finite<F16>();
    if (odd) { /* exclude infinity and NaN */
        most = 0;
        for (int i = 0; i < 8; i++)
            most = __vmaxu2(most, pair[i] & EPA_DEV_NO_SIGN &
                                      __vcmpltu2(pair[i] & EPA_DEV_NO_SIGN,
                                                 epa_dev_not_finite<F16>() * 0x10001u));
    }
    most = max(most % 65536, most >> 16);
    for (uint32_t step = lanes / 2; step > 0; step /= 2)
        most = max(most, __shfl_xor_sync(EPA_DEV_ALL, most, step));
    amax = epa_dev_low<F16>(most);
    *scale = most != 0 ? amax * (1.0f / 448.0f) : 1.0f;
    inverse = __frcp_rn(*scale);
    if (odd || *scale < EPA_QUOTIENT_LEAST || *scale > EPA_QUOTIENT_MOST)
        return epa_dev_divide16<F16>(low, high, *scale);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t first = pair[2 * i] & EPA_DEV_NO_SIGN, second = pair[2 * i + 1] & EPA_DEV_NO_SIGN;
        const float size[4] = {epa_quotient(epa_dev_low<F16>(first), *scale, inverse),
                               epa_quotient(epa_dev_high<F16>(first), *scale, inverse),
                               epa_quotient(epa_dev_low<F16>(second), *scale, inverse),
                               epa_quotient(epa_dev_high<F16>(second), *scale, inverse)};

        out[i] = epa_dev_pack_fp8(size, pair[2 * i], pair[2 * i + 1]);
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* Multiplies four codes by their scale; each product is rounded. */
EPA_DEV void epa_dev_unpack_fp8(uint32_t codes, float scale, float *value)
{
    uint32_t pair[2];

    epa_dev_fp8_to_f16(codes, pair);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float2 both = __half22float2(*reinterpret_cast<__half2 *>(&pair[i]));

        value[2 * i] = __fmul_rn(both.x, scale);
        value[2 * i + 1] = __fmul_rn(both.y, scale);
    }
}

#endif
