/* Row operations on hosts: the intermediate of experts, sums of rows of float32, quantised rows, and rows
 * of LogFMT-10. gemm_rows.c is compiled once for each instruction set; all sets return the same bits. */
#ifndef KERNELS_ROWS_H
#define KERNELS_ROWS_H

#include <stdbool.h>

#include "epa2a/gemm.h"

/* Columns k0 to k0 + n - 1 of the intermediate of m rows. k0 is a multiple of 128; n is a multiple
 * of 32, in FP8 of `group`. */
struct gemm_tile_out {
    const float *gate, *up; /* [m][n], every ld floats; up NULL: the activation is `none` */
    size_t ld;
    uint32_t m, n, k, k0;
    uint32_t row;                  /* first row in `to` */
    enum epa_dtype weights, dtype; /* dtype: of `to`, unless weights are FP8 */
    uint32_t group;                /* FP8: channels of a scale, 128 or 64 */
    bool plain;                    /* `to` is [m][k] instead of panels; not for FP8 */
    void *to;                      /* A panels (epa2a/gemm.h) */
    float *scale;                  /* FP8: [m][k / group] */
};

struct gemm_rows {
    void (*activate)(const struct gemm_tile_out *);
    /* Sums rows of float32: out[h] = dtype(sum), like `reduce` of epa2a/quant.h. hidden is a
     * multiple of 32. */
    void (*sum)(const float *const *row, const float *weight, uint32_t n, uint32_t hidden,
                enum epa_dtype dtype, uint16_t *out);
    /* Quantises n channels of x + add, sums in float32, in groups of 128 as epa2a/problem.h
     * defines; add NULL: x. The last group may be shorter. */
    void (*quantise)(const float *x, const float *add, uint32_t n, uint8_t *q, float *scale);
    /* Quantises a row of n elements of dtype (BF16, F16) to INT8 as epa2a/problem.h defines, and
     * returns its scale. n is a multiple of 32. */
    float (*quantise_int8)(const uint16_t *x, enum epa_dtype dtype, uint32_t n, int8_t *q);
    /* See round_logfmt.h. */
    void (*round_logfmt)(const uint16_t *x, uint32_t hidden, uint16_t *out);
};

#endif
