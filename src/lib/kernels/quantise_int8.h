/* Quantisation of rows to INT8, as `quantise_int8` of rows.h. */
#ifndef KERNELS_QUANTISE_INT8_H
#define KERNELS_QUANTISE_INT8_H

#include <stdint.h>

#include "epa2a/problem.h"

float kernels_quantise_int8(const uint16_t *x, enum epa_dtype dtype, uint32_t n, int8_t *q);

#endif
