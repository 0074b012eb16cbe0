/* f16 of dtype.h against references that share nothing with it, and the quantisers of all
 * sets against dtype.h: every finite f16 next to every f16 as amax. */
#include "kernel_rows.h"

enum { INFINITE = 0x7c00 };

/* By the standard's words: sign, exponent, fraction. */
static double value_of(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double v = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);

    return (h & 0x8000) != 0 ? -v : v;
}

TEST(each_f16_is_its_value_and_comes_back)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = float_of_f16((uint16_t)h);
        uint32_t a = h & 0x7fff;

        assert_int_equal(signbit(f) != 0, h >> 15);
        if (a > INFINITE)
            assert_true(isnan(f));
        else if (a == INFINITE)
            assert_true(isinf(f));
        else
            assert_true((double)f == value_of((uint16_t)h));
        /* A NaN comes back quiet. */
        assert_int_equal(f16_of_float(f), a > INFINITE ? h | 0x200 : h);
    }
}

static void hold_float(uint32_t bits)
{
    float f = float_of_bits(bits);
    uint16_t got = f16_of_float(f), low = 0, high = INFINITE;
    double x = fabs((double)f), down, up;

    if (isnan(f)) {
        assert_int_equal(got, (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff));
        return;
    }
    /* The largest f16 that is not above, by halving; past the last one stands 2^16. */
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);

        if (value_of(middle) <= x)
            low = middle;
        else
            high = middle;
    }
    down = value_of(low);
    up = high == INFINITE ? 65536.0 : value_of(high);
    if (x - down > up - x || (x - down == up - x && low % 2 != 0))
        low = high;
    if (got != (low | (bits >> 16 & 0x8000)))
        fail_msg("0x%08x (%a) is 0x%04x, not 0x%04x", bits, (double)f, got, low);
}

TEST(f16_of_float_is_the_nearest_value_ties_to_even)
{
    uint64_t seed = 9;

    for (uint32_t h = 0; h < INFINITE; h++) {
        uint32_t at = bits_of_float((float)value_of((uint16_t)h));
        uint32_t half =
            bits_of_float((float)((value_of((uint16_t)h) +
                                   (h + 1 == INFINITE ? 65536.0 : value_of((uint16_t)(h + 1)))) /
                                  2));

        hold_float(at);
        hold_float(at + 1);
        hold_float(half - 1);
        hold_float(half);
        hold_float(half + 1);
        hold_float(half | 0x80000000u);
    }
    for (uint32_t i = 0; i < 400000; i++) {
        uint64_t r = next_random(&seed);

        /* Anything; and exponents from below the smallest to above the largest f16. */
        hold_float((uint32_t)r);
        hold_float((uint32_t)(r & 0x807fffffu) | (100 + (uint32_t)(r >> 40) % 45) << 23);
    }
}

TEST(infinity_and_nan_leave_the_scale_alone)
{
    uint16_t x[6] = {0x3c00 /* 1 */, 0x7c00, 0xfc00, 0x7e00, 0xfc01, 0xb800 /* -0.5 */};
    uint8_t q[6];

    hold_scale_beside_infinity(e4m3_group_f16(x, 6, q), q);
}

/* Magnitudes from `first` to amax, `step` apart, of both signs, in groups that have this
 * amax; `other` stands in each, too. */
static void hold_amax(uint32_t amax, uint16_t other, uint32_t first, uint32_t step)
{
    enum { GROUP = 128, GROUPS = 8 };
    static uint16_t row[1 + GROUP * GROUPS];
    uint16_t *x = row + 1;
    uint32_t value = first;

    while (value <= amax) {
        for (uint32_t i = 0; i < GROUP * GROUPS; i++) {
            uint32_t v = value <= amax ? value : amax;

            if (i % GROUP == 37)
                x[i] = (uint16_t)amax;
            else if (i % GROUP == 91)
                x[i] = other;
            else
                x[i] = (uint16_t)(i % 2 != 0 ? v | 0x8000u : v);
            value += i % GROUP != 37 && i % GROUP != 91 ? step : 0;
        }
        hold_row(EPA_F16, x, GROUP * GROUPS, GROUP);
    }
}

/* Where nothing is denormal only mantissas and the distance in octaves count, so that of two
 * octaves for each mantissa of amax nothing is left out; below them what has no normal code
 * begins. */
TEST(two_octaves_under_each_mantissa_of_amax_are_exact)
{
    for (uint32_t m = 0; m < 1024; m++) {
        uint32_t amax = 22u << 10 | m;

        hold_amax(amax, (uint16_t)amax, amax - 2047, 1);
    }
}

TEST(all_values_under_each_mantissa_of_amax_are_exact_in_part)
{
    static const uint32_t exponents[] = {1, 2, 8, 14, 15, 16, 22, 30};

    for (uint32_t m = 0; m < 1024; m++) {
        uint32_t exponent = exponents[m % 8];

        hold_amax(exponent << 10 | m, 0, m % 5, 7);
        /* About where codes become denormal: 14 or 15 octaves down. */
        if (exponent >= 16)
            hold_amax(exponent << 10 | m, 0x8000, ((exponent - 16) << 10) + m % 3, 3);
    }
}

TEST(all_values_under_some_amaxes_are_exact)
{
    static const uint16_t amaxes[] = {0x3c00, 0x3c01, 0x3fff, 0x4700, 0x5fff, 0x5f00,
                                      0x7bff, 0x7800, 0x2400, 0x0800, 0x0bff};

    for (size_t a = 0; a < LENGTH(amaxes); a++)
        hold_amax(amaxes[a], 0x8001, 0, 1);
}

TEST(every_denormal_amax_is_exact)
{
    for (uint32_t amax = 0; amax <= 0x400; amax++)
        hold_amax(amax, 0x8000, 0, amax < 200 || amax > 1000 ? 1 : 5);
}

TEST(nan_and_infinity_beside_all_values_are_exact)
{
    static const uint16_t amaxes[] = {0, 1, 0x3ff, 0x400, 0x3c00, 0x3c01, 0x7bff};
    static const uint16_t others[] = {0x7c00, 0xfc00, 0x7e00, 0xfe00, 0x7c01, 0xffff};

    for (size_t a = 0; a < LENGTH(amaxes); a++) {
        for (size_t o = 0; o < LENGTH(others); o++)
            hold_amax(amaxes[a], others[o], 0, 3);
    }
}

TEST(every_nan_is_reported_from_a_number)
{
    hold_each_nan(EPA_F16, INFINITE, 0x3900);
}

TEST(groups_of_any_size_are_exact)
{
    hold_groups_of_any_size(EPA_F16);
}
