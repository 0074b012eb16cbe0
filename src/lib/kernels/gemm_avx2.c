/* Matrix kernels of AVX2 with FMA and F16C: tiles of up to 5 x 16, two for a panel, of A in float32
 * and B, widened in registers. The order of additions is the order of gemm_avx512.c. */
#include <immintrin.h>

#include "kernels/gemm_loops.h"
#include "kernels/gemm_scalar.h"
#include "kernels/sets.h"

enum { TILE_ROWS = 5 };

static inline __m128i load8(const void *p)
{
    return _mm_load_si128((const __m128i *)p);
}

INLINED __m256 widen8(__m128i x, bool f16)
{
    if (f16)
        return _mm256_cvtph_ps(x);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

/* Decodes 16 codes to bf16: moves exponent and mantissa of normal numbers, and looks up the
 * others. */
static inline __m256i decode16(__m256i q)
{
    /* 0 to 7 times 2^-9: low and high byte */
    const __m256i low = _mm256_set1_epi64x(0x60402000c0800000);
    const __m256i high = _mm256_set1_epi64x(0x3c3c3c3c3b3b3b00);
    __m256i a = _mm256_and_si256(q, _mm256_set1_epi16(0x7f));
    __m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(_mm256_set1_epi16(0x7f), q), 8);
    __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(a, 4), _mm256_set1_epi16(120 << 7));
    /* out-of-range index gives 0. */
    __m256i index = _mm256_or_si256(a, _mm256_set1_epi16((short)0x8000));
    __m256i small = _mm256_or_si256(_mm256_shuffle_epi8(low, index),
                                    _mm256_slli_epi16(_mm256_shuffle_epi8(high, index), 8));
    __m256i is_small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), a);
    __m256i is_nan = _mm256_cmpeq_epi16(a, _mm256_set1_epi16(0x7f));
    __m256i v = _mm256_blendv_epi8(normal, small, is_small);

    v = _mm256_blendv_epi8(v, _mm256_set1_epi16(0x7fc0), is_nan);
    return _mm256_or_si256(v, sign);
}

/* Narrows eight float32 to the type, to nearest even. bf16: NaN stays NaN. */
INLINED __m128i narrow8(__m256 f, bool f16)
{
    __m256i u = _mm256_castps_si256(f);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256 nan = _mm256_cmp_ps(f, f, _CMP_UNORD_Q);

    if (f16)
        return _mm256_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)),
                           _mm256_castps_si256(nan));
    r = _mm256_srli_epi32(r, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

/* Packs 16 codes in each step; scale[] has one scale for each group, a multiple of 16. */
INLINED void pack_fp8(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                      uint32_t row, bool f16)
{
    for (uint32_t k0 = 0; k0 < k; k0 += 16) {
        char *to = (char *)a + epa_gemm_a_at(row, k0 / 32 * 32, k) + (size_t)(k0 % 32) * 2;
        __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)(q + k0));
        __m256i x = decode16(_mm256_cvtepu8_epi16(codes));
        __m128i x0 = _mm256_castsi256_si128(x), x1 = _mm256_extracti128_si256(x, 1);

        if (scale != NULL) {
            __m256 s = _mm256_set1_ps(scale[k0 / group]);

            x0 = narrow8(_mm256_mul_ps(widen8(x0, false), s), f16);
            x1 = narrow8(_mm256_mul_ps(widen8(x1, false), s), f16);
        }
        _mm_store_si128((__m128i *)(void *)to, x0);
        _mm_store_si128((__m128i *)(void *)(to + 16), x1);
    }
}

INLINED void widen(const char *a, uint32_t rows, float *out, bool f16)
{
    for (uint32_t i = 0; i < 4 * rows; i++, a += 16, out += 8)
        _mm256_store_ps(out, widen8(load8(a), f16));
}

static void decode_step(const uint8_t *codes, uint16_t *out)
{
    _mm_prefetch((const char *)codes + 2048, _MM_HINT_T0);
    for (uint32_t i = 0; i < 64; i += 16) {
        __m256i q = _mm256_cvtepu8_epi16(load8(codes + i));

        _mm256_store_si256((__m256i *)(void *)(out + i), decode16(q));
    }
}

/* Adds the products of one k of a tile. */
INLINED void add_products(const float *a, uint32_t rows, __m256 b0, __m256 b1, __m256 (*sum)[2])
{
#pragma GCC unroll 5
    for (uint32_t i = 0; i < rows; i++) {
        __m256 x = _mm256_broadcast_ss(a + (size_t)i * 32);

        sum[i][0] = _mm256_fmadd_ps(x, b0, sum[i][0]);
        sum[i][1] = _mm256_fmadd_ps(x, b1, sum[i][1]);
    }
}

/* Widens eight columns of B to float32: of pairs of bf16, the even or odd k; of f16, the columns at
 * b. */
INLINED __m256 widen_b(const char *b, bool f16, bool odd)
{
    __m256i x;

    if (f16)
        return widen8(load8(b), true);
    x = _mm256_load_si256((const __m256i *)(const void *)b);
    if (odd)
        return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000u)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

/* Decodes as many steps as this tile has of k. Outside the loop of products, in which no register
 * is free. */
