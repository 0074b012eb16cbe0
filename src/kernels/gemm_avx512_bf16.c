/* Matrix kernels of AVX-512 BF16: VDPBF16PS adds two products of bf16 to each sum. It is twice as
 * fast as FMA on some CPUs (Zen 4) and half as fast on others, so that where nobody chose, a
 * measurement does.
 *
 * Order of additions, for each element of C:
 *
 *   BF16  from +0, pairs (k, k + 1) ascending: c = fma(a[k + 1], b[k + 1], c), then
 *         c = fma(a[k], b[k], c)
 *   FP8   p for each 128 of k in the same way; then c = fma(p, scale of A * scale of B, c), from
 *         +0, 128s ascending
 *
 * The instruction takes denormals in A, B and sums for zeros of their sign, and makes a zero of
 * each denormal sum. */
#include <stdatomic.h>
#include <time.h>

#include "kernels/gemm_avx512.h"

enum {
    ROWS = 128,   /* of A, and */
    BLOCK = 2048, /* of k: 512 KiB of L2 */
};

INLINED void add_pairs(const struct gemm_tile *t, uint32_t k, uint32_t end, uint32_t rows,
                       enum epa_dtype dtype, __m512 (*sum)[2])
{
    const bool fp8 = dtype == EPA_FP8_E4M3;
    const char *a = t->a + k / 32 * t->step, *b = t->b + (size_t)k * 64;
    struct gemm_ahead ahead = *t->ahead;

    for (; k < end; k += 32, a += t->step) {
        if (!fp8)
            fetch_lines(&ahead);
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
    tile(t, rows, EPA_BF16, add_pairs);
}

static void tile_fp8(const struct gemm_tile *t, uint32_t rows)
{
    tile(t, rows, EPA_FP8_E4M3, add_pairs);
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

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* 12 chains in registers, enough for any latency. In assembler: a compiler does not run what it can
 * work out, and may keep an array of sums in memory. */
#define CHAINS(instruction) \
    instruction \
        " %%zmm15, %%zmm15, %%zmm0\n" instruction " %%zmm15, %%zmm15, %%zmm1\n" instruction \
        " %%zmm15, %%zmm15, %%zmm2\n" instruction " %%zmm15, %%zmm15, %%zmm3\n" instruction \
        " %%zmm15, %%zmm15, %%zmm4\n" instruction " %%zmm15, %%zmm15, %%zmm5\n" instruction \
        " %%zmm15, %%zmm15, %%zmm6\n" instruction " %%zmm15, %%zmm15, %%zmm7\n" instruction \
        " %%zmm15, %%zmm15, %%zmm8\n" instruction " %%zmm15, %%zmm15, %%zmm9\n" instruction \
        " %%zmm15, %%zmm15, %%zmm10\n" instruction " %%zmm15, %%zmm15, %%zmm11\n"
#define ZEROS "vpxord %%zmm15, %%zmm15, %%zmm15\n" /* the sums stay what they are, or NaN */
#define CHANGED \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm15"

static int64_t time_pairs(void)
{
    int64_t start = now_ns();

    for (int round = 0; round < 160; round++)
        __asm__ volatile(ZEROS CHAINS("vdpbf16ps")::: CHANGED);
    return now_ns() - start;
}

static int64_t time_fma(void)
{
    int64_t start = now_ns();

    for (int round = 0; round < 160; round++)
        __asm__ volatile(ZEROS CHAINS("vfmadd231ps")::: CHANGED);
    return now_ns() - start;
}

bool kernels_pairs_are_quicker(void)
{
    enum { UNKNOWN, NO, YES };
    /* Threads that come at the same time each measure. */
    static _Atomic int known = UNKNOWN;
    int64_t pairs = INT64_MAX, fma = INT64_MAX;

    if (atomic_load_explicit(&known, memory_order_relaxed) == UNKNOWN) {
        for (int i = 0; i < 7; i++) { /* the least: a core is interrupted, or wakes up */
            int64_t t = time_pairs();

            pairs = t < pairs ? t : pairs;
            t = time_fma();
            fma = t < fma ? t : fma;
        }
        atomic_store_explicit(&known, pairs < 2 * fma ? YES : NO, memory_order_relaxed);
    }
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
    },
    {
        .isa = "avx512_bf16",
        .dtype = EPA_FP8_E4M3,
        .pack_a_fp8 = kernels_avx512_pack_a_codes,
        .pack_b = kernels_pack_b_codes,
        .multiply = multiply_fp8,
    },
};
