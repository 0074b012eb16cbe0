/* Quantisation of rows by AVX-512. */
#ifndef KERNELS_AVX512_QUANTISE_H
#define KERNELS_AVX512_QUANTISE_H

#include <stdint.h>

void kernels_avx512_quantise(const uint16_t *x, uint32_t hidden, uint32_t group,
                             const uint16_t *next, uint8_t *q, float *scale);
void kernels_avx512_quantise_f16(const uint16_t *x, uint32_t hidden, uint32_t group,
                                 const uint16_t *next, uint8_t *q, float *scale);

#endif
