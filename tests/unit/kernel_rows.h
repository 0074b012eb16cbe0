/* Rows through the quantisers of all sets, held to dtype.h, for kernels_exact.c and
 * kernels_f16.c. */
#ifndef KERNEL_ROWS_H
#define KERNEL_ROWS_H

#include <math.h>

#include "test.h"

#include "base/dtype.h"
#include "epa2a/quant.h"

static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* One row of several groups through every set, held to dtype.h. x and q start off any
 * alignment; bytes behind the row must stay. */
static inline void hold_row(enum epa_dtype dtype, const uint16_t *x, uint32_t hidden,
                            uint32_t group)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    enum { GUARD = 64, ISAS = LENGTH(isas) };
    uint8_t want[4096], got[4096 + GUARD];
    float want_scale[4096], got_scale[4096 + 1];

    for (uint32_t h = 0; h < hidden; h += group)
        want_scale[h / group] = dtype == EPA_F16 ? e4m3_group_f16(x + h, group, want + h)
                                                 : e4m3_group(x + h, group, want + h);
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct epa_kernels *set = epa_kernels_by_name(isas[k], dtype);
        uint32_t groups = hidden / group;

        if (set == NULL)
            continue;
        memset(got, 0xa5, sizeof(got));
        got_scale[groups] = -1.0f;
        set->quantise(x, hidden, group, x, got + 1, got_scale);
        for (uint32_t h = 0; h < hidden; h++) {
            if (got[1 + h] != want[h])
                fail_msg("%s, group %u: x[%u] = 0x%04x, scale %a: 0x%02x, not 0x%02x", isas[k],
                         group, h, x[h], (double)want_scale[h / group], got[1 + h], want[h]);
        }
        assert_memory_equal(got_scale, want_scale, groups * sizeof(float));
        assert_true(got_scale[groups] == -1.0f);
        assert_int_equal(got[0], 0xa5);
        for (uint32_t i = 1 + hidden; i < 1 + hidden + GUARD - 1; i++)
            assert_int_equal(got[i], 0xa5);
    }
}

static inline uint16_t word_of(enum epa_dtype dtype, float f)
{
    return dtype == EPA_F16 ? f16_of_float(f) : bf16_of_float(f);
}

/* kind 0: any bits; 1: like a layer's activations; 2: the same and outliers; 3: mostly
 * zeros; 4: magnitudes from tiny to large */
static inline uint16_t random_value(enum epa_dtype dtype, uint64_t *seed, uint32_t kind)
{
    uint64_t r = next_random(seed);
    float near = ((float)(r & 0xffff) + (float)(r >> 16 & 0xffff) - 65536.0f) / 32768.0f;

    if (kind == 0)
        return (uint16_t)(r >> 48);
    if (kind == 2 && r >> 57 == 0)
        return word_of(dtype, near * (dtype == EPA_F16 ? 30000.0f : 1000.0f));
    if (kind == 3 && r >> 62 != 0)
        return 0;
    if (kind == 4)
        return word_of(dtype, ldexpf(near, -(int)(r >> 59)));
    return word_of(dtype, near);
}

static inline void hold_groups_of_any_size(enum epa_dtype dtype)
{
    static const uint32_t groups[] = {1,   2,   7,   15,  16,  17,  31,   32,  33,  48,
                                      63,  64,  65,  80,  96,  97,  100,  112, 127, 128,
                                      144, 192, 200, 256, 448, 512, 1000, 2048};
    static uint16_t row[1 + 4096];
    uint64_t seed = 3;

    for (size_t g = 0; g < LENGTH(groups); g++) {
        for (uint32_t round = 0; round < 40; round++) {
            uint32_t hidden = groups[g] * (1 + round % (groups[g] > 1024 ? 2 : 4));
            uint16_t *x = row + round % 2;

            for (uint32_t h = 0; h < hidden; h++)
                x[h] = random_value(dtype, &seed, round % 5);
            hold_row(dtype, x, hidden, groups[g]);
        }
    }
}

/* Each NaN from the code of infinity on, beside numbers. */
static inline void hold_each_nan(enum epa_dtype dtype, uint32_t infinity, uint32_t number)
{
    uint16_t x[256];

    for (uint32_t nan = infinity; nan < 0x8000; nan += 64) {
        for (uint32_t i = 0; i < 128; i++) {
            x[i] = (uint16_t)((nan + i / 2) | (i % 2 != 0 ? 0x8000 : 0));
            x[128 + i] = i % 3 == 0 ? x[i] : (uint16_t)(number + i);
        }
        hold_row(dtype, x, 256, 128);
    }
}

/* Infinities and NaN beside 1 and -0.5, in the codes of the type. */
static inline void hold_scale_beside_infinity(float scale, const uint8_t *q)
{
    static const uint8_t want[] = {0x7e, 0x7e, 0xfe, 0x7f, 0xff, 0xf6 /* -224 */};

    assert_true(scale == 1.0f / 448.0f);
    assert_memory_equal(q, want, sizeof(want));
}

#endif
