/* What the matrices of ag_gemm hold, as a function of (seed, rank, iteration), and the check of a
 * row of C. */
#ifndef AG_GEMM_CHECK_H
#define AG_GEMM_CHECK_H

#include <epa2a/problem.h>
#include <epa2a/status.h>

#include "op/op.h"

struct gemm_values {
    uint64_t seed;
    uint32_t n, k;
    int dtype; /* of A and B */
    bool integers, bias;
};

size_t gemm_element_bytes(const struct gemm_values *);

/* Row `row` of A of a rank: k elements, and for FP8 its scales. */
void gemm_make_a(const struct gemm_values *, uint32_t rank, uint64_t iteration, uint32_t row,
                 void *out, float *scale);
/* Row `row` of B of a rank; the scales of all of its blocks; its bias. */
void gemm_make_b(const struct gemm_values *, uint32_t rank, uint32_t row, void *out);
void gemm_make_b_scale(const struct gemm_values *, uint32_t rank, float *out);
void gemm_make_bias(const struct gemm_values *, uint32_t rank, float *out);

/* Of one rank's C. */
struct gemm_reference;

/* rows: most that C can have. */
enum epa_status gemm_reference_create(const struct gemm_values *, uint32_t rank, uint64_t rows,
                                      struct gemm_reference **out, struct epa_error *);
void gemm_reference_destroy(struct gemm_reference *); /* takes NULL */
uint64_t gemm_reference_bytes(const struct gemm_values *, uint64_t rows);

/* A row of C [n], the product with row `row` of A of rank `source`: counts elements, or sums of
 * elements, that are wrong. */
void gemm_check_row(struct gemm_reference *, uint64_t iteration, uint32_t source, uint32_t row,
                    const uint16_t *c, struct op_finding *);

#endif
