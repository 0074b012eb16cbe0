/* Matrix kernels of AVX-512 with fused multiply-add: tiles of up to 12 x 32, of A in float32 and B
 * that is widened in registers. Order of additions, for each element of C:
 *
 *   BF16, F16  from +0, k ascending: c = fma(a, b, c)
 *   FP8        p for each 128 of k in the same way; then c = fma(p, scale of A * scale of B, c),
 *              from +0, 128s ascending */
#include "kernels/gemm_avx512.h"

enum { TILE_ROWS = 12 };

/* 64 codes a step; scale[] has one for each group, a multiple of 32. */
INLINED void pack_fp8(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                      uint32_t row, bool f16)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    char *to = (char *)a + epa_gemm_a_at(row, 0, k);

    for (uint32_t k0 = 0; k0 < k; k0 += 64, to += 2 * PANEL_STEP) {
        __m512i x0, x1;

        decode64(_mm512_permutexvar_epi64(order, _mm512_loadu_si512(q + k0)), &x0, &x1);
        if (scale != NULL) {
            __m512 s0 = _mm512_set1_ps(scale[k0 / group]);
            __m512 s1 = _mm512_set1_ps(scale[(k0 + 32) / group]);

            x0 = narrow_apart(times(widen_apart(x0), s0), f16);
            x1 = narrow_apart(times(widen_apart(x1), s1), f16);
        }
        _mm512_store_si512(to, x0);
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

void kernels_avx512_pack_a_bf16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k,
                                void *a, uint32_t row)
{
    if (group % 32 == 0)
        pack_fp8(q, scale, group, k, a, row, false);
    else
        kernels_pack_a_bf16(q, scale, group, k, a, row);
}

static void pack_a_f16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                       uint32_t row)
{
    if (group % 32 == 0)
        pack_fp8(q, scale, group, k, a, row, true);
    else
        kernels_pack_a_f16(q, scale, group, k, a, row);
}

void kernels_avx512_pack_a_codes(const uint8_t *q, const float *scale, uint32_t group, uint32_t k,
                                 void *a, uint32_t row)
{
    (void)scale;
    pack_fp8(q, NULL, group, k, a, row, false);
}

INLINED void widen(const char *a, uint32_t rows, float *out, bool f16)
{
    for (uint32_t i = 0; i < 2 * rows; i++, a += 32, out += 16) {
        __m256i x = _mm256_load_si256((const void *)a);
        __m512i shifted = _mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);

        _mm512_store_ps(out, f16 ? _mm512_cvtph_ps(x) : _mm512_castsi512_ps(shifted));
    }
}

static void widen_bf16(const char *a, uint32_t rows, float *out)
{
    widen(a, rows, out, false);
}

static void widen_f16(const char *a, uint32_t rows, float *out)
{
    widen(a, rows, out, true);
}

/* One of k of a tile. */
INLINED void add_products(const float *a, uint32_t rows, __m512 b0, __m512 b1, __m512 (*sum)[2])
{
#pragma GCC unroll 12
    for (uint32_t i = 0; i < rows; i++) {
        __m512 x = _mm512_set1_ps(a[(size_t)i * 32]);

        sum[i][0] = _mm512_fmadd_ps(x, b0, sum[i][0]);
        sum[i][1] = _mm512_fmadd_ps(x, b1, sum[i][1]);
    }
}

