/* The portable quantisation of rows to INT8. */
#include "kernels/quantise_int8.h"

#include "base/dtype.h"
#include "kernels/sets.h"

enum { STEP = 32 };

/* The bits of floats without their sign are in the order of the floats, and compilers vectorise maxima of
 * integers. */
INLINED float int8_scale(const uint16_t *restrict x, bool f16, uint32_t n)
{
    uint32_t most[STEP] = {0};
    float scale;

    for (uint32_t h = 0; h < n; h += STEP)
        for (uint32_t i = 0; i < STEP; i++) {
            uint32_t magnitude = bits_of_float(float_of_word(f16, x[h + i])) & 0x7fffffffu;
            uint32_t finite = magnitude < 0x7f800000u ? magnitude : 0;

            most[i] = finite > most[i] ? finite : most[i];
        }
    for (uint32_t i = 1; i < STEP; i++)
        most[0] = most[i] > most[0] ? most[i] : most[0];
    scale = float_of_bits(most[0]) * (1.0f / 127.0f);
    return scale >= 0x1p-126f ? scale : 1.0f; /* 1 / scale must be finite */
}

INLINED float quantise_words(const uint16_t *restrict x, bool f16, uint32_t n, int8_t *restrict q)
{
    const float scale = int8_scale(x, f16, n), by = 1.0f / scale;

    for (uint32_t i = 0; i < n; i++) {
        float v = float_of_word(f16, x[i]) * by;

        v = v > 127.0f ? 127.0f : v;
        v = v < -127.0f ? -127.0f : v;
        v = v == v ? v : 0.0f;
        /* Adding 1.5 * 2^23 rounds to an integer, to nearest even. */
        q[i] = (int8_t)((int32_t)bits_of_float(v + 0x1.8p23f) - 0x4b400000);
    }
    return scale;
}

float kernels_quantise_int8(const uint16_t *x, enum epa_dtype dtype, uint32_t n, int8_t *q)
{
    return dtype == EPA_F16 ? quantise_words(x, true, n, q) : quantise_words(x, false, n, q);
}
