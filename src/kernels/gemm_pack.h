/* Packing for the matrix kernels, portable: one element or one pair at a time. */
#ifndef KERNELS_GEMM_PACK_H
#define KERNELS_GEMM_PACK_H

#include "kernels/sets.h"

/* As in gemm.h. */
void kernels_pack_a(const void *x, uint32_t k, void *a, uint32_t row);
void kernels_pack_a_bf16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                         uint32_t row);
void kernels_pack_a_f16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                        uint32_t row);
void kernels_pack_a_codes(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                          uint32_t row);

/* Orders of a panel of B, which has 32 columns, as its instruction set reads it: */
/* [k][32] words, or codes of FP8 */
void kernels_pack_b_words(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
void kernels_pack_b_bytes(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
/* [k / 2][32][2] words: neighbours in k together, as instructions of bf16 take them */
void kernels_pack_b_pairs(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
/* [k / 2][32][2] codes, the same */
void kernels_pack_b_code_pairs(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
/* [k / 2][64] codes, the pairs of columns 0-3, 16-19, 4-7, 20-23, ... of two values of k: once
 * decoded, bytes that are unpacked in each 16 of a register are pairs in the order of columns. */
void kernels_pack_b_codes(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);

#endif
