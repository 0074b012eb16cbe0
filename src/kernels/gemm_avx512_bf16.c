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
    TILE_ROWS = 12,
    ROWS = 512,  /* with BLOCK, of A in L2 */
    BLOCK = 256, /* of k; a slice of B is 16 KiB of L1 */
};

INLINED void tile_of(const struct gemm_tile *t, uint32_t rows)
{
    const char *a = t->a, *b = t->b;
    __m512 sum[TILE_ROWS][2];

#pragma GCC unroll 12
    for (uint32_t i = 0; i < rows; i++) {
        bool none = t->first || t->scale != NULL;

        sum[i][0] = none ? _mm512_setzero_ps() : _mm512_load_ps(t->c + i * t->ldc);
        sum[i][1] = none ? _mm512_setzero_ps() : _mm512_load_ps(t->c + i * t->ldc + 16);
    }
    for (uint32_t k0 = 0; k0 < t->k; k0 += 32, a += t->step) {
        for (uint32_t k = 0; k < 32; k += 2, b += 128) {
            __m512bh b0 = (__m512bh)_mm512_load_si512(b);
            __m512bh b1 = (__m512bh)_mm512_load_si512(b + 64);

#pragma GCC unroll 12
            for (uint32_t i = 0; i < rows; i++) {
                int32_t pair;
                __m512bh x;

                memcpy(&pair, a + (size_t)i * PIECE + (size_t)k * 2, sizeof(pair));
                x = (__m512bh)_mm512_set1_epi32(pair);
                sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, b0);
                sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, b1);
            }
        }
    }
#pragma GCC unroll 12
    for (uint32_t i = 0; i < rows; i++)
        store_sums(t, i, sum[i][0], sum[i][1]);
}

/* The number of rows is a constant in each, so that the sums are registers. */
static void tile(const struct gemm_tile *t, uint32_t rows)
{
    switch (rows) {
    case 1:
        tile_of(t, 1);
        break;
    case 2:
        tile_of(t, 2);
        break;
    case 3:
        tile_of(t, 3);
        break;
    case 4:
        tile_of(t, 4);
        break;
    case 5:
        tile_of(t, 5);
        break;
    case 6:
        tile_of(t, 6);
        break;
    case 7:
        tile_of(t, 7);
        break;
    case 8:
        tile_of(t, 8);
        break;
    case 9:
        tile_of(t, 9);
        break;
    case 10:
        tile_of(t, 10);
        break;
    case 11:
        tile_of(t, 11);
        break;
    default:
        tile_of(t, TILE_ROWS);
    }
}

static void multiply_bf16(const struct epa_gemm_call *g)
{
    gemm_multiply(
        g,
        (struct gemm_method){
            .dtype = EPA_BF16, .tile_rows = TILE_ROWS, .rows = ROWS, .block = BLOCK, .tile = tile});
}

static void multiply_fp8(const struct epa_gemm_call *g)
{
    gemm_multiply(g, (struct gemm_method){.dtype = EPA_FP8_E4M3,
                                          .tile_rows = TILE_ROWS,
                                          .rows = ROWS,
                                          .block = BLOCK,
                                          .decode = decode_group,
                                          .tile = tile});
}

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* 16 chains in registers, which is enough for any latency. The instructions are assembler's: what
 * a compiler can work out it does not run. */
static int64_t time_pairs(void)
{
    __m512 sum[16];
    const __m512i one = _mm512_set1_epi32(0x3f803f80);
    int64_t start = now_ns();

    for (int i = 0; i < 16; i++)
        sum[i] = _mm512_setzero_ps();
    for (int round = 0; round < 128; round++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(sum[i]) : "v"(one));
    }
    return now_ns() - start;
}

static int64_t time_fma(void)
{
    __m512 sum[16];
    const __m512 one = _mm512_set1_ps(1.0f);
    int64_t start = now_ns();

    for (int i = 0; i < 16; i++)
        sum[i] = _mm512_setzero_ps();
    for (int round = 0; round < 128; round++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(sum[i]) : "v"(one));
    }
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
