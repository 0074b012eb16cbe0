/* Rounding of float32 rows, written once: each instruction set compiles it into its own vectors. */
#ifndef KERNELS_ROUND_H
#define KERNELS_ROUND_H

#include "base/dtype.h"
#include "kernels/sets.h"

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

static void round_row(const float *x, const float *add, uint32_t n, uint16_t *out)
{
    round_as(x, add, n, false, out);
}

static void round_row_f16(const float *x, const float *add, uint32_t n, uint16_t *out)
{
    round_as(x, add, n, true, out);
}

#endif
