/* dtype.h, the reference of all others, against the definitions: the nearest of all codes,
 * found by trying them all. */
#include "test.h"

#include "base/dtype.h"

/* Of the codes 0x00 to 0x7e the nearest to |v|; of two the even one. */
static uint8_t nearest_e4m3(double v)
{
    uint8_t best = 0;
    double least = INFINITY;

    for (uint32_t q = 0; q <= 0x7e; q++) {
        double d = fabs(fabs(v) - (double)float_of_e4m3((uint8_t)q));

        if (d < least || (d == least && q % 2 == 0)) {
            best = (uint8_t)q;
            least = d;
        }
    }
    return (uint8_t)(best | (signbit(v) ? 0x80 : 0));
}

TEST(e4m3_is_the_nearest_code)
{
    for (uint32_t b = 0; b < 65536; b++) {
        float v = float_of_bf16((uint16_t)b), third = v / 3;

        if (isnan(v))
            continue;
        if (isinf(v)) {
            assert_int_equal(e4m3_of_float(v) & 0x7f, 0x7e);
            continue;
        }
        assert_int_equal(e4m3_of_float(v), nearest_e4m3((double)v));
        assert_int_equal(e4m3_of_float(third), nearest_e4m3((double)third));
    }
}

TEST(e4m3_codes_come_back)
{
    for (uint32_t q = 0; q < 256; q++)
        assert_int_equal(e4m3_of_float(float_of_e4m3((uint8_t)q)), q);
    assert_true(float_of_e4m3(0x7e) == 448.0f);
    assert_true(float_of_e4m3(0x01) == 0x1p-9f);
    assert_true(isnan(float_of_e4m3(0x7f)));
}

TEST(ties_go_to_the_even_code)
{
    for (uint32_t q = 0; q < 0x7e; q++) {
        float half = (float_of_e4m3((uint8_t)q) + float_of_e4m3((uint8_t)(q + 1))) / 2; /* exact */

        assert_int_equal(e4m3_of_float(half), q + q % 2);
        assert_int_equal(e4m3_of_float(nextafterf(half, 0)), q);
        assert_int_equal(e4m3_of_float(nextafterf(half, 1000)), q + 1);
    }
}

TEST(bf16_rounds_to_nearest_even_and_keeps_nan)
{
    assert_int_equal(bf16_of_float(1.0f), 0x3f80);
    assert_int_equal(bf16_of_float(float_of_bits(0x3f808000)), 0x3f80); /* tie, to even */
    assert_int_equal(bf16_of_float(float_of_bits(0x3f818000)), 0x3f82);
    assert_int_equal(bf16_of_float(float_of_bits(0x3f808001)), 0x3f81);
    assert_int_equal(bf16_of_float(float_of_bits(0x7f7fffff)), 0x7f80); /* to infinity */
    assert_int_equal(bf16_of_float(float_of_bits(0x7f800001)), 0x7fc0); /* not to infinity */
    assert_int_equal(bf16_of_float(float_of_bits(0xff800001)), 0xffc0);
    for (uint32_t b = 0; b < 65536; b++)
        if (!isnan(float_of_bf16((uint16_t)b)))
            assert_int_equal(bf16_of_float(float_of_bf16((uint16_t)b)), b);
}

TEST(a_group_is_scaled_by_its_largest_finite_magnitude)
{
    uint16_t x[4] = {bf16_of_float(-448.0f), bf16_of_float(1.0f), 0x7f80, 0x7fc1};
    uint8_t q[4];

    assert_true(e4m3_group(x, 4, q) == 448.0f * (1.0f / 448.0f));
    assert_int_equal(q[0], 0xfe);
    assert_int_equal(q[1], 0x38);
    assert_int_equal(q[2], 0x7e); /* infinity saturates */
    assert_int_equal(q[3], 0x7f); /* NaN stays */
}

TEST(a_group_of_zeros_has_scale_one)
{
    uint16_t x[3] = {0, 0x8000, 0};
    uint8_t q[3] = {1, 1, 1};

    assert_true(e4m3_group(x, 3, q) == 1.0f);
    assert_int_equal(q[0], 0);
    assert_int_equal(q[1], 0x80);
    assert_int_equal(q[2], 0);
}

TEST(denormals_are_scaled_like_others)
{
    uint16_t x[2] = {0x0001, 0x0040};
    uint8_t q[2];
    float scale;

    scale = e4m3_group(x, 2, q);
    assert_true(scale > 0);
    assert_int_equal(q[1], 0x7e);
    assert_int_equal(q[0], e4m3_of_float(float_of_bf16(1) / scale));
}

TEST(factors_are_exact_and_differ_between_neighbours)
{
    for (uint32_t e = 0; e < 4096; e++) {
        float f = expert_factor(e);

        assert_true(f >= 1 && f < 4);
        assert_true(float_of_bf16(bf16_of_float(f)) == f);
        for (uint32_t d = 1; d <= 250; d++)
            assert_true(expert_factor(e + d) != f);
    }
}
