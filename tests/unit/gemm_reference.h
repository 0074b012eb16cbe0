/* Reference of a matrix product in the order of additions that a matrix kernel documents. */
#ifndef GEMM_REFERENCE_H
#define GEMM_REFERENCE_H

#include "epa2a/gemm.h"

struct gemm_reference {
    const struct epa_gemm_call *call; /* sizes and scales; no other array is read */
    const char *isa;                  /* selects the order */
    bool fp8;                         /* A and B have scales */
    const float *a;                   /* [m][k] */
    const float *b;                   /* [n / EPA_GEMM_COLS][k][EPA_GEMM_COLS] */
    float *want;                      /* [m][n] */
};

/* Both return the same bits. The second needs a CPU with AVX2 and FMA, where each product and sum is
 * one instruction for eight columns and not a call of fmaf() for one. */
void gemm_reference(const struct gemm_reference *r);
void gemm_reference_avx2(const struct gemm_reference *r);

#endif
