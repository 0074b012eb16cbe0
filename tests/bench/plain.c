/* Built at -Ofast for the machine at hand; see plain.h. */
#include <math.h>
#include <string.h>

#include "plain.h"

enum {
    GROUP = 128,
};

static void quantise_group(const uint16_t *restrict x, uint8_t *restrict q, float *restrict scale)
{
    float f[GROUP], amax = 0.0f, inverse;

    for (int i = 0; i < GROUP; i++) {
        uint32_t u = (uint32_t)x[i] << 16;

        memcpy(&f[i], &u, sizeof(u));
    }
    for (int i = 0; i < GROUP; i++) {
        float a = fabsf(f[i]);

        amax = a > amax ? a : amax;
    }
    *scale = amax * (1.0f / 448.0f);
    inverse = *scale > 0.0f ? 1.0f / *scale : 0.0f;
    for (int i = 0; i < GROUP; i++) {
        float v = f[i] * inverse, a, t;
        uint32_t u, sign, magnitude, normal, small, code;

        memcpy(&u, &v, sizeof(u));
        sign = u >> 24 & 0x80u;
        magnitude = u & 0x7fffffffu;
        normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
        memcpy(&a, &magnitude, sizeof(a));
        t = a + 16384.0f;
        memcpy(&small, &t, sizeof(small));
        code = magnitude < 0x3c800000u ? small & 0xffu : normal;
        code = code > 0x7eu ? 0x7eu : code;
        q[i] = (uint8_t)(code | sign);
    }
}

void plain_quantise(const uint16_t *x, uint32_t hidden, uint8_t *q, float *scale)
{
    for (uint32_t h = 0; h < hidden; h += GROUP)
        quantise_group(x + h, q + h, scale + h / GROUP);
}

uint64_t plain_read(const void *from, uint64_t bytes)
{
    const uint64_t *word = from;
    uint64_t all = 0;

    for (uint64_t i = 0; i < bytes / 8; i++)
        all |= word[i];
    return all;
}
