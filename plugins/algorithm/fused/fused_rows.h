/* The epilogues of fused's GEMMs on hosts, for rows of float32. fused_rows.c is compiled once for
 * each instruction set; all give the same bits. */
#ifndef FUSED_ROWS_H
#define FUSED_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include <epa2a/problem.h>

/* The columns k0 to k0 + n - 1 of the intermediate of m rows; n and k0 are multiples of 128. */
struct fused_tile {
    const float *gate, *up; /* [m][n], every ld floats; up NULL: the activation is `none` */
    size_t ld;
    uint32_t m, n, k, k0;
    enum epa_dtype weights, dtype; /* dtype: of panels, unless weights are FP8 */
    void *panel;                   /* out: A panels of m rows of k (epa2a/gemm.h) */
    float *scale;                  /* out, FP8: [m][k / 128] */
};

struct fused_rows {
    const char *isa; /* as in epa2a/quant.h */
    void (*activate)(const struct fused_tile *);
    /* out[h] = dtype(sum), as `reduce` of epa2a/quant.h, of rows of float32. hidden is a multiple
     * of 128. */
    void (*sum)(const float *const *row, const float *weight, uint32_t n, uint32_t hidden,
                enum epa_dtype dtype, uint16_t *out);
};

/* The set of that name, or the portable one. */
const struct fused_rows *fused_rows_get(const char *isa);

#endif
