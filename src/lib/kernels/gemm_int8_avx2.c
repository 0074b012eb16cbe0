/* Matrix kernel of INT8 for AVX2: codes are widened to 16 bits, and VPMADDWD adds two products of each
 * column. A column has two partial sums in a register. */
#include <immintrin.h>
#include <string.h>

#include "kernels/gemm_int8.h"
#include "kernels/sets.h"

enum { TILE_ROWS = 3, TILE_COLS = 16, FOURS = 4 }; /* FOURS: registers of 4 columns in a tile */

/* Stores the sums of 8 columns, scaled. */
INLINED void store_eight(__m256i low, __m256i high, __m256 a_scale, const float *b_scale, float *c)
{
    __m256i sum = _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xd8);
    __m256 scale = _mm256_mul_ps(a_scale, _mm256_loadu_ps(b_scale));

    _mm256_store_ps(c, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale));
}

/* Multiplies rows from `row` on by 16 columns from n0 on. */
INLINED void multiply_tile(const struct epa_gemm_call *g, uint32_t row, uint32_t rows, uint32_t n0)
{
    const uint32_t panel_row = row % EPA_GEMM_ROWS;
    const char *a = (const char *)g->a + epa_gemm_panel_at(EPA_INT8, row - panel_row, g->k) +
                    (size_t)panel_row * INT8_STEP;
    const char *b = (const char *)g->b + n0 / EPA_GEMM_COLS * int8_b_panel(g->k) +
                    (size_t)(n0 % EPA_GEMM_COLS) * 4;
    __m256i sum[TILE_ROWS][FOURS];

#pragma GCC unroll 3
    for (uint32_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = _mm256_setzero_si256();
    for (uint32_t k0 = 0; k0 < g->k; k0 += INT8_STEP, a += INT8_A_STEP)
        for (uint32_t i = 0; i < INT8_STEP; i += 4, b += (size_t)EPA_GEMM_COLS * 4) {
            __m256i x[TILE_ROWS];

#pragma GCC unroll 3
            for (uint32_t r = 0; r < rows; r++) {
                int32_t four;

                memcpy(&four, a + (size_t)r * INT8_STEP + i, sizeof(four));
                x[r] = _mm256_cvtepi8_epi16(_mm_set1_epi32(four));
            }
#pragma GCC unroll 4
            for (uint32_t h = 0; h < FOURS; h++) {
                const __m128i *from = (const __m128i *)(const void *)(b + (size_t)h * 16);
                __m256i w = _mm256_cvtepi8_epi16(_mm_load_si128(from));

#pragma GCC unroll 3
                for (uint32_t r = 0; r < rows; r++)
                    sum[r][h] = _mm256_add_epi32(sum[r][h], _mm256_madd_epi16(x[r], w));
            }
        }
#pragma GCC unroll 3
    for (uint32_t r = 0; r < rows; r++) {
        __m256 scale = _mm256_set1_ps(g->a_scale[(row + r) * g->a_scale_stride]);
        float *c = g->c + (row + r) * g->ldc + n0;

        store_eight(sum[r][0], sum[r][1], scale, g->b_scale + n0, c);
        store_eight(sum[r][2], sum[r][3], scale, g->b_scale + n0 + 8, c + 8);
    }
}

static void multiply_int8(const struct epa_gemm_call *g)
{
    for (uint32_t n0 = 0; g->m > 0 && n0 < g->n; n0 += TILE_COLS)
        for (uint32_t row = 0, rows; row < g->m; row += rows) {
            uint32_t left = EPA_GEMM_ROWS - row % EPA_GEMM_ROWS; /* in the panel */

            rows = g->m - row < left ? g->m - row : left;
            if (rows >= TILE_ROWS) {
                rows = TILE_ROWS;
                multiply_tile(g, row, TILE_ROWS, n0);
            } else {
                rows = 1;
                multiply_tile(g, row, 1, n0);
            }
        }
}

static void round_of_pairs(void)
{
    __asm__ volatile(PEAK_ZERO PEAK_CHAINS_12("vpmaddwd", "ymm")::: PEAK_CHANGED_12);
}

static double peak(void)
{
    return peak_of(round_of_pairs, 12 * 32);
}

const struct epa_gemm kernels_gemm_int8_avx2 = {
    .isa = "avx2",
    .dtype = EPA_INT8,
    .pack_a = kernels_pack_a_int8,
    .pack_b = kernels_pack_b_int8,
    .multiply = multiply_int8,
    .peak = peak,
};
