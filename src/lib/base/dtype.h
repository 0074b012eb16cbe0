/* bf16, f16 (IEEE half) and e4m3fn, one element at a time: the reference for all other conversions.
 * Inline, so that tests and the oracle share one source. */
#ifndef DTYPE_H
#define DTYPE_H

#include <math.h>
#include <stdbool.h>
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

/* Rounds to nearest even; NaN stays NaN (quiet), sign kept. */
static inline uint16_t bf16_of_float(float f)
{
    uint32_t u = bits_of_float(f);
    uint32_t nan = u >> 16 | 0x40u, round = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;

    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : round);
}

static inline float float_of_f16(uint16_t h)
{
    uint32_t a = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    uint32_t normal = (a << 13) + (112u << 23);
    uint32_t small = bits_of_float((float)(int32_t)a * 0x1p-24f);
    uint32_t quiet = (uint32_t)(a > 0x7c00u) << 22;
    uint32_t above = (normal + (112u << 23)) | quiet;
    uint32_t is_small = 0u - (a < 0x400u), is_above = 0u - (a >= 0x7c00u);
    uint32_t u = (small & is_small) | (normal & ~is_small & ~is_above) | (above & is_above);

    return float_of_bits(sign | u);
}

/* Rounds to nearest even, from 65520 on to infinity; NaN stays NaN (quiet), sign kept. */
static inline uint16_t f16_of_float(float f)
{
    uint32_t u = bits_of_float(f), a = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
    uint32_t normal = ((a + 0xfffu + (a >> 13 & 1u)) >> 13) - (112u << 10);
    /* Below 2^-14: multiples of 2^-24, which is the ulp of 2^-1; the addition rounds. */
    uint32_t small = bits_of_float(float_of_bits(a) + 0.5f) & 0x7ffu;
    uint32_t nan = 0x7e00u | (a >> 13 & 0x3ffu);
    uint32_t is_small = 0u - (a < 0x38800000u); /* masks, as below */
    uint32_t is_above = 0u - (a >= 0x477ff000u), is_nan = 0u - (a > 0x7f800000u);
    uint32_t h = (small & is_small) | (normal & ~is_small);

    h = (h & ~is_above) | (0x7c00u & is_above);
    return (uint16_t)(sign | (h & ~is_nan) | (nan & is_nan));
}

/* Rounds to nearest even, saturating at +-448; NaN gives 0x7f with its sign. The function computes
 * all cases and selects one, so that compilers vectorise a loop over it. */
static inline uint8_t e4m3_of_float(float f)
{
    uint32_t u = bits_of_float(f), a = u & 0x7fffffffu, sign = u >> 24 & 0x80u;
    uint32_t normal = ((a + 0x7ffffu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    /* Below 2^-6: multiples of 2^-9, which is the ulp of 2^14; the addition rounds. */
    uint32_t small = bits_of_float(float_of_bits(a) + 16384.0f) & 0xffu;
    /* Masks: gcc compiles ?: here into branches, which prevents vectors. */
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

/* Returns the largest finite magnitude; `infinity` and magnitudes above it are not finite. */
static inline uint16_t largest_finite_of(const uint16_t *x, uint32_t n, int16_t infinity)
{
    int16_t amax = 0; /* signed: SSE2 has a maximum for signed words */

    for (uint32_t i = 0; i < n; i++) {
        int16_t a = (int16_t)(x[i] & 0x7fff);
        int16_t finite = a < infinity ? a : 0;

        amax = finite > amax ? finite : amax;
    }
    return (uint16_t)amax;
}

/* Converts a word, which is a bf16 or an f16; compilers hoist the constant choice out of a loop. */
static inline float float_of_word(bool f16, uint16_t word)
{
    return f16 ? float_of_f16(word) : float_of_bf16(word);
}

static inline uint16_t word_of_float(bool f16, float f)
{
    return f16 ? f16_of_float(f) : bf16_of_float(f);
}

/* Quantises one group of n channels by the definition in epa2a/problem.h. */
static inline __attribute__((always_inline)) float e4m3_group(bool f16, const uint16_t *restrict x,
                                                              uint32_t n, uint8_t *restrict q)
{
    uint16_t amax = largest_finite_of(x, n, f16 ? 0x7c00 : 0x7f80);
    float scale = amax != 0 ? float_of_word(f16, amax) * (1.0f / 448.0f) : 1.0f;

    for (uint32_t i = 0; i < n; i++)
        q[i] = e4m3_of_float(float_of_word(f16, x[i]) / scale);
    return scale;
}

/* Two loops: no compiler hoists the choice out of this one. */
static inline float e4m3_group_of(bool f16, const uint16_t *restrict x, uint32_t n,
                                  uint8_t *restrict q)
{
    return f16 ? e4m3_group(true, x, n, q) : e4m3_group(false, x, n, q);
}

enum { EXPERT_FACTORS = 251 };

/* Returns the factor of the synthetic expert e: EXPERT_FACTORS values in [1, 4), exact in bf16 and
 * f16, and different for neighbouring experts and for the same expert of neighbouring ranks. */
static inline float expert_factor(uint32_t expert)
{
    uint32_t v = (uint32_t)((uint64_t)expert * 37 % EXPERT_FACTORS);

    return (1.0f + (float)(v % 128) / 128.0f) * (v < 128 ? 1.0f : 2.0f);
}

#endif
