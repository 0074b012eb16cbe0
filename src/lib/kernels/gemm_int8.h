/* Packing of INT8 for the matrix kernels of all instruction sets, and their order of operands. */
#ifndef KERNELS_GEMM_INT8_H
#define KERNELS_GEMM_INT8_H

#include <stddef.h>
#include <stdint.h>

#include "epa2a/gemm.h"

enum {
    INT8_STEP = 64,                   /* elements of k of a piece of A, and of a step of B */
    INT8_A_STEP = EPA_GEMM_ROWS * 64, /* bytes from piece to piece of a row of A */
    INT8_B_STEP = EPA_GEMM_COLS * 64, /* bytes of a step of B: [16][32][4] */
    INT8_SUMS = EPA_GEMM_COLS * (int)sizeof(int32_t), /* bytes at the end of a panel of B */
};

/* Returns the bytes of a panel of B: [k / 4][32][4] codes, then the sums of the 32 rows of weights. */
static inline size_t int8_b_panel(uint32_t k)
{
    return EPA_GEMM_COLS * epa_gemm_int8_k(k) + INT8_SUMS;
}

/* See gemm.h. Padding is zero. */
void kernels_pack_a_int8(const void *x, uint32_t k, void *a, uint32_t row);
void kernels_pack_b_int8(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);

#endif
