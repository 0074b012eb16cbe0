/* Packing of operands for the matrix kernels of all instruction sets. */
#ifndef KERNELS_GEMM_SCALAR_H
#define KERNELS_GEMM_SCALAR_H

#include <stddef.h>
#include <stdint.h>

/* See gemm.h. */
void kernels_pack_a(const void *x, uint32_t k, void *a, uint32_t row);
void kernels_pack_a_bf16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                         uint32_t row);
void kernels_pack_a_f16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                        uint32_t row);
void kernels_pack_a_codes(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                          uint32_t row);

/* Orders of a panel of B, which has 32 columns, for each instruction set: */
/* [k][32] words, or codes of FP8 */
void kernels_pack_b_words(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
void kernels_pack_b_bytes(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
/* [k / 2][32][2] words: pairs of neighbours in k, the operands of bf16 instructions */
void kernels_pack_b_pairs(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
/* [k / 2][32][2] codes, the same */
void kernels_pack_b_code_pairs(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
/* [k / 2][64] codes, the pairs of columns 0-3, 16-19, 4-7, 20-23, ... of two values of k: after
 * decoding, unpacking the bytes in each 16 of a register yields pairs in the order of columns. */
void kernels_pack_b_codes(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);

#endif
