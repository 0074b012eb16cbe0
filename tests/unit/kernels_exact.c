/* The definitions of dtype.h against references that share nothing with them, and the
 * quantisers of all sets against dtype.h: every bf16 next to every kind of amax. */
#include "kernel_rows.h"

/* What a code stands for, from the format's description. */
static double value_of(uint32_t code)
{
    uint32_t e = code >> 3 & 15u, m = code & 7u;

    return e == 0 ? ldexp(m, -9) : ldexp(8 + m, (int)e - 10);
}

/* The nearest value by search; of two as near, the even code. */
static uint8_t nearest(float f)
{
    uint8_t sign = signbit(f) ? 0x80 : 0;
    double a = fabs((double)f);
    uint32_t best = 0;

    if (isnan(f))
        return sign | 0x7f;
    if (a > 448)
        a = 448;
    for (uint32_t c = 1; c < 0x7f; c++) {
        double here = fabs(value_of(c) - a), there = fabs(value_of(best) - a);

        if (here < there || (here == there && c % 2 == 0))
            best = c;
    }
    return (uint8_t)(sign | best);
}

static void hold_float(uint32_t bits)
{
    float f = float_of_bits(bits);

    if (e4m3_of_float(f) != nearest(f))
        fail_msg("%a (0x%08x): 0x%02x, the nearest is 0x%02x", (double)f, bits, e4m3_of_float(f),
                 nearest(f));
}

TEST(e4m3_of_float_is_the_nearest_value_ties_to_even)
{
    uint64_t seed = 1;

    for (uint32_t b = 0; b < 65536; b++)
        hold_float(b << 16);
    for (uint32_t c = 0; c < 0x7f; c++) {
        float middle = (float)((value_of(c) + value_of(c + 1)) / 2);
        float value = (float)value_of(c);

        for (uint32_t sign = 0; sign < 2; sign++) {
            for (int32_t near = -2; near <= 2; near++) {
                hold_float((bits_of_float(middle) + (uint32_t)near) ^ sign << 31);
                if (c != 0)
                    hold_float((bits_of_float(value) + (uint32_t)near) ^ sign << 31);
            }
        }
    }
    for (uint32_t i = 0; i < 200000; i++) {
        /* Exponents from well below the smallest number to above the largest. */
        uint64_t r = next_random(&seed);
        uint32_t exponent = 112 + (uint32_t)(r >> 40) % 28;

        hold_float((uint32_t)(r & 0x807fffffu) | exponent << 23);
    }
}

TEST(each_e4m3_code_is_its_value_and_comes_back)
{
    for (uint32_t c = 0; c < 256; c++) {
        float f = float_of_e4m3((uint8_t)c);

        if ((c & 0x7f) == 0x7f)
            assert_true(isnan(f));
        else
            assert_true((double)fabsf(f) == value_of(c & 0x7f));
        assert_int_equal(signbit(f) != 0, c >> 7);
        assert_int_equal(e4m3_of_float(f), c);
    }
}

static void hold_bf16(uint32_t bits)
{
    float f = float_of_bits(bits);
    uint16_t got = bf16_of_float(f), below = (uint16_t)(bits >> 16);
    double down, up, x;

    if (isnan(f)) {
        assert_true(isnan(float_of_bf16(got)));
        assert_int_equal(got, below | 0x40);
        return;
    }
    if ((below & 0x7f80) == 0x7f80) { /* infinity */
        assert_int_equal(got, below);
        return;
    }
    /* Past the largest bf16 the next one would be 2^128, whose code is infinity. */
    x = fabs((double)f);
    down = (double)float_of_bf16(below & 0x7fff);
    up = (below & 0x7fff) == 0x7f7f ? 0x1p128 : (double)float_of_bf16((below & 0x7fff) + 1);
    if (x - down > up - x || (x - down == up - x && below % 2 != 0))
        below++;
    assert_int_equal(got, below);
}

