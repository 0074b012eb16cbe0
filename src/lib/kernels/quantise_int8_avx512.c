/* Quantisation of rows to INT8 by AVX-512. */
#include <immintrin.h>
#include <stdbool.h>

#include "kernels/quantise_int8_avx512.h"
#include "kernels/sets.h"

enum { LANES = 16 };

INLINED __m512 load_words(const uint16_t *x, bool f16)
{
    __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)x);

    return f16 ? _mm512_cvtph_ps(words)
               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

/* The bits of floats without their sign are in the order of the floats. */
INLINED float scale_of_row(const uint16_t *x, bool f16, uint32_t n)
{
    const __m512i infinity = _mm512_set1_epi32(0x7f800000);
    __m512i most = _mm512_setzero_si512();
    float scale;

    for (uint32_t i = 0; i < n; i += LANES) {
        __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(load_words(x + i, f16)),
                                             _mm512_set1_epi32(0x7fffffff));
        __mmask16 finite = _mm512_cmplt_epi32_mask(magnitude, infinity);

        most = _mm512_mask_max_epi32(most, finite, most, magnitude);
    }
    scale =
        _mm512_cvtss_f32(_mm512_castsi512_ps(_mm512_set1_epi32(_mm512_reduce_max_epi32(most)))) *
        (1.0f / 127.0f);
    return scale >= 0x1p-126f ? scale : 1.0f; /* 1 / scale must be finite */
}

INLINED float quantise_row(const uint16_t *x, bool f16, uint32_t n, int8_t *q)
{
    const float scale = scale_of_row(x, f16, n);
    const __m512 by = _mm512_set1_ps(1.0f / scale), top = _mm512_set1_ps(127.0f);

    for (uint32_t i = 0; i < n; i += LANES) {
        __m512 v = _mm512_mul_ps(load_words(x + i, f16), by);
        __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
        __m512 limited = _mm512_max_ps(_mm512_min_ps(v, top), _mm512_set1_ps(-127.0f));
        __m512i code = _mm512_maskz_cvt_roundps_epi32(
            number, limited, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);

        _mm_storeu_si128((__m128i *)(void *)(q + i), _mm512_cvtepi32_epi8(code));
    }
    return scale;
}

float kernels_quantise_int8_avx512(const uint16_t *x, enum epa_dtype dtype, uint32_t n, int8_t *q)
{
    return dtype == EPA_F16 ? quantise_row(x, true, n, q) : quantise_row(x, false, n, q);
}
