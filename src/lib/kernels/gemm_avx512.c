/* Matrix kernels of AVX-512 with fused multiply-add: tiles of up to 12 x 32, of A in float32 and B,
 * widened in registers. Order of additions, for each element of C:
 *
 *   BF16, F16  from +0, k ascending: c = fma(a, b, c)
 *   FP8        p for each group of k in the same way; then c = fma(p, scale of A * scale of B, c),
 *              from +0, groups ascending */
#include "kernels/gemm_avx512.h"

/* Packs 64 codes in each step, in the last step 32 if k is not a multiple of 64; scale[] has one
 * scale for each group, a multiple of 32. */
INLINED void pack_fp8(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                      uint32_t row, bool f16)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    char *to = (char *)a + epa_gemm_a_at(row, 0, k);

    for (uint32_t k0 = 0; k0 < k; k0 += 64, to += 2 * PANEL_STEP) {
        const bool half = k - k0 < 64;
        __m512i x0, x1;

        decode64(
            _mm512_permutexvar_epi64(order, _mm512_maskz_loadu_epi64(half ? 0x0f : 0xff, q + k0)),
            &x0, &x1);
        if (scale != NULL) {
            __m512 s0 = _mm512_set1_ps(scale[k0 / group]);
            __m512 s1 = _mm512_set1_ps(scale[(half ? k0 : k0 + 32) / group]);

            x0 = narrow_apart(times(widen_apart(x0), s0), f16);
            x1 = narrow_apart(times(widen_apart(x1), s1), f16);
        }
        _mm512_store_si512(to, x0);
        if (!half)
            _mm512_store_si512(to + PANEL_STEP, x1);
    }
}

void kernels_avx512_pack_a(const void *x, uint32_t k, void *a, uint32_t row)
{
    const char *from = x;
    char *to = (char *)a + epa_gemm_a_at(row, 0, k);

    for (uint32_t k0 = 0; k0 < k; k0 += 32, from += PIECE, to += PANEL_STEP)
        _mm512_store_si512(to, _mm512_loadu_si512(from));
}

INLINED void widen(const char *a, uint32_t rows, float *out, bool f16)
{
    for (uint32_t i = 0; i < 2 * rows; i++, a += 32, out += 16) {
        __m256i x = _mm256_load_si256((const void *)a);
        __m512i shifted = _mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);

        _mm512_store_ps(out, f16 ? _mm512_cvtph_ps(x) : _mm512_castsi512_ps(shifted));
    }
}

/* Adds the products of one k of a tile. */
INLINED void add_products(const float *a, uint32_t rows, __m512 b0, __m512 b1, __m512 (*sum)[2])
{
#pragma GCC unroll 12
    for (uint32_t i = 0; i < rows; i++) {
        __m512 x = _mm512_set1_ps(a[(size_t)i * 32]);

        sum[i][0] = _mm512_fmadd_ps(x, b0, sum[i][0]);
        sum[i][1] = _mm512_fmadd_ps(x, b1, sum[i][1]);
    }
}

INLINED struct floats32 widen_b(const char *b, bool f16)
{
    if (f16)
        return (struct floats32){_mm512_cvtph_ps(_mm256_load_si256((const void *)b)),
                                 _mm512_cvtph_ps(_mm256_load_si256((const void *)(b + 32)))};
    return widen_apart(_mm512_load_si512(b));
}

/* Adds products to a tile. f16 has 32 columns of one k after the other, bf16 16 columns of two
 * k. */
INLINED void add(const struct gemm_tile *t, uint32_t k, uint32_t end, uint32_t rows,
                 enum epa_dtype dtype, __m512 (*sum)[2])
{
    const char *piece = t->a + k / 32 * t->step, *b = t->b + (size_t)k * 64;
    const bool f16 = dtype == EPA_F16, fp8 = dtype == EPA_FP8_E4M3;
    struct gemm_ahead ahead = *t->ahead;

    for (; k < end; k += 32, piece += t->step) {
        const float *a = (const float *)(const void *)piece;

        if (!fp8)
            fetch_lines(&ahead);
        for (uint32_t i = 0; i < 32; i += 2, a += 2, b += 128) {
            struct floats32 b0 = widen_b(b, f16), b1 = widen_b(b + 64, f16);

            if (fp8 && ahead.steps > 0) {
                decode_step((const uint8_t *)ahead.b, ahead.decoded);
                ahead.b += 64;
                ahead.decoded += 64;
                ahead.steps--;
            }
            add_products(a, rows, b0.a, f16 ? b0.b : b1.a, sum);
            add_products(a + 1, rows, f16 ? b1.a : b0.b, b1.b, sum);
        }
    }
    *t->ahead = ahead;
}

INLINED void tile_of_type(const struct gemm_tile *t, uint32_t rows, enum epa_dtype dtype)
{
    compute_tile(t, rows, dtype, add);
}

static void round_of_fma(void)
{
    __asm__ volatile(PEAK_ZERO PEAK_CHAINS_24("vfmadd231ps", "zmm")::: PEAK_CHANGED_24);
}

static double peak(void)
{
    return peak_of(round_of_fma, 24 * 32);
}

#define PACK_GROUP 32
#define GEMM_SETS kernels_gemm_avx512
#define GEMM_ISA "avx512"
#define GEMM_PACK_A kernels_avx512_pack_a
#define GEMM_PACK_CODES kernels_pack_b_codes
#include "kernels/gemm_scalar.h"
#include "kernels/gemm_widened.h"
#include "kernels/sets.h"

/* Used by the sets of AVX-512 BF16 and AMX. */
void kernels_avx512_pack_a_bf16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k,
                                void *a, uint32_t row)
{
    pack_a_bf16(q, scale, group, k, a, row);
}

void kernels_avx512_pack_a_codes(const uint8_t *q, const float *scale, uint32_t group, uint32_t k,
                                 void *a, uint32_t row)
{
    pack_a_codes(q, scale, group, k, a, row);
}
