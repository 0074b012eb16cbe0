/* Matrix kernels of AVX-512 BF16: VDPBF16PS adds two products of bf16 to each sum. It is twice as
 * fast as FMA on some CPUs (Zen 4) and half as fast on others, so a measurement decides unless the
 * user has chosen a set.
 *
 * Order of additions, for each element of C:
 *
 *   BF16  from +0, pairs (k, k + 1) ascending: c = fma(a[k + 1], b[k + 1], c), then
 *         c = fma(a[k], b[k], c)
 *   FP8   p for each group of k in the same way; then c = fma(p, scale of A * scale of B, c), from
 *         +0, groups ascending
 *
 * The instruction treats denormals in A, B and sums as zeros of their sign, and returns zero
 * instead of a denormal sum. */
#include <stdatomic.h>

#include "kernels/gemm_avx512.h"
#include "kernels/gemm_avx512_bf16.h"

#include "kernels/gemm_scalar.h"
#include "kernels/sets.h"

enum {
    ROWS = 64, /* rows of A, and */
    /* Elements of k: 256 KiB of L2, the same for the next rows, 128 KiB for each panel of B. */
    BLOCK = 2048,
};

INLINED void add_pairs(const struct gemm_tile *t, uint32_t k, uint32_t end, uint32_t rows,
                       enum epa_dtype dtype, __m512 (*sum)[2])
{
    const bool fp8 = dtype == EPA_FP8_E4M3;
    const char *a = t->a + k / 32 * t->step, *b = t->b + (size_t)k * 64;
    struct gemm_ahead ahead = *t->ahead;

    for (; k < end; k += 32, a += t->step) {
        if (!fp8) {
            fetch_lines(&ahead);
            for (uint32_t i = 0; i < ahead.a_per_piece; i++, ahead.a += 64)
                _mm_prefetch(ahead.a, _MM_HINT_T1);
        }
        for (uint32_t i = 0; i < 64; i += 4, b += 128) {
            __m512bh b0 = (__m512bh)_mm512_load_si512(b);
            __m512bh b1 = (__m512bh)_mm512_load_si512(b + 64);

            if (fp8 && ahead.steps > 0) {
                decode_step((const uint8_t *)ahead.b, ahead.decoded);
                ahead.b += 64;
                ahead.decoded += 64;
                ahead.steps--;
            }
#pragma GCC unroll 12
            for (uint32_t r = 0; r < rows; r++) {
                int32_t pair;
                __m512bh x;

                memcpy(&pair, a + (size_t)r * PIECE + i, sizeof(pair));
                x = (__m512bh)_mm512_set1_epi32(pair);
                sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, b0);
                sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, b1);
            }
        }
    }
    *t->ahead = ahead;
}

static void tile_bf16(const struct gemm_tile *t, uint32_t rows)
{
    compute_tile(t, rows, EPA_BF16, add_pairs);
}

static void tile_fp8(const struct gemm_tile *t, uint32_t rows)
{
    compute_tile(t, rows, EPA_FP8_E4M3, add_pairs);
}

static void multiply_bf16(const struct epa_gemm_call *g)
{
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_BF16,
                                          .tile_rows = TILE_ROWS,
                                          .rows = ROWS,
                                          .block = BLOCK,
                                          .tile = tile_bf16});
}

static void multiply_fp8(const struct epa_gemm_call *g)
{
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_FP8_E4M3,
                                          .tile_rows = TILE_ROWS,
                                          .rows = ROWS,
                                          .block = BLOCK,
                                          .slice = DECODED,
                                          .decode = decode_step,
                                          .tile = tile_fp8});
}

static void round_of_pairs(void)
{
    __asm__ volatile(PEAK_ZERO PEAK_CHAINS_24("vdpbf16ps", "zmm")::: PEAK_CHANGED_24);
}

static double peak(void)
{
    return peak_of(round_of_pairs, 24 * 64);
}

bool kernels_pairs_are_quicker(void)
{
    enum { UNKNOWN, NO, YES };
    /* Threads that arrive at the same time each measure. */
    static _Atomic int known = UNKNOWN;

    if (atomic_load_explicit(&known, memory_order_relaxed) == UNKNOWN)
        atomic_store_explicit(&known, peak() > kernels_gemm_avx512[0].peak() ? YES : NO,
                              memory_order_relaxed);
    return atomic_load_explicit(&known, memory_order_relaxed) == YES;
}

const struct epa_gemm kernels_gemm_avx512_bf16[2] = {
    {
        .isa = "avx512_bf16",
        .dtype = EPA_BF16,
        .pack_a = kernels_avx512_pack_a,
        .pack_a_fp8 = kernels_avx512_pack_a_bf16,
        .pack_b = kernels_pack_b_pairs,
        .multiply = multiply_bf16,
        .peak = peak,
    },
    {
        .isa = "avx512_bf16",
        .dtype = EPA_FP8_E4M3,
        .pack_a_fp8 = kernels_avx512_pack_a_codes,
        .pack_b = kernels_pack_b_codes,
        .multiply = multiply_fp8,
        .peak = peak,
    },
};