INLINED void tile_of(const struct gemm_tile *t, uint32_t rows, bool f16)
{
    const char *b = t->b, *piece = t->a;
    __m512 sum[TILE_ROWS][2];

#pragma GCC unroll 12
    for (uint32_t i = 0; i < rows; i++) {
        bool none = t->first || t->scale != NULL;

        sum[i][0] = none ? _mm512_setzero_ps() : _mm512_load_ps(t->c + i * t->ldc);
        sum[i][1] = none ? _mm512_setzero_ps() : _mm512_load_ps(t->c + i * t->ldc + 16);
    }
    for (uint32_t k0 = 0; k0 < t->k; k0 += 32, piece += t->step) {
        const float *a = (const float *)(const void *)piece;

        for (uint32_t k = 0; k < 32; k += 2, a += 2, b += 128) {
            if (f16) {
                add_products(a, rows, _mm512_cvtph_ps(_mm256_load_si256((const void *)b)),
                             _mm512_cvtph_ps(_mm256_load_si256((const void *)(b + 32))), sum);
                add_products(a + 1, rows,
                             _mm512_cvtph_ps(_mm256_load_si256((const void *)(b + 64))),
                             _mm512_cvtph_ps(_mm256_load_si256((const void *)(b + 96))), sum);
            } else {
                struct floats32 b0 = widen_apart(_mm512_load_si512(b));
                struct floats32 b1 = widen_apart(_mm512_load_si512(b + 64));

                add_products(a, rows, b0.a, b1.a, sum);
                add_products(a + 1, rows, b0.b, b1.b, sum);
            }
        }
    }
#pragma GCC unroll 12
    for (uint32_t i = 0; i < rows; i++)
        store_sums(t, i, sum[i][0], sum[i][1]);
}

/* The number of rows is a constant in each, so that the sums are registers. */
INLINED void tile(const struct gemm_tile *t, uint32_t rows, bool f16)
{
    switch (rows) {
    case 1:
        tile_of(t, 1, f16);
        break;
    case 2:
        tile_of(t, 2, f16);
        break;
    case 3:
        tile_of(t, 3, f16);
        break;
    case 4:
        tile_of(t, 4, f16);
        break;
    case 5:
        tile_of(t, 5, f16);
        break;
    case 6:
        tile_of(t, 6, f16);
        break;
    case 7:
        tile_of(t, 7, f16);
        break;
    case 8:
        tile_of(t, 8, f16);
        break;
    case 9:
        tile_of(t, 9, f16);
        break;
    case 10:
        tile_of(t, 10, f16);
        break;
    case 11:
        tile_of(t, 11, f16);
        break;
    default:
        tile_of(t, TILE_ROWS, f16);
    }
}

static void tile_bf16(const struct gemm_tile *t, uint32_t rows)
{
    tile(t, rows, false);
}

static void tile_f16(const struct gemm_tile *t, uint32_t rows)
{
    tile(t, rows, true);
}

static void multiply_bf16(const struct epa_gemm_call *g)
{
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_BF16,
                                          .tile_rows = TILE_ROWS,
                                          .rows = WIDENED_ROWS,
                                          .widen = widen_bf16,
                                          .tile = tile_bf16});
}

static void multiply_f16(const struct epa_gemm_call *g)
{
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_F16,
                                          .tile_rows = TILE_ROWS,
                                          .rows = WIDENED_ROWS,
                                          .widen = widen_f16,
                                          .tile = tile_f16});
}

static void multiply_fp8(const struct epa_gemm_call *g)
{
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_FP8_E4M3,
                                          .tile_rows = TILE_ROWS,
                                          .rows = WIDENED_ROWS,
                                          .widen = widen_bf16,
                                          .decode = decode_group,
                                          .tile = tile_bf16});
}

const struct epa_gemm kernels_gemm_avx512[3] = {
    {
        .isa = "avx512",
        .dtype = EPA_BF16,
        .pack_a = kernels_avx512_pack_a,
        .pack_a_fp8 = kernels_avx512_pack_a_bf16,
        .pack_b = kernels_pack_b_pairs,
        .multiply = multiply_bf16,
    },
    {
        .isa = "avx512",
        .dtype = EPA_F16,
        .pack_a = kernels_avx512_pack_a,
        .pack_a_fp8 = pack_a_f16,
        .pack_b = kernels_pack_b_words,
        .multiply = multiply_f16,
    },
    {
        .isa = "avx512",
        .dtype = EPA_FP8_E4M3,
        .pack_a_fp8 = kernels_avx512_pack_a_codes,
        .pack_b = kernels_pack_b_codes,
        .multiply = multiply_fp8,
    },
};
