/* Matrix kernels of hosts: C = A * B^T, A rows of activations, B rows of weights, products of
 * bfloat16, half or FP8 with sums in float32, of INT8 with sums in int32. There are kernels for several
 * instruction sets, selected like the sets of quant.h (EPA2A_ISA: scalar, avx2, avx512, avx512_vnni,
 * avx512_bf16, amx); in libepa2a-kernels.a. Each set has its own order of additions
 * (src/lib/kernels/gemm_*.c), independent of m and n; sums of INT8 are exact.
 *
 * Both sides are packed first. One layout serves all instruction sets, so that a receiver of rows,
 * or a peer that sends rows, may store them where the kernels read:
 *
 *   A panel    EPA_GEMM_ROWS rows:  [k / 32][row][32]: 64 bytes of a row together
 *   B panel    EPA_GEMM_COLS rows of weights, in the order of the kernel set
 *   INT8       A panels are [k / 64][row][64], 64 bytes too, with k rounded up; B panels end with a sum
 *              for each row of weights
 *
 * FP8: A holds the e4m3 codes as values of bfloat16, which is exact, with separate scales; B stays
 * e4m3. For each group of k, the sum of products times (scale of A * scale of B) is added to C. The
 * last group is shorter where k is not a multiple of `group`.
 *
 * INT8: C = float32(sum of products of codes) * (scale of the row of A * scale of the row of B), each
 * step rounded. Sums are exact for k up to 131072 and codes from -127 to 127.
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
    /* FP8 and INT8. FP8: [m][k / group, rounded up]; INT8: [m]. Every a_scale_stride floats. */
    const float *a_scale;
    size_t a_scale_stride;
    /* FP8: scales from the block of the first of the n columns on: [n / 128][k / 128], both rounded
     * up. INT8: [n]. */
    const float *b_scale;
    uint32_t group; /* FP8: elements of k that share a scale of A: 64 or 128 */
    /* FP8: index of the first column in its block of 128: a multiple of EPA_GEMM_COLS. */
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

    /* Packs k elements of dtype (BF16, F16, INT8) into row `row` of the panels at `a`. Panels are 64-byte
     * aligned; x may have any alignment. */
    void (*pack_a)(const void *x, uint32_t k, void *a, uint32_t row);
    /* Packs FP8 with scales: dtype(q * scale) if dtype is BF16 or F16; the codes if dtype is FP8,
     * and `scale` is not read. NULL for INT8. */
    void (*pack_a_fp8)(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                       uint32_t row);
    /* Packs n rows of weights of k elements, one row every ld elements, n and k as above. */
    void (*pack_b)(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
    /* Overwrites C. Needs up to 1.2 MiB of stack. */
    void (*multiply)(const struct epa_gemm_call *);
    /* Measures for 0.1 ms the rate of the set's multiply instruction on this core out of registers,
     * in operations per nanosecond, a multiply-add as two: an upper bound of any product on this
     * core. NULL: the compiler chose the instructions. */
    double (*peak)(void);
};

/* INT8: returns k rounded up to the bytes of an instruction; packed operands are padded with zeros. */
static inline size_t epa_gemm_int8_k(uint32_t k)
{
    return ((size_t)k + 63) / 64 * 64;
}

/* Returns the bytes from panel to panel of A. With a multiple of 64 KiB the same elements of k of
 * all panels would map to a few sets of a cache. Not for INT8. */
static inline size_t epa_gemm_a_panel(uint32_t k)
{
    return (size_t)EPA_GEMM_ROWS * k * 2 + (k % 1024 == 0 ? 8192 : 0);
}

/* Returns the bytes of packed A; INT8 uses half of them, rounded up. */
static inline size_t epa_gemm_a_bytes(uint32_t m, uint32_t k)
{
    return ((size_t)m + EPA_GEMM_ROWS - 1) / EPA_GEMM_ROWS * epa_gemm_a_panel(k);
}

/* Returns the bytes of packed B: of the weights, and with INT8 of padding and sums. */
static inline size_t epa_gemm_b_bytes(enum epa_dtype dtype, uint32_t n, uint32_t k)
{
    if (dtype == EPA_INT8)
        return n * (epa_gemm_int8_k(k) + sizeof(int32_t));
    return (size_t)n * k * (dtype == EPA_FP8_E4M3 ? 1 : 2);
}

/* Returns the position of the panel that begins with row `row`, in bytes from the start of A. */
static inline size_t epa_gemm_panel_at(enum epa_dtype dtype, uint32_t row, uint32_t k)
{
    return dtype == EPA_INT8 ? row * epa_gemm_int8_k(k) : row / EPA_GEMM_ROWS * epa_gemm_a_panel(k);
}

/* Returns the position of row `row`, elements from `k0` (a multiple of 32) on, in bytes from the
 * start of A. Not for INT8. */
static inline size_t epa_gemm_a_at(uint32_t row, uint32_t k0, uint32_t k)
{
    return row / EPA_GEMM_ROWS * epa_gemm_a_panel(k) +
           ((size_t)k0 * EPA_GEMM_ROWS + (size_t)(row % EPA_GEMM_ROWS) * 32) * 2;
}

/* Returns the set for this CPU and for weights of dtype, EPA_BF16, EPA_F16, EPA_FP8_E4M3 or EPA_INT8.
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
