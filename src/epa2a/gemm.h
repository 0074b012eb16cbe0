/* Matrix kernels of hosts: C = A * B^T, A rows of activations, B rows of weights, products of
 * bfloat16, half or FP8, sums in float32. For several instruction sets, chosen as those of
 * quant.h are (EPA2A_ISA: scalar, avx2, avx512, avx512_bf16, amx); in libepa2a-kernels.a. The
 * order of additions is the set's own (src/kernels/gemm_*.c), and the same whatever m and n are.
 *
 * Both sides are packed first. One layout serves all instruction sets, so that who receives
 * rows, or a peer that sends them, may store them where the kernels read:
 *
 *   A panel    EPA_GEMM_ROWS rows:  [k / 32][row][32]: 64 bytes of a row together
 *   B panel    EPA_GEMM_COLS rows of weights; which order is the kernel set's own
 *
 * FP8: A holds the e4m3 codes as values of bfloat16, which is exact, with its scales apart;
 * B stays e4m3. For each group of k, the sum of products times (scale of A * scale of B) is
 * added to C. The last group is shorter where k is not a multiple of `group`.
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

/* m rows by n columns, all of k. Anything may call it at the same time with other C. */
struct epa_gemm_call {
    const void *a; /* panels, one after the other; rows past m in the last are anything finite */
    const void *b; /* panels from the first of the n columns on */
    uint32_t m;    /* any */
    uint32_t n;    /* a multiple of EPA_GEMM_COLS */
    uint32_t k;    /* a multiple of EPA_GEMM_STEP */
    float *c;      /* [m][n], every ldc floats, 64-byte aligned; ldc a multiple of 16 */
    size_t ldc;
    /* FP8 only. */
    uint32_t group;       /* of k that shares a scale of A: 64 or 128 */
    const float *a_scale; /* [m][k / group, rounded up], every a_scale_stride floats */
    size_t a_scale_stride;
    /* Of the first of the n columns: [n / 128][k / 128], both rounded up. */
    const float *b_scale;
    uint32_t b_column; /* which of its 128 columns that is: a multiple of EPA_GEMM_COLS */
    bool stream_c;     /* C goes past the caches: it is larger than they are */
    /* What the next call begins to read, fetched meanwhile; NULL: unknown. */
    const void *next_a, *next_b;
};

struct epa_gemm {
    const char *isa;
    enum epa_dtype dtype; /* of B, and of A but for FP8 */

    /* Row `row` of the panels at `a`, from k elements of dtype (BF16, F16). Panels are 64-byte
     * aligned, x may have any alignment. */
    void (*pack_a)(const void *x, uint32_t k, void *a, uint32_t row);
    /* From FP8 with scales: dtype(q * scale) where dtype is BF16 or F16; where it is FP8 the
     * codes, and `scale` is not read. */
    void (*pack_a_fp8)(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                       uint32_t row);
    /* n rows of weights of k elements, every ld elements, n and k as above. */
    void (*pack_b)(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
    /* Overwrites C. */
    void (*multiply)(const struct epa_gemm_call *);
    /* Measures for 0.1 ms what the set's instruction gives on this core out of registers, in
     * operations a nanosecond, a multiply-add as two: nobody's product is quicker. NULL: the
     * compiler chose the instructions. */
    double (*peak)(void);
};

static inline size_t epa_gemm_a_bytes(uint32_t m, uint32_t k)
{
    return ((size_t)m + EPA_GEMM_ROWS - 1) / EPA_GEMM_ROWS * EPA_GEMM_ROWS * k * 2;
}

/* As large as the weights are. */
static inline size_t epa_gemm_b_bytes(enum epa_dtype dtype, uint32_t n, uint32_t k)
{
    return (size_t)n * k * (dtype == EPA_FP8_E4M3 ? 1 : 2);
}

/* Where row `row`, elements from `k0` (a multiple of 32) on are, in bytes from the start of A. */
static inline size_t epa_gemm_a_at(uint32_t row, uint32_t k0, uint32_t k)
{
    return ((size_t)(row / EPA_GEMM_ROWS) * EPA_GEMM_ROWS * k + (size_t)k0 * EPA_GEMM_ROWS +
            (size_t)(row % EPA_GEMM_ROWS) * 32) *
           2;
}

/* The set for this CPU and for weights of dtype, EPA_BF16, EPA_F16 or EPA_FP8_E4M3. EPA2A_ISA
 * as in quant.h; a set that has nothing for dtype means the next below it. Where EPA2A_ISA is
 * not set and the CPU has avx512_bf16 but not amx, the first call measures for 0.2 ms:
 * on some CPUs avx512 is quicker. */
const struct epa_gemm *epa_gemm_get(enum epa_dtype dtype, const char **refused);

/* A set by name; NULL: unknown, this CPU lacks it, or there is none for dtype. */
const struct epa_gemm *epa_gemm_by_name(const char *isa, enum epa_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
