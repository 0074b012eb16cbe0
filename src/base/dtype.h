/* bf16 and e4m3fn, one element at a time: the reference that everything else is held to.
 * Inline, so that tests and the oracle share one source. */
#ifndef DTYPE_H
#define DTYPE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of_float(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float float_of_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline float float_of_bf16(uint16_t b)
{
    return float_of_bits((uint32_t)b << 16);
}

/* To nearest even; NaN stays NaN (quiet), sign kept. */
static inline uint16_t bf16_of_float(float f)
{
    uint32_t u = bits_of_float(f);
    uint32_t nan = u >> 16 | 0x40u, round = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;

    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : round);
}

/* To nearest even, saturating at +-448; NaN gives 0x7f with its sign. All cases are worked
 * out and one is picked, so that a loop over it becomes vectors. */
static inline uint8_t e4m3_of_float(float f)
{
    uint32_t u = bits_of_float(f), a = u & 0x7fffffffu, sign = u >> 24 & 0x80u;
    uint32_t normal = ((a + 0x7ffffu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    /* Below 2^-6: multiples of 2^-9, which is the ulp of 2^14; the addition rounds. */
    uint32_t small = bits_of_float(float_of_bits(a) + 16384.0f) & 0xffu;
    /* Masks: gcc makes branches of ?: here, and then no vectors. */
    uint32_t below = 0u - (a < 0x3c800000u);
    uint32_t above = 0u - (a >= 0x43e00000u); /* 448 */
    uint32_t nan = a > 0x7f800000u;
    uint32_t q = (small & below) | (normal & ~below);

    return (uint8_t)(sign | (q & ~above) | ((0x7eu + nan) & above));
}

static inline float float_of_e4m3(uint8_t q)
{
    uint32_t e = q >> 3 & 15u, m = q & 7u;
    float v = e == 0 ? (float)m * 0x1p-9f : float_of_bits((e + 120u) << 23 | m << 20);

    if ((q & 0x7fu) == 0x7fu)
        v = float_of_bits(0x7fc00000u);
    return (q & 0x80u) != 0 ? -v : v;
}

/* The definition in epa2a/problem.h, for one group of n channels. */
static inline float e4m3_group(const uint16_t *restrict x, uint32_t n, uint8_t *restrict q)
{
    int16_t amax = 0; /* signed: SSE2 has a maximum of these */
    float scale = 1.0f;

    for (uint32_t i = 0; i < n; i++) {
        int16_t a = (int16_t)(x[i] & 0x7fff);
        int16_t finite = a < 0x7f80 ? a : 0;

        amax = finite > amax ? finite : amax;
    }
    if (amax != 0)
        scale = float_of_bf16((uint16_t)amax) * (1.0f / 448.0f);
    for (uint32_t i = 0; i < n; i++)
        q[i] = e4m3_of_float(float_of_bf16(x[i]) / scale);
    return scale;
}

/* The stand-in for expert e multiplies by this: 251 values in [1, 4), exact in bf16, and
 * different for neighbouring experts and for the same expert of neighbouring ranks. */
static inline float expert_factor(uint32_t expert)
{
    uint32_t v = (uint32_t)((uint64_t)expert * 37 % 251);

    return (1.0f + (float)(v % 128) / 128.0f) * (v < 128 ? 1.0f : 2.0f);
}

#endif
