/* Quantisation of rows to INT8 by AVX-512, as `quantise_int8` of rows.h. */
#ifndef KERNELS_QUANTISE_INT8_AVX512_H
#define KERNELS_QUANTISE_INT8_AVX512_H

#include <stdint.h>

#include "epa2a/problem.h"

float kernels_quantise_int8_avx512(const uint16_t *x, enum epa_dtype dtype, uint32_t n, int8_t *q);

#endif
