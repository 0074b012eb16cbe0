/* Conversion between float32 and the 16-bit and 8-bit types in AVX-512. Arithmetic on bf16 treats
 * even and odd channels separately: a pair of bf16 is one 32-bit lane. The upper half of the lane,
 * followed by zeros, is the odd channel in float32; the lane shifted up is the even channel. */
#ifndef KERNELS_AVX512_CONVERT_H
#define KERNELS_AVX512_CONVERT_H

#include <immintrin.h>

#include "base/dtype.h"
#include "kernels/sets.h"
#include "tables.h"

/* 32 channels. "Apart": even and odd channels, the result of widening bf16 and codes; otherwise, in
 * f16, the first sixteen and the last sixteen. */
struct floats32 {
    __m512 a, b;
};

enum { NEAREST_EVEN = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

static inline struct floats32 widen_apart(__m512i x)
{
    return (struct floats32){
        _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
        _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u))),
    };
}

/* Computes bf16_of_float() in the upper half of each lane. The dedicated instruction does not fit:
 * it treats denormals as zeros. */
static inline __m512i round_up_there(__m512 f)
{
    __m512i u = _mm512_castps_si512(f);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q);

    return _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
}

INLINED __m512i narrow_apart(struct floats32 f, bool f16)
{
    __m512i even, odd;

    if (!f16)
        return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(round_up_there(f.a), 16),
                                       round_up_there(f.b));
    even = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(f.a, NEAREST_EVEN));
    odd = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(f.b, NEAREST_EVEN));
    return _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
}

INLINED __m512i narrow(struct floats32 f, bool f16)
{
    if (!f16)
        return narrow_apart(f, false);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(f.a, NEAREST_EVEN)),
                              _mm512_cvtps_ph(f.b, NEAREST_EVEN), 1);
}

static inline struct floats32 times(struct floats32 f, __m512 by)
{
    return (struct floats32){_mm512_mul_ps(f.a, by), _mm512_mul_ps(f.b, by)};
}

/* Decodes 64 codes, in this order: groups of eight 0 4 1 5 2 6 3 7, so that unpacking gives 0 1 2 3
 * and 4 5 6 7. */
static inline void decode64(__m512i q, __m512i *x0, __m512i *x1)
{
    __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(table_bf16_low), q,
                                           _mm512_load_si512(table_bf16_low + 64));
    __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(table_bf16_high), q,
                                            _mm512_load_si512(table_bf16_high + 64));

    high = _mm512_ternarylogic_epi64(high, q, _mm512_set1_epi8((char)0x80), 0xf8);
    *x0 = _mm512_unpacklo_epi8(low, high);
    *x1 = _mm512_unpackhi_epi8(low, high);
}

/* ---- groups ---- */

/* Keeps a constant in a register. Some compilers would recompute it for each use, on the port that
 * the look-ups need. */
static inline __m512i held(__m512i v)
{
    __asm__("" : "+v"(v));
    return v;
}

static inline __m512i magnitude(__m512i x)
{
    return _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
}

/* Loads the first n channels, or all 32; zeros after them. */
static inline __m512i load_some(const uint16_t *x, uint32_t n)
{
    return _mm512_maskz_loadu_epi16(n < 32 ? (1u << n) - 1u : ~0u, x);
}

static inline uint32_t largest(__m512i v)
{
    __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    __m128i inverted = _mm_xor_si128(eight, _mm_set1_epi16(-1));

    return 0xffffu & ~(uint32_t)_mm_extract_epi16(_mm_minpos_epu16(inverted), 0);
}

/* Returns the codes of 16 magnitudes by division, equal to e4m3_of_float(). */
static inline __m512i divide16(__m512 x, __m512 scale)
{
    __m512 quotient = _mm512_div_ps(x, scale);
    __m512i bits = _mm512_castps_si512(quotient);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7ffff)), odd);
    __m512i normal = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32(120 << 3));
    __m512i small =
        _mm512_and_si512(_mm512_castps_si512(_mm512_add_ps(quotient, _mm512_set1_ps(16384.0f))),
                         _mm512_set1_epi32(0xff));
    __mmask16 is_small = _mm512_cmp_ps_mask(quotient, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ);
    __mmask16 is_nan = _mm512_cmp_ps_mask(quotient, quotient, _CMP_UNORD_Q);
    __m512i code = _mm512_min_epu32(normal, _mm512_set1_epi32(0x7e));

    code = _mm512_mask_mov_epi32(code, is_small, small);
    return _mm512_mask_mov_epi32(code, is_nan, _mm512_set1_epi32(0x7f));
}

/* The same for 16 channels with their signs. */
INLINED __m512i coded16(__m256i x, float scale, bool f16)
{
    __m256i a = _mm256_and_si256(x, _mm256_set1_epi16(0x7fff));
    __m512 f = f16 ? _mm512_cvtph_ps(a)
                   : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16));
    __m512i sign =
        _mm512_and_si512(_mm512_srli_epi32(_mm512_cvtepu16_epi32(x), 8), _mm512_set1_epi32(0x80));

    return _mm512_or_si512(divide16(f, _mm512_set1_ps(scale)), sign);
}

/* Quantises a group by the definition, for any contents. */
INLINED float group_divided(const uint16_t *x, uint32_t n, bool f16, uint8_t *q)
{
    const __m512i infinity = _mm512_set1_epi16(f16 ? 0x7c00 : 0x7f80);
    __m512i top = _mm512_setzero_si512();
    uint32_t amax;
    float scale;

    for (uint32_t i = 0; i < n; i += 32) {
        __m512i a = magnitude(load_some(x + i, n - i));

        top = _mm512_mask_max_epu16(top, _mm512_cmplt_epu16_mask(a, infinity), top, a);
    }
    amax = largest(top);
    scale = amax != 0 ? float_of_word(f16, (uint16_t)amax) * (1.0f / 448.0f) : 1.0f;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 some = (__mmask16)(n - i < 16 ? (1u << (n - i)) - 1u : 0xffffu);
        __m512i code = coded16(_mm256_maskz_loadu_epi16(some, x + i), scale, f16);

        _mm512_mask_cvtepi32_storeu_epi8(q + i, some, code);
    }
    return scale;
}

static inline void fetch(const uint16_t *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 32)
        _mm_prefetch((const char *)(x + i), _MM_HINT_T0);
}

#endif
