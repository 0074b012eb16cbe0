/* What statistics must get right beyond what tests/cli/results.py works out again of real samples;
 * the interval of a median against the binomial distribution added up term by term. */
#include <math.h>
#include "test.h"

#include "base/stats.h"

/* Within rounding: cmocka compares floats, and these are doubles. */
static void assert_near(double is, double want)
{
    assert_true(fabs(is - want) <= 1e-12 * fabs(want));
}

/* P(heads < k) of n coins: Pascal's triangle, row by row. */
static double fewer_than(uint64_t n, uint64_t k)
{
    static double row[2048];
    double sum = 0;

    row[0] = 1;
    for (uint64_t i = 1; i <= n; i++) {
        row[i] = 0;
        for (uint64_t j = i; j > 0; j--)
            row[j] = (row[j] + row[j - 1]) / 2;
        row[0] /= 2;
    }
    for (uint64_t j = 0; j < k; j++)
        sum += row[j];
    return sum;
}

/* Few samples have none. */
TEST(it_is_the_narrowest_that_holds_in_95_of_100)
{
    static const uint64_t many[] = {333, 500, 777, 1000, 1001};

    for (uint64_t n = 0; n < INTERVAL_LEAST; n++)
        assert_int_equal(interval_of_median(n), 0);
    for (uint64_t n = INTERVAL_LEAST; n <= 200 + LENGTH(many); n++) {
        uint64_t samples = n <= 200 ? n : many[n - 201], k = interval_of_median(samples);

        assert_true(k > 0 && k <= samples / 2);
        assert_true(fewer_than(samples, k) <= 0.025);
        assert_true(fewer_than(samples, k + 1) > 0.025);
    }
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
