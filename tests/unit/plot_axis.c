/* Ranges, ticks, numbers and bins of charts. */
#include <math.h>
#include "test.h"

#include "report/plot_axis.h"

static void assert_near(double have, double want)
{
    assert_true(fabs(have - want) <= 1e-9 * (fabs(want) + 1));
}

static void expect_range(uint32_t base, double low, double high, double want_low, double want_high)
{
    struct plot_axis axis = {.base = base};

    plot_axis_fit(&axis, low, high);
    assert_near(axis.low, want_low);
    assert_near(axis.high, want_high);
}

TEST(ranges_end_at_round_numbers)
{
    expect_range(0, 3, 97, 0, 100);
    expect_range(0, 0.12, 0.19, 0.12, 0.19);
    expect_range(0, -3, 12, -4, 12);
    expect_range(10, 3, 97, 2, 100);
    expect_range(10, 0.0011, 6, 0.001, 10);
    expect_range(10, 100, 200, 100, 200);
    expect_range(2, 1, 100, 1, 128);
    expect_range(2, 3, 48, 2, 64);
}

TEST(one_value_gets_room_on_both_sides)
{
    expect_range(0, 50, 50, 45, 55);
    expect_range(0, 0, 0, -1, 1);
    expect_range(2, 8, 8, 4, 16);
    expect_range(10, 100, 100, 10, 1000);
}

TEST(places_go_from_0_to_1)
{
    struct plot_axis linear = {.low = 10, .high = 20}, power = {.base = 2, .low = 1, .high = 16};

    assert_near(plot_axis_place(&linear, 10), 0);
    assert_near(plot_axis_place(&linear, 15), 0.5);
    assert_near(plot_axis_place(&power, 4), 0.5);
    assert_near(plot_axis_place(&power, 16), 1);
}

static void expect_ticks(struct plot_axis axis, uint32_t most, const double *want, uint32_t n)
{
    struct plot_ticks ticks;

    plot_ticks(&axis, most, &ticks);
    assert_int_equal(ticks.n, n);
    for (uint32_t i = 0; i < n; i++)
        assert_near(ticks.at[i], want[i]);
}

TEST(ticks_are_round_and_few)
{
    static const double tens[] = {0, 20, 40, 60, 80, 100}, twos[] = {1, 2, 4, 8, 16},
                        fourth[] = {1, 4, 16, 64}, fine[] = {2, 5, 10, 20, 50, 100},
                        decades[] = {0.1, 1, 10, 100, 1000};

    expect_ticks((struct plot_axis){.low = 0, .high = 100}, 6, tens, 6);
    expect_ticks((struct plot_axis){.base = 2, .low = 1, .high = 16}, 9, twos, 5);
    expect_ticks((struct plot_axis){.base = 2, .low = 1, .high = 128}, 5, fourth, 4);
    expect_ticks((struct plot_axis){.base = 10, .low = 2, .high = 100}, 8, fine, 6);
    expect_ticks((struct plot_axis){.base = 10, .low = 0.1, .high = 1000}, 6, decades, 5);
}

TEST(every_range_has_ticks_and_no_more_than_there_is_room_for)
{
    for (int e = -6; e < 9; e++) {
        for (double width = 1; width < 1e6; width *= 1.7) {
            for (uint32_t most = 5; most <= PLOT_TICKS; most++) {
                static const uint32_t base[] = {0, 2, 10};

                for (int b = 0; b < 3; b++) {
                    struct plot_axis axis = {.base = base[b]};
                    struct plot_ticks ticks;

                    plot_axis_fit(&axis, pow(10, e), pow(10, e) * width);
                    plot_ticks(&axis, most, &ticks);
                    assert_in_range(ticks.n, 2, most);
                    for (uint32_t i = 1; i < ticks.n; i++)
                        assert_true(ticks.at[i] > ticks.at[i - 1]);
                }
            }
        }
    }
}

TEST(numbers_have_three_digits_that_say_something)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},
                 {1, "1"},
                 {2.5, "2.5"},
                 {0.125, "0.125"},
                 {12.34, "12.3"},
                 {123.4, "123"},
                 {1234567, "1234567"},
                 {1e7, "1e+07"},
                 {1e-4, "0.0001"},
                 {1.25e-5, "1.25e-05"},
                 {-2.5, "-2.5"},
                 {9.999, "10"}};
    char buf[PLOT_NUMBER];

    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_string_equal(plot_number(buf, sizeof(buf), cases[i].value), cases[i].text);
}

static uint64_t sum_of(const struct plot_bins *bins)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < bins->n; i++)
        sum += bins->count[i];
    return sum;
}

TEST(bins_hold_every_sample_once)
{
    double sample[500];
    struct plot_bins bins;

    for (uint64_t n = 1; n <= 500; n += 7) {
        for (uint64_t i = 0; i < n; i++)
            sample[i] = 10 + sqrt((double)i);
        plot_bins(sample, n, &bins);
        assert_in_range(bins.n, 1, PLOT_BINS);
        assert_int_equal(sum_of(&bins), n);
        assert_true(bins.low <= sample[0]);
        assert_true(bins.open || bins.low + bins.n * bins.width > sample[n - 1]);
    }
}

TEST(samples_that_are_all_alike_are_one_bin)
{
    static const double sample[] = {7, 7, 7};
    struct plot_bins bins;

    plot_bins(sample, 3, &bins);
    assert_int_equal(bins.n, 1);
    assert_int_equal(bins.count[0], 3);
    assert_false(bins.open);
}

TEST(a_far_outlier_is_in_an_open_bin_and_leaves_the_others_apart)
{
    double sample[101];
    struct plot_bins bins;

    for (int i = 0; i < 100; i++)
        sample[i] = 100 + i * 0.1;
    sample[100] = 1e6;
    plot_bins(sample, 101, &bins);
    assert_true(bins.open);
    assert_int_equal(bins.count[bins.n - 1], 1);
    assert_in_range(bins.n, 4, PLOT_BINS);
    assert_true(bins.width < 10);
    assert_int_equal(sum_of(&bins), 101);
}

TEST(percentiles_are_samples)
{
    static const double sample[] = {1, 2, 3, 4};

    assert_near(plot_percentile(sample, 4, 0), 1);
    assert_near(plot_percentile(sample, 4, 50), 2);
    assert_near(plot_percentile(sample, 4, 51), 3);
    assert_near(plot_percentile(sample, 4, 100), 4);
}
