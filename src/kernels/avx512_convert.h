/* Between float32 and the 16-bit and 8-bit types in AVX-512. Arithmetic on bf16 is done on even and
 * odd channels apart: a pair of bf16 is one 32-bit lane, whose upper half with zeros behind it
 * already is the odd channel in float32, and shifted up, the even one. */
#ifndef KERNELS_AVX512_CONVERT_H
#define KERNELS_AVX512_CONVERT_H

#include <immintrin.h>

#include "kernels/sets.h"
#include "tables.h"

/* 32 channels. "Apart": even and odd ones, as bf16 and codes are widened; else, in f16, the
 * first sixteen and the others. */
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

/* bf16_of_float, in the upper half of each lane. Not the instruction made for it: that one
 * takes denormals for zeros. */
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

/* 64 codes, in this order: eights 0 4 1 5 2 6 3 7, so that unpacking gives 0 1 2 3 and
 * 4 5 6 7. */
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

#endif
