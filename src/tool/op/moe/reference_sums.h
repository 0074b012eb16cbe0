/* Sums of products in float64 with the terms of their error bounds (reference.c). reference_sums.c is
 * compiled once for each instruction set; all sets return the same bits. */
#ifndef OP_MOE_REFERENCE_SUMS_H
#define OP_MOE_REFERENCE_SUMS_H

#include <stdbool.h>
#include <stdint.h>

/* Tokens whose products with sparse rows are computed together. */
enum { REFERENCE_LANES = 16 };

/* A factor of all sums of a projection: centres c with radii r. */
struct sums_input {
    const float *c, *r; /* r NULL: 0 */
    const float *scale; /* of each group of channels; NULL: native */
    uint32_t columns, group;
    bool int8;      /* codes with one scale for each token */
    double fp8_sum; /* 2^fp8_sum_bits of epa_moe_footprint; 0: sums in float32 */
};

/* A row of weights. */
struct sums_row {
    const float *w;           /* dense: [columns] */
    const float *block_scale; /* FP8: [columns / 128]; INT8: [1] */
    /* Sparse: columns in ascending order, and values. The sum of `n` <= 16 magnitudes is `size`. */
    const uint32_t *column;
    const float *value;
    uint32_t n;
    float size;
};

/* Sparse rows: c, r and scale have REFERENCE_LANES elements, one for each token, for each channel or
 * group. */
struct sums_tile {
    struct sums_input in;
    const bool *wide; /* [columns], if `r` is not NULL: a radius of the channel is not 0 */
    float most;       /* largest magnitude in c */
    /* Unit of the products c w without scales, and unit of the products with scales; 0: none. */
    double unit, total;
};

struct reference_sums {
    /* Sets *center to the sum of a dense row, and returns its radius. */
    double (*dense)(const struct sums_input *, const struct sums_row *, double *center);
    void (*sparse)(const struct sums_tile *, const struct sums_row *,
                   double center[REFERENCE_LANES], double radius[REFERENCE_LANES]);
};

extern const struct reference_sums reference_sums_portable, reference_sums_avx2;

#endif
