/* The two kernel sets of an instruction set, for bf16 and f16, from functions that serve both
 * types. `f16` selects the type, a constant in each inlined copy. The file of the instruction set
 * includes this header at its end, after its quantise_as(), spread(), reduce_as(), reduce_fp8_as(),
 * output_fp8_as() and output_as(), and SET_ISA, SET_BF16 and SET_F16. */
#ifndef KERNELS_OF_BOTH_TYPES_H
#define KERNELS_OF_BOTH_TYPES_H

#include "base/dtype.h"
#include "kernels/sets.h"

/* Rounds float32 rows: each instruction set compiles the function into its own vectors. */
INLINED void round_as(const float *restrict x, const float *restrict add, uint32_t n, bool f16,
                      uint16_t *restrict out)
{
    if (add != NULL)
        for (uint32_t h = 0; h < n; h++)
            out[h] = word_of_float(f16, x[h] + add[h]);
    else
        for (uint32_t h = 0; h < n; h++)
            out[h] = word_of_float(f16, x[h]);
}

#define SET_OF_TYPE(set, type, f16) \
    static void quantise_##type(const uint16_t *x, uint32_t hidden, uint32_t group, \
                                const uint16_t *next, uint8_t *q, float *scale) \
    { \
        quantise_as(x, hidden, group, next, q, scale, f16); \
    } \
    static void reduce_##type(const uint16_t *const *row, const float *weight, uint32_t n, \
                              uint32_t hidden, enum epa_store how, uint16_t *out) \
    { \
        reduce_as(row, weight, n, hidden, how, f16, out); \
    } \
    static void reduce_fp8_##type(const uint8_t *const *row, const float *const *scale, \
                                  const float *weight, uint32_t n, uint32_t hidden, \
                                  uint32_t group, enum epa_store how, uint16_t *out) \
    { \
        reduce_fp8_as(row, scale, weight, n, hidden, group, how, f16, out); \
    } \
    static void output_fp8_##type(const uint8_t *q, const float *scale, uint32_t hidden, \
                                  uint32_t group, float factor, uint16_t *y) \
    { \
        output_fp8_as(q, scale, hidden, group, factor, f16, y); \
    } \
    static void output_##type(const uint16_t *x, uint32_t hidden, float factor, uint16_t *y) \
    { \
        output_as(x, hidden, factor, f16, y); \
    } \
    static void round_##type(const float *x, const float *add, uint32_t n, uint16_t *out) \
    { \
        round_as(x, add, n, f16, out); \
    } \
    const struct epa_kernels set = { \
        .isa = SET_ISA, \
        .dtype = (f16) ? EPA_F16 : EPA_BF16, \
        .quantise = quantise_##type, \
        .spread = spread, \
        .reduce = reduce_##type, \
        .reduce_fp8 = reduce_fp8_##type, \
        .output_fp8 = output_fp8_##type, \
        .output = output_##type, \
        .round = round_##type, \
    };

SET_OF_TYPE(SET_BF16, bf16, false)
SET_OF_TYPE(SET_F16, f16, true)

#endif
