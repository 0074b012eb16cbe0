/* The interval of a median against the binomial distribution added up term by term, and
 * against throws. */
#include <math.h>
#include "test.h"

#include "base/stats.h"
#include "base/random.h"

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

TEST(it_is_the_narrowest_that_holds_in_95_of_100)
{
    static const uint64_t many[] = {333, 500, 777, 1000, 1001};

    for (uint64_t n = INTERVAL_LEAST; n <= 200 + LENGTH(many); n++) {
        uint64_t samples = n <= 200 ? n : many[n - 201], k = interval_of_median(samples);

        assert_true(k > 0 && k <= samples / 2);
        assert_true(fewer_than(samples, k) <= 0.025);
        assert_true(fewer_than(samples, k + 1) > 0.025);
    }
}

TEST(few_samples_have_none)
{
    for (uint64_t n = 0; n < INTERVAL_LEAST; n++)
        assert_int_equal(interval_of_median(n), 0);
}

/* Of a distribution with a long tail; its median is 1. */
TEST(it_covers_the_median_as_often_as_it_says)
{
    enum { TRIALS = 4000, N = 60 };
    struct random random = {random_mix(7), 0};
    uint64_t k = interval_of_median(N);
    int covered = 0;

    for (int t = 0; t < TRIALS; t++) {
        double x[N];

        for (int i = 0; i < N; i++) {
            double u = (random_below(&random, 1u << 30) + 0.5) / (1u << 30);

            x[i] = u / (1 - u);
        }
        stats_sort(x, N);
        covered += x[k - 1] <= 1 && x[N - k] >= 1;
    }
    assert_true(covered >= TRIALS * 0.94 && covered <= TRIALS * 0.98);
}
