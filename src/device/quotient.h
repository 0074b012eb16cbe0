/* Quantising without a division, to the bit as epa2a/problem.h defines it; for hosts too,
 * where a test holds it to the scalar reference. */
#ifndef DEVICE_QUOTIENT_H
#define DEVICE_QUOTIENT_H

#include <math.h>

#include "device/both.h"

/* Scales whose reciprocal is normal, and quotients that lose nothing in their remainder. */
#define QUOTIENT_LEAST 0x1p-60f
#define QUOTIENT_MOST 0x1p60f

/* x / scale rounded to nearest, for a scale in that range and x from 0 to the largest
 * magnitude of its group, with inverse = 1 / scale rounded: one step of Newton from x *
 * inverse is exact enough to round right (Markstein). An x too small for that gives some
 * value under 2^-60, which is 0 in e4m3 either way. */
DEV_BOTH float quotient_rounded(float x, float scale, float inverse)
{
    float q = x * inverse, rest = fmaf(-q, scale, x);

    return fmaf(rest, inverse, q);
}

#endif