TEST(bf16_of_float_is_the_nearest_value_ties_to_even)
{
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    uint64_t seed = 2;

    for (uint32_t b = 0; b < 65536; b++) {
        for (size_t i = 0; i < LENGTH(low); i++)
            hold_bf16(b << 16 | low[i]);
    }
    for (uint32_t i = 0; i < 200000; i++)
        hold_bf16((uint32_t)next_random(&seed));
}

TEST(a_group_of_zeros_has_scale_one_and_zeros)
{
    uint16_t x[4] = {0, 0x8000, 0, 0x8000};
    uint8_t q[4];

    assert_true(e4m3_group(x, 4, q) == 1.0f);
    assert_int_equal(q[0], 0);
    assert_int_equal(q[1], 0x80);
}

TEST(infinity_and_nan_leave_the_scale_alone)
{
    uint16_t x[6] = {0x3f80 /* 1 */, 0x7f80, 0xff80, 0x7fc0, 0xff81, 0xbf00 /* -0.5 */};
    uint8_t q[6];

    hold_scale_beside_infinity(e4m3_group(x, 6, q), q);
}

/* Every value whose magnitude is at most amax, of both signs, in groups that have this
 * amax; `other` (NaN or an infinity, or amax once more) stands in each. */
static void hold_amax(uint16_t amax, uint16_t other, uint32_t step)
{
    enum { GROUP = 128, GROUPS = 16 };
    static uint16_t row[1 + GROUP * GROUPS];
    uint16_t *x = row + 1;
    uint32_t value = 0;

    while (value <= amax) {
        for (uint32_t i = 0; i < GROUP * GROUPS; i++) {
            if (i % GROUP == 37)
                x[i] = amax;
            else if (i % GROUP == 91) /* odd places: the value comes again in the next pair */
                x[i] = other;
            else {
                x[i] = (uint16_t)(value <= amax ? value : amax) | (i % 2 != 0 ? 0x8000 : 0);
                value += i % 2 != 0 ? step : 0;
            }
        }
        hold_row(EPA_BF16, x, GROUP * GROUPS, GROUP);
    }
}

TEST(all_values_under_each_mantissa_of_amax_are_exact)
{
    static const uint16_t exponents[] = {22, 127, 254};

    for (uint16_t m = 0; m < 128; m++) {
        for (size_t e = 0; e < LENGTH(exponents); e++) {
            uint16_t amax = (uint16_t)(exponents[e] << 7 | m);

            /* All of them once; elsewhere those that differ by exponent alone, in part. */
            hold_amax(amax, amax, exponents[e] == 127 ? 1 : 13);
        }
    }
}

TEST(all_values_under_each_exponent_of_amax_are_exact)
{
    static const uint16_t mantissas[] = {0, 1, 64, 65, 127};

    for (uint16_t e = 0; e < 255; e++) {
        for (size_t m = 0; m < LENGTH(mantissas); m++)
            hold_amax((uint16_t)(e << 7 | mantissas[m]), 0, e < 24 ? 1 : 11);
    }
}

TEST(every_denormal_amax_is_exact)
{
    for (uint16_t amax = 0; amax < 128; amax++)
        hold_amax(amax, 0x8000, 1);
}

TEST(nan_and_infinity_beside_all_values_are_exact)
{
    static const uint16_t amaxes[] = {0,      1,      0x7f,   0x80,   0x0aff, 0x0b00,
                                      0x3f80, 0x3f81, 0x3fff, 0x43e0, 0x7f00, 0x7f7f};
    static const uint16_t others[] = {0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7f81, 0xffff};

    for (size_t a = 0; a < LENGTH(amaxes); a++) {
        for (size_t o = 0; o < LENGTH(others); o++)
            hold_amax(amaxes[a], others[o], 1);
    }
}

TEST(every_nan_is_reported_from_a_number)
{
    hold_each_nan(EPA_BF16, 0x7f80, 0x3f00);
}

TEST(groups_of_any_size_are_exact)
{
    hold_groups_of_any_size(EPA_BF16);
}
