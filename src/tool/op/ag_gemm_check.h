/* Values of the matrices of ag_gemm, functions of (seed, rank, iteration), and the check of a row of C. */
#ifndef AG_GEMM_CHECK_H
#define AG_GEMM_CHECK_H

#include "op/op.h"

struct gemm_values {
    uint64_t seed;
    uint32_t n, k;
    int dtype; /* of A and B */
    bool integers, bias;
    bool out_fp8; /* C is e4m3, with a scale for each row and 128 columns */
};

/* Makes row `row` of A of a rank: k elements, and scales for FP8. */
void gemm_make_a(const struct gemm_values *, uint32_t rank, uint64_t iteration, uint32_t row,
                 void *out, float *scale);
/* Make row `row` of B of a rank, the scales of all blocks of B, and the bias. */
void gemm_make_b(const struct gemm_values *, uint32_t rank, uint32_t row, void *out);
void gemm_make_b_scale(const struct gemm_values *, uint32_t rank, float *out);
void gemm_make_bias(const struct gemm_values *, uint32_t rank, float *out);

/* Reference of one rank's C. */
struct gemm_reference;

/* rows: maximum number of rows of C. */
enum epa_status gemm_reference_create(const struct gemm_values *, uint32_t rank, uint64_t rows,
                                      struct gemm_reference **out, struct epa_error *);
void gemm_reference_destroy(struct gemm_reference *); /* accepts NULL */
uint64_t gemm_reference_bytes(const struct gemm_values *, uint64_t rows);

/* Checks a row of C [n], the product with row `row` of A of rank `source`: counts wrong elements,
 * wrong scales, or wrong sums of elements. c_scale: floats, for C in FP8. */
void gemm_check_row(struct gemm_reference *, uint64_t iteration, uint32_t source, uint32_t row,
                    const void *c, const void *c_scale, struct op_finding *);

#endif
