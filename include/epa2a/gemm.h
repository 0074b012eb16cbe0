/* Matrix kernels of hosts: C = A * B^T, A rows of activations, B rows of weights, products of
 * bfloat16, half or FP8, sums in float32. There are kernels for several instruction sets, selected
 * like the sets of quant.h (EPA2A_ISA: scalar, avx2, avx512, avx512_bf16, amx); in
 * libepa2a-kernels.a. Each set has its own order of additions (src/lib/kernels/gemm_*.c), independent
 * of m and n.
 *
 * Both sides are packed first. One layout serves all instruction sets, so that a receiver of rows,
 * or a peer that sends rows, may store them where the kernels read:
 *
 *   A panel    EPA_GEMM_ROWS rows:  [k / 32][row][32]: 64 bytes of a row together
 *   B panel    EPA_GEMM_COLS rows of weights, in the order of the kernel set
 *
 * FP8: A holds the e4m3 codes as values of bfloat16, which is exact, with separate scales; B stays
 * e4m3. For each group of k, the sum of products times (scale of A * scale of B) is added to C. The
 * last group is shorter where k is not a multiple of `group`.
 *
 *     const struct epa_gemm *g = epa_gemm_get(EPA_BF16, NULL);
 *     g->pack_b(weights, k, n, k, b);
 *     for (i = 0; i < m; i++)
 *         g->pack_a(x + i * k, k, a, i);
 *     g->multiply(&(struct epa_gemm_call){.a = a, .b = b, .m = m, .n = n, .k = k, .c = c, .ldc =
 *     n}); */
#ifndef EPA2A_GEMM_H
#define EPA2A_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/problem.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EPA_GEMM_ROWS = 32, EPA_GEMM_COLS = 32, EPA_GEMM_STEP = 32 };

/* A product of m rows by n columns over all of k. Several threads may multiply at the same time
 * into different C. */
struct epa_gemm_call {
    const void *a; /* consecutive panels; rows past m in the last panel: any finite values */
    const void *b; /* panels, starting at the first of the n columns */
    uint32_t m;    /* any */
    uint32_t n;    /* a multiple of EPA_GEMM_COLS */
    uint32_t k;    /* a multiple of EPA_GEMM_STEP */
    float *c;      /* [m][n], every ldc floats, 64-byte aligned; ldc a multiple of 16 */
    size_t ldc;
    /* FP8 only. */
    uint32_t group;       /* elements of k that share a scale of A: 64 or 128 */
    const float *a_scale; /* [m][k / group, rounded up], every a_scale_stride floats */
    size_t a_scale_stride;
    /* Scales from the block of the first of the n columns on: [n / 128][k / 128], both rounded
     * up. */
    const float *b_scale;
    /* Index of the first column in its block of 128: a multiple of EPA_GEMM_COLS. */
    uint32_t b_column;
    bool stream_c; /* store C past the caches: C is larger than the caches */
    /* Maximum number of elements of k whose A stays in the caches, a multiple of 128; 0: the set
     * chooses. The value does not change the bits of C. */
    uint32_t block_k;
    /* First operands of the next call, prefetched during this call; NULL: unknown. */
    const void *next_a, *next_b;
};

struct epa_gemm {
    const char *isa;
    enum epa_dtype dtype; /* of B, and of A except for FP8 */

    /* Packs k elements of dtype (BF16, F16) into row `row` of the panels at `a`. Panels are 64-byte
     * aligned; x may have any alignment. */
    void (*pack_a)(const void *x, uint32_t k, void *a, uint32_t row);
    /* Packs FP8 with scales: dtype(q * scale) if dtype is BF16 or F16; the codes if dtype is FP8,
     * and `scale` is not read. */
    void (*pack_a_fp8)(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                       uint32_t row);
    /* Packs n rows of weights of k elements, one row every ld elements, n and k as above. */
    void (*pack_b)(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
    /* Overwrites C. */
    void (*multiply)(const struct epa_gemm_call *);
    /* Measures for 0.1 ms the rate of the set's multiply instruction on this core out of registers,
     * in operations per nanosecond, a multiply-add as two: an upper bound of any product on this
     * core. NULL: the compiler chose the instructions. */
    double (*peak)(void);
};

static inline size_t epa_gemm_a_bytes(uint32_t m, uint32_t k)
{
    return ((size_t)m + EPA_GEMM_ROWS - 1) / EPA_GEMM_ROWS * EPA_GEMM_ROWS * k * 2;
}

/* Returns the bytes of packed B, equal to the bytes of the weights. */
static inline size_t epa_gemm_b_bytes(enum epa_dtype dtype, uint32_t n, uint32_t k)
{
    return (size_t)n * k * (dtype == EPA_FP8_E4M3 ? 1 : 2);
}

/* Returns the position of row `row`, elements from `k0` (a multiple of 32) on, in bytes from the
 * start of A. */
static inline size_t epa_gemm_a_at(uint32_t row, uint32_t k0, uint32_t k)
{
    return ((size_t)(row / EPA_GEMM_ROWS) * EPA_GEMM_ROWS * k + (size_t)k0 * EPA_GEMM_ROWS +
            (size_t)(row % EPA_GEMM_ROWS) * 32) *
           2;
}

/* Returns the set for this CPU and for weights of dtype, EPA_BF16, EPA_F16 or EPA_FP8_E4M3.
 * EPA2A_ISA as in quant.h; if a set has no kernels for dtype, the next lower set is used. If
 * EPA2A_ISA is not set and the CPU has avx512_bf16 but not amx, the first call measures for 0.2 ms:
 * on some CPUs avx512 is faster. */
const struct epa_gemm *epa_gemm_get(enum epa_dtype dtype, const char **refused);

/* Returns a set by name; NULL: the name is unknown, this CPU lacks the set, or the set has no
 * kernels for dtype. */
const struct epa_gemm *epa_gemm_by_name(const char *isa, enum epa_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