static void decode_ahead(struct gemm_ahead *ahead, uint32_t k)
{
    for (uint32_t i = 0; i < k && ahead->steps > 0; i += 2, ahead->b += 64) {
        decode_step((const uint8_t *)ahead->b, ahead->decoded);
        ahead->decoded += 64;
        ahead->steps--;
    }
}

/* Adds the products of half a panel, k elements from k0 on. */
INLINED void add_half(const struct gemm_tile *t, uint32_t half, uint32_t k0, uint32_t k,
                      uint32_t rows, enum epa_dtype dtype, __m256 (*sum)[2])
{
    const bool f16 = dtype == EPA_F16, fetch = half == 0 && dtype != EPA_FP8_E4M3;
    const uint32_t lines = fetch ? t->ahead->per_piece : 0;
    const char *piece = t->a + k0 / 32 * t->step;
    const char *b = t->b + (size_t)k0 * 64 + (size_t)half * (f16 ? 32 : 64);

    for (uint32_t end = k0 + k; k0 < end; k0 += 32, piece += t->step) {
        const float *a = (const float *)(const void *)piece;

        for (uint32_t i = 0; i < lines; i++, t->ahead->b += 64)
            _mm_prefetch(t->ahead->b, _MM_HINT_T1);
        for (uint32_t i = 0; i < 32; i += 2, a += 2, b += 128) {
            const char *next = b + (f16 ? 64 : 0);
            const size_t eight = f16 ? 16 : 32;

            add_products(a, rows, widen_b(b, f16, false), widen_b(b + eight, f16, false), sum);
            /* Sums and one k of B fill all 16 registers: the compiler must not load B of the next k
             * earlier. */
            __asm__ volatile("" ::: "memory");
            add_products(a + 1, rows, widen_b(next, f16, true), widen_b(next + eight, f16, true),
                         sum);
            __asm__ volatile("" ::: "memory");
        }
    }
}

INLINED void tile_half(const struct gemm_tile *t, uint32_t half, uint32_t rows,
                       enum epa_dtype dtype)
{
    const uint32_t step = dtype == EPA_FP8_E4M3 ? t->group : t->k;

    for (uint32_t k = 0; k < t->k; k += step) {
        const bool first = t->first && k == 0;
        const float *a_scale = NULL;
        float b_scale = 0;
        __m256 sum[TILE_ROWS][2];

        if (dtype == EPA_FP8_E4M3) {
            a_scale = t->a_scale + k / t->group;
            b_scale = t->b_scale[k / GROUP];
        }

#pragma GCC unroll 5
        for (uint32_t i = 0; i < rows; i++) {
            const float *c = t->c + (size_t)i * EPA_GEMM_COLS + (size_t)half * 16;
            bool zero = dtype == EPA_FP8_E4M3 || first;

            sum[i][0] = zero ? _mm256_setzero_ps() : _mm256_load_ps(c);
            sum[i][1] = zero ? _mm256_setzero_ps() : _mm256_load_ps(c + 8);
        }
        add_half(t, half, k, gemm_least(t->k - k, step), rows, dtype, sum);
#pragma GCC unroll 5
        for (uint32_t i = 0; i < rows; i++) {
            float *c = t->c + (size_t)i * EPA_GEMM_COLS + (size_t)half * 16;

            if (dtype == EPA_FP8_E4M3) {
                __m256 by = _mm256_set1_ps(a_scale[i * t->a_scale_stride] * b_scale);
                __m256 c0 = first ? _mm256_setzero_ps() : _mm256_load_ps(c);
                __m256 c1 = first ? _mm256_setzero_ps() : _mm256_load_ps(c + 8);

                sum[i][0] = _mm256_fmadd_ps(sum[i][0], by, c0);
                sum[i][1] = _mm256_fmadd_ps(sum[i][1], by, c1);
            }
            _mm256_store_ps(c, sum[i][0]);
            _mm256_store_ps(c + 8, sum[i][1]);
        }
    }
}

INLINED void tile_of(const struct gemm_tile *t, uint32_t rows, enum epa_dtype dtype)
{
    if (dtype == EPA_FP8_E4M3)
        decode_ahead(t->ahead, t->k);
    tile_half(t, 0, rows, dtype);
    tile_half(t, 1, rows, dtype);
}

/* The number of rows is a constant in each call, so that the sums are registers. */
INLINED void tile_of_type(const struct gemm_tile *t, uint32_t rows, enum epa_dtype dtype)
{
    switch (rows) {
    case 1:
        tile_of(t, 1, dtype);
        break;
    case 2:
        tile_of(t, 2, dtype);
        break;
    case 3:
        tile_of(t, 3, dtype);
        break;
    case 4:
        tile_of(t, 4, dtype);
        break;
    default:
        tile_of(t, TILE_ROWS, dtype);
    }
}

static void round_of_fma(void)
{
    __asm__ volatile(PEAK_ZERO PEAK_CHAINS_12("vfmadd231ps", "ymm")::: PEAK_CHANGED_12);
}

static double peak(void)
{
    return peak_of(round_of_fma, 12 * 16);
}

#define PACK_GROUP 16
#define GEMM_SETS kernels_gemm_avx2
#define GEMM_ISA "avx2"
#define GEMM_PACK_A kernels_pack_a
#define GEMM_PACK_CODES kernels_pack_b_code_pairs
#include "kernels/gemm_widened.h"
