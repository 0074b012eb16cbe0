/* Kernels of hosts that quantise, copy and reduce rows, for several instruction sets. The set
 * is chosen once by the features of the CPU, or by
 * EPA2A_ISA (scalar, avx2, avx512; avx512_bf16 and amx, which are sets of gemm.h, have avx512
 * here); all sets give the same bits. There is one for rows of
 * bfloat16 and one for rows of IEEE half: "dtype" below.
 *
 * These are the only functions of this folder that are not inline. They are in
 * libepa2a-kernels.a, which is position independent: link a plugin with it.
 *
 *     const struct epa_kernels *k = epa_kernels_get(EPA_BF16, NULL);
 *     k->quantise(x, hidden, 128, NULL, message, scales);
 *     k->spread(to, n, message, bytes, EPA_STORE_CACHED); */
#ifndef EPA2A_QUANT_H
#define EPA2A_QUANT_H

#include <stddef.h>
#include <stdint.h>

#include <epa2a/problem.h>

#ifdef __cplusplus
extern "C" {
#endif

enum epa_store {
    EPA_STORE_CACHED,
    EPA_STORE_NONTEMPORAL, /* bypasses the cache; epa_store_drain() before a peer is signalled */
};

struct epa_kernels {
    const char *isa;
    enum epa_dtype dtype; /* of rows, expert outputs and sums: EPA_BF16 or EPA_F16 */

    /* One row: [hidden] dtype to [hidden] e4m3 and [hidden / group] scales, as problem.h
     * defines it, to the bit. group divides hidden; any alignment. `next` is the row that
     * is quantised next, for prefetching, or NULL. */
    void (*quantise)(const uint16_t *x, uint32_t hidden, uint32_t group, const uint16_t *next,
                     uint8_t *q, float *scale);

    /* Copies `bytes` (a multiple of 64) from `from` to each of to[0..n-1]; all pointers are
     * 64-byte aligned. `from` is usually in L1 or L2. */
    void (*spread)(void *const *to, uint32_t n, const void *from, size_t bytes, enum epa_store);

    /* out[h] = dtype(sum): acc = +0; acc = fma(weight[i], row[i][h], acc) for i ascending,
     * float32. n from 0 (zeros) to 64. hidden is a multiple of 16. Where several NaN meet,
     * or one is made, its sign and payload are any; all else is the same to the bit. */
    void (*reduce)(const uint16_t *const *row, const float *weight, uint32_t n, uint32_t hidden,
                   enum epa_store, uint16_t *out);

    /* The same sum of rows that quantise() made, with scale[i][h / group]: each value is
     * e4m3 row[i][h] * scale, rounded to float32. group divides hidden; any alignment. */
    void (*reduce_fp8)(const uint8_t *const *row, const float *const *scale, const float *weight,
                       uint32_t n, uint32_t hidden, uint32_t group, enum epa_store, uint16_t *out);

    /* y[h] = dtype((e4m3 q[h] * scale[h / group]) * factor), float32 products, each
     * rounded; and the same from dtype: y[h] = dtype(x[h] * factor). */
    void (*output_fp8)(const uint8_t *q, const float *scale, uint32_t hidden, uint32_t group,
                       float factor, uint16_t *y);
    void (*output)(const uint16_t *x, uint32_t hidden, float factor, uint16_t *y);
};

/* The set for this CPU and for rows of dtype, EPA_BF16 or EPA_F16. EPA2A_ISA naming one that
 * is unknown or that the CPU lacks: the best there is, and *refused (if not NULL) is set to
 * the name asked for. */
const struct epa_kernels *epa_kernels_get(enum epa_dtype dtype, const char **refused);

/* A set by name; NULL: unknown, this CPU lacks it, or there is none for dtype. */
const struct epa_kernels *epa_kernels_by_name(const char *isa, enum epa_dtype dtype);

/* Orders nontemporal stores before whatever is stored next. */
void epa_store_drain(void);

#ifdef __cplusplus
}
#endif
#endif
