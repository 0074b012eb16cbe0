/* Matrix kernel of INT8 for AVX-512 VNNI: VPDPBUSD adds four products of an unsigned and a signed byte
 * to each sum, without saturation. A holds codes + 128, so a sum is too large by 128 times the sum of
 * the row of weights, which packed B contains. Sums wrap, so an intermediate sum may exceed int32. */
#include "kernels/gemm_int8_loops.h"

enum {
    TILE_ROWS = 12,
    ROWS = 64,  /* rows of A, and */
    BLOCK = 64, /* steps of k: 256 KiB of L2 */
};

static void pack_a_int8(const void *x, uint32_t k, void *a, uint32_t row)
{
    char *to = (char *)a + epa_gemm_panel_at(EPA_INT8, row / EPA_GEMM_ROWS * EPA_GEMM_ROWS, k) +
               (size_t)(row % EPA_GEMM_ROWS) * INT8_STEP;

    for (uint32_t k0 = 0; k0 < k; k0 += INT8_STEP, to += INT8_A_STEP) {
        __mmask64 here = k - k0 < INT8_STEP ? (1ull << (k - k0)) - 1 : ~0ull;
        __m512i codes = _mm512_maskz_loadu_epi8(here, (const char *)x + k0);

        _mm512_store_si512(to, _mm512_xor_si512(codes, _mm512_set1_epi8(-128)));
    }
}

/* Returns the start of 16 sums: -128 times the sums of the rows of weights. */
static inline __m512i offset_of(const int32_t *columns)
{
    __m512i sum = _mm512_loadu_si512(columns);

    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7));
}

INLINED void multiply_tile(const struct int8_tile *t, uint32_t rows)
{
    __m512i sum[TILE_ROWS][2];
    struct int8_ahead ahead = *t->ahead;
    const char *a = t->a, *b = t->b;

#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
        const int32_t *c = t->c + (size_t)r * EPA_GEMM_COLS;

        for (uint32_t h = 0; h < 2; h++)
            sum[r][h] = t->first ? offset_of(t->columns + h * 16) : _mm512_load_si512(c + h * 16);
    }
    for (uint32_t s = 0; s < t->steps; s++, a += INT8_A_STEP) {
        int8_fetch(&ahead);
        for (uint32_t i = 0; i < INT8_STEP; i += 4, b += 128) {
            __m512i b0 = _mm512_load_si512(b), b1 = _mm512_load_si512(b + 64);

#pragma GCC unroll 12
            for (uint32_t r = 0; r < rows; r++) {
                int32_t four;
                __m512i x;

                memcpy(&four, a + (size_t)r * INT8_STEP + i, sizeof(four));
                x = _mm512_set1_epi32(four);
                sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], x, b0);
                sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], x, b1);
            }
        }
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++) {
        _mm512_store_si512(t->c + (size_t)r * EPA_GEMM_COLS, sum[r][0]);
        _mm512_store_si512(t->c + (size_t)r * EPA_GEMM_COLS + 16, sum[r][1]);
    }
    *t->ahead = ahead;
}

/* The number of rows is a constant in each case, so that sums stay in registers. */
static void tile(const struct int8_tile *t, uint32_t rows)
{
    switch (rows) {
#define CASE(n) \
    case n: \
        multiply_tile(t, n); \
        break;
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
    default:
        multiply_tile(t, TILE_ROWS);
#undef CASE
    }
}

static void multiply_int8(const struct epa_gemm_call *g)
{
    int8_multiply(
        g, (struct int8_method){
               .tile_rows = TILE_ROWS, .rows = ROWS, .block = BLOCK, .slice = BLOCK, .tile = tile});
}

static void round_of_fours(void)
{
    __asm__ volatile(PEAK_ZERO PEAK_CHAINS_24("vpdpbusd", "zmm")::: PEAK_CHANGED_24);
}

static double peak(void)
{
    return peak_of(round_of_fours, 24 * 128);
}

const struct epa_gemm kernels_gemm_int8_vnni = {
    .isa = "avx512_vnni",
    .dtype = EPA_INT8,
    .pack_a = pack_a_int8,
    .pack_b = kernels_pack_b_int8,
    .multiply = multiply_int8,
    .peak = peak,
};
