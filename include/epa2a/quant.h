/* Kernels of hosts that quantise, copy and reduce rows, for several instruction sets. The set is
 * selected once by the features of the CPU, or by EPA2A_ISA (scalar, avx2, avx512; the sets
 * avx512_vnni, avx512_bf16 and amx of gemm.h select avx512 here). All sets return the same bits. There is one
 * variant for rows of bfloat16 and one for rows of IEEE half: "dtype" below.
 *
 * These are the only functions of this folder that are not inline. They are in libepa2a-kernels.a,
 * which is position independent: link a plugin with it.
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

    /* Quantises one row: [hidden] dtype to [hidden] e4m3 and [hidden / group] scales, bit by bit as
     * problem.h defines. group divides hidden; any alignment. `next` is the row that is quantised
     * next, for prefetching, or NULL. */
    void (*quantise)(const uint16_t *x, uint32_t hidden, uint32_t group, const uint16_t *next,
                     uint8_t *q, float *scale);

    /* Copies `bytes` (a multiple of 64) from `from` to each of to[0..n-1]; all pointers are
     * 64-byte aligned. `from` is usually in L1 or L2. */
    void (*spread)(void *const *to, uint32_t n, const void *from, size_t bytes, enum epa_store);

    /* Reduces rows: out[h] = dtype(sum): acc = +0; acc = fma(weight[i], row[i][h], acc) for i
     * ascending, float32. n from 0 (zeros) to 64. hidden is a multiple of 16. If several NaN meet,
     * or if the sum creates a NaN, its sign and payload are undefined; all other bits are the same
     * in all sets. */
    void (*reduce)(const uint16_t *const *row, const float *weight, uint32_t n, uint32_t hidden,
                   enum epa_store, uint16_t *out);

    /* The same sum over rows of quantise(), with scale[i][h / group]: each value is e4m3 row[i][h]
     * * scale, rounded to float32. group divides hidden; any alignment. */
    void (*reduce_fp8)(const uint8_t *const *row, const float *const *scale, const float *weight,
                       uint32_t n, uint32_t hidden, uint32_t group, enum epa_store, uint16_t *out);

    /* Synthetic experts: y[h] = dtype((e4m3 q[h] * scale[h / group]) * factor), float32 products,
     * each rounded; and the same from dtype: y[h] = dtype(x[h] * factor). */
    void (*output_fp8)(const uint8_t *q, const float *scale, uint32_t hidden, uint32_t group,
                       float factor, uint16_t *y);
    void (*output)(const uint16_t *x, uint32_t hidden, float factor, uint16_t *y);

    /* Rounds rows: out[h] = dtype(x[h] + add[h]), the sum in float32; add NULL: dtype(x[h]). Any n,
     * any alignment. */
    void (*round)(const float *x, const float *add, uint32_t n, uint16_t *out);
};

/* Returns the set for this CPU and for rows of dtype, EPA_BF16 or EPA_F16. If EPA2A_ISA names a set
 * that is unknown or that the CPU lacks: returns the best available set and sets *refused (if not
 * NULL) to the requested name. */
const struct epa_kernels *epa_kernels_get(enum epa_dtype dtype, const char **refused);

/* Returns a set by name; NULL: the name is unknown, this CPU lacks the set, or the set has no
 * kernels for dtype. */
const struct epa_kernels *epa_kernels_by_name(const char *isa, enum epa_dtype dtype);

/* Orders nontemporal stores before all later stores. */
void epa_store_drain(void);

#ifdef __cplusplus
}
#endif
#endif
