/* Statistics of samples whose expert outputs are known by hand. */
#include <math.h>
#include "test.h"

#include "report/stats.h"

/* Within rounding: cmocka compares floats, and these are doubles. */
static void assert_near(double is, double want)
{
    assert_true(fabs(is - want) <= 1e-12 * fabs(want));
}

TEST(no_samples_give_nan_and_count_zero)
{
    struct stats s = stats_of(NULL, 0, NULL);
    const double value[] = {s.min, s.median, s.p95, s.p99, s.max, s.mean, s.stdev, s.mad};

    assert_int_equal(s.n, 0);
    assert_int_equal(s.outliers, 0);
    for (size_t i = 0; i < LENGTH(value); i++)
        assert_true(isnan(value[i]));
}

/* Ranks 40 and 61 of 100: the sign test at 5 % (base/stats.h). */
TEST(the_interval_of_the_median_is_two_samples)
{
    double x[100], scratch[100];
    struct stats s;

    for (int i = 0; i < 100; i++)
        x[i] = (i * 37 % 100) + 1;
    s = stats_of(x, 100, scratch);
    assert_near(s.low, 40);
    assert_near(s.high, 61);
    s = stats_of(x, 5, scratch);
    assert_true(isnan(s.low) && isnan(s.high));
}

TEST(one_sample_is_every_percentile)
{
    const double x[] = {7};
    double scratch[1];
    struct stats s = stats_of(x, 1, scratch);

    assert_near(s.min, 7);
    assert_near(s.median, 7);
    assert_near(s.p95, 7);
    assert_near(s.p99, 7);
    assert_near(s.max, 7);
    assert_near(s.mean, 7);
    assert_near(s.stdev, 0);
    assert_near(s.mad, 0);
}

TEST(percentiles_are_samples_by_nearest_rank)
{
    double x[200], scratch[200];
    struct stats s;

    for (int i = 0; i < 200; i++)
        x[i] = (i * 77 % 200) + 1; /* 1 to 200 in another order */
    s = stats_of(x, 200, scratch);
    assert_near(s.min, 1);
    assert_near(s.median, 100);
    assert_near(s.p95, 190);
    assert_near(s.p99, 198);
    assert_near(s.max, 200);
    assert_near(s.mean, 100.5);
}

TEST(median_of_an_even_number_is_the_lower_middle)
{
    const double x[] = {4, 1, 3, 2};
    double scratch[4];

    assert_near(stats_of(x, 4, scratch).median, 2);
}

TEST(p999_needs_a_thousand_samples)
{
    static double x[2001], scratch[2001];

    for (int i = 0; i < 2001; i++)
        x[i] = i * 77 % 2001;
    assert_true(isnan(stats_of(x, 999, scratch).p999));
    for (int i = 0; i < 2001; i++)
        x[i] = i + 1;
    assert_near(stats_of(x, 1000, scratch).p999, 999);
    assert_near(stats_of(x, 1001, scratch).p999, 1000);
    assert_near(stats_of(x, 2000, scratch).p999, 1998);
    assert_near(stats_of(x, 2001, scratch).p999, 1999);
}

TEST(cv_is_the_deviation_by_the_mean)
{
    const double x[] = {9, 10, 11};
    double scratch[3];

    assert_near(stats_of(x, 3, scratch).cv, 0.1);
    assert_near(stats_of(x, 1, scratch).cv, 0);
}

TEST(few_samples_put_high_percentiles_at_the_maximum)
{
    double x[100], scratch[100];

    for (int i = 0; i < 100; i++)
        x[i] = i;
    assert_near(stats_of(x, 19, scratch).p95, 18);
    assert_near(stats_of(x, 20, scratch).p95, 18);
    assert_near(stats_of(x, 99, scratch).p99, 98);
    assert_near(stats_of(x, 100, scratch).p99, 98);
}

TEST(samples_are_left_in_their_order)
{
    const double x[] = {3, 1, 2};
    double scratch[3];

    (void)stats_of(x, 3, scratch);
    assert_near(x[0], 3);
    assert_near(x[1], 1);
    assert_near(x[2], 2);
}

TEST(spread_is_of_samples_not_of_the_population)
{
    const double x[] = {2, 4, 4, 4, 5, 5, 7, 9};
    double scratch[8];
    struct stats s = stats_of(x, 8, scratch);

    assert_near(s.mean, 5);
    assert_near(s.stdev, sqrt(32.0 / 7));
    assert_near(s.mad, 1); /* of 0 0 0 1 1 2 3 5 around 4 */
}

TEST(spread_survives_a_large_mean)
{
    const double x[] = {1e9 + 1, 1e9 + 2, 1e9 + 3};
    double scratch[3];

    assert_near(stats_of(x, 3, scratch).stdev, 1);
}

TEST(outliers_are_beyond_the_modified_z_score)
{
    double x[] = {98, 99, 100, 101, 102, 100 + 14.8, 100 - 14.9};
    double scratch[7];
    struct stats s = stats_of(x, 7, scratch);

    assert_near(s.median, 100);
    assert_near(s.mad, 2); /* 0 1 1 2 2 14.8 14.9 */
    assert_int_equal(s.outliers, 0);
    x[5] = 100 + 2 * STATS_OUTLIER + 0.1;
    x[6] = 100 - 2 * STATS_OUTLIER - 0.1;
    assert_int_equal(stats_of(x, 7, scratch).outliers, 2);
}

TEST(equal_samples_have_no_outliers)
{
    const double x[] = {5, 5, 5, 5, 1000};
    double scratch[5];

    assert_int_equal(stats_of(x, 5, scratch).outliers, 0);
}
