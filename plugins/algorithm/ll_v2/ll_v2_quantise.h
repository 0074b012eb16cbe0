/* Quantising on a GPU, to the bit as epa2a/problem.h defines it; compiles for hosts too,
 * where a test holds it to the scalar reference. */
#ifndef LL_V2_QUANTISE_H
#define LL_V2_QUANTISE_H

#include "ll_v2.h"

#include <math.h>

/* Scales whose reciprocal is normal, and quotients that lose nothing in their remainder. */
#define LL_LEAST_SCALE 0x1p-60f
#define LL_MOST_SCALE 0x1p60f

/* x / scale rounded to nearest, for a scale in that range and x from 0 to the largest
 * magnitude of its group, with inverse = 1 / scale rounded: one step of Newton from x *
 * inverse is exact enough to round right (Markstein). An x too small for that gives some
 * value under 2^-60, which is 0 in e4m3 either way. */
LL_BOTH float ll_quotient(float x, float scale, float inverse)
{
    float q = x * inverse, rest = fmaf(-q, scale, x);

    return fmaf(rest, inverse, q);
}

#endif
