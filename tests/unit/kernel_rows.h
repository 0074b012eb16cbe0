/* Makes elements of rows for kernels, the same in each run. */
#ifndef KERNEL_ROWS_H
#define KERNEL_ROWS_H

#include "test.h"

#include "base/dtype.h"

/* kind 0: any bits; 1: values like activations of a layer; 2: like 1 with outliers; 3: mostly
 * zeros; 4: magnitudes from tiny to large */
static inline uint16_t random_value(bool f16, uint64_t *seed, uint32_t kind)
{
    uint64_t r = next_random(seed);
    float near = ((float)(r & 0xffff) + (float)(r >> 16 & 0xffff) - 65536.0f) / 32768.0f;

    if (kind == 0)
        return (uint16_t)(r >> 48);
    if (kind == 2 && r >> 57 == 0)
        return word_of_float(f16, near * (f16 ? 30000.0f : 1000.0f));
    if (kind == 3 && r >> 62 != 0)
        return 0;
    if (kind == 4)
        return word_of_float(f16, ldexpf(near, -(int)(r >> 59)));
    return word_of_float(f16, near);
}

#endif
