/* Tests that compare tells a shift from noise. Expected values of p are from scipy's mannwhitneyu
 * (methods exact and asymptotic). */
#include <math.h>
#include "test.h"

#include "base/random.h"
#include "base/stats.h"

enum { SAMPLES = 200, TRIALS = 40 };

static void assert_close(double is, double want)
{
    if (!(fabs(is - want) <= 1e-9))
        print_error("%.12f, not %.12f\n", is, want);
    assert_true(fabs(is - want) <= 1e-9);
}

/* p is exact for few values, also with ties. In the first case all values of one run are below all
 * values of the other. */
TEST(p_agrees_with_the_mann_whitney_test)
{
    static const struct {
        double a[7], b[6];
        uint32_t n_a, n_b, times; /* times: repetitions of all values */
        double p;
    } cases[] = {
        {{5, 3, 1, 2, 4},
         {6, 7, 8, 9, 10},
         5,
         5,
         1,
         2.0 / 252}, /* 2 of the 10-over-5 arrangements */
        {{1, 2, 2, 3, 3}, {6, 7, 7, 7, 8}, 5, 5, 1, 2.0 / 252},
        {{1, 3, 5, 7, 9, 11, 13}, {2, 4, 6.5, 8.5, 20, 21}, 7, 6, 1, 0.730769230769},
        {{1, 2, 2, 3, 3, 3, 4}, {2, 3, 4, 4, 5, 5}, 7, 6, 1, 0.074592074592}, /* 128 of 1716 */
        {{1, 2, 2, 3, 3, 3, 4},
         {2, 3, 4, 4, 5, 5},
         7,
         6,
         4,
         0.000162007403}, /* normal approximation */
        {{3, 3, 3}, {3, 3, 3}, 3, 3, 1, 1},
        {{5}, {6}, 1, 1, 1, 1},
    };
    double a[30], b[30];

    for (size_t i = 0; i < LENGTH(cases); i++) {
        uint32_t n_a = cases[i].n_a * cases[i].times, n_b = cases[i].n_b * cases[i].times;

        for (uint32_t k = 0; k < n_a; k++)
            a[k] = cases[i].a[k % cases[i].n_a];
        for (uint32_t k = 0; k < n_b; k++)
            b[k] = cases[i].b[k % cases[i].n_b];
        assert_close(compare_ranks(a, n_a, b, n_b), cases[i].p);
        assert_close(compare_ranks(b, n_b, a, n_a), cases[i].p);
    }
    for (uint32_t i = 0; i < 30; i++) {
        a[i] = i + 0.1;
        b[i] = i + 4.3;
    }
    assert_close(compare_ranks(a, 30, b, 30), 0.065671257689);
}

/* Makes samples around 1000 with noise that is correlated over about ten samples. */
static void make_samples(uint64_t key, double scale, double *out)
{
    struct random r = {.key = random_mix(key)};
    double phase = 0;

    for (uint32_t i = 0; i < SAMPLES; i++) {
        phase = 0.9 * phase + random_unit(&r) - 0.5;
        out[i] = scale * (1000 + 10 * phase + 5 * random_unit(&r));
    }
}

/* With this noise 200 samples carry the information of ten. Three of four intervals must contain 1;
 * with blocks of one sample about half of them would. */
TEST(the_interval_of_equals_holds_one)
{
    static double a[SAMPLES], b[SAMPLES];
    const struct compare_run run[] = {{a, SAMPLES}, {b, SAMPLES}};
    uint32_t holds = 0;

    for (uint32_t i = 0; i < TRIALS; i++) {
        struct comparison x;

        make_samples(16 * i, 1, a);
        make_samples(16 * i + 1, 1, b);
        x = compare_sides(&(struct compare_side){&run[0], 1}, &(struct compare_side){&run[1], 1});
        assert_true(x.low <= x.ratio && x.ratio <= x.high);
        holds += x.low <= 1 && x.high >= 1;
    }
    assert_true(holds >= TRIALS * 70 / 100);
}

/* ---- bounds of one side ---- */

/* The cases are few samples, runs of different lengths, and samples with skew or drift. */
TEST(a_median_is_within_its_bounds)
{
    static double sample[3][SAMPLES];
    struct random r = {.key = random_mix(7)};

    for (uint32_t n = 1; n <= SAMPLES; n++)
        for (uint32_t shape = 0; shape < 3; shape++)
            for (uint32_t runs = 1; runs <= 3; runs++) {
                struct compare_run run[3];
                struct compare_side side = {run, runs};
                struct spread x;
                struct comparison to_itself;
                double least = INFINITY, most = 0;

                for (uint32_t k = 0; k < runs; k++) {
                    run[k] = (struct compare_run){sample[k], n > k ? n - k : 1};
                    for (uint32_t i = 0; i < n; i++) {
                        double u = random_unit(&r);

                        sample[k][i] = shape == 0 ? 1 + u : shape == 1 ? 1 / (0.01 + u) : i + u;
                        least = fmin(least, sample[k][i]);
                        most = fmax(most, sample[k][i]);
                    }
                }
                x = spread_of_side(&side);
                assert_true(x.low <= x.median && x.median <= x.high);
                assert_true(least <= x.low && x.high <= most);
                if (runs == 1 && n < INTERVAL_LEAST)
                    assert_true(x.low <= least && most <= x.high);
                if (n > 20 && n % 100 != 0)
                    continue;
                to_itself = compare_sides(&side, &side);
                assert_true(to_itself.low <= to_itself.ratio && to_itself.ratio <= to_itself.high);
            }
}

/* The median of the block medians is 3, and the median of all samples is 1. */
TEST(bounds_contain_the_median_of_skewed_blocks)
{
    double sample[81];
    const struct compare_run run = {sample, LENGTH(sample)};
    struct spread x;

    for (uint32_t i = 0; i < LENGTH(sample); i++) /* 8 of 9 blocks: 1 1 1 1 3 3 3 3 3 */
        sample[i] = i >= 72 || i % 9 < 4 ? 1 : 3;
    x = spread_of_side(&(struct compare_side){&run, 1});
    assert_true(fabs(x.median - 1) < 1e-12 && x.low <= x.median && x.high >= 3);
}

TEST(a_verdict_needs_an_interval_without_one)
{
    static const struct {
        double ratio, low, high;
        enum compare_verdict want;
    } rows[] = {
        {1.02, 0.5, 2.0, COMPARE_SAME},        {1 / 1.02, 0.5, 2.0, COMPARE_SAME},
        {1.37, 0.95, 2.53, COMPARE_UNCLEAR},   {1.37, 1.01, 2.53, COMPARE_SLOWER},
        {1 / 1.37, 0.5, 1.1, COMPARE_UNCLEAR}, {1 / 1.37, 0.5, 0.9, COMPARE_FASTER},
        {1.37, NAN, NAN, COMPARE_UNCLEAR},
    };

    for (size_t i = 0; i < LENGTH(rows); i++)
        assert_int_equal(compare_interval(rows[i].ratio, rows[i].low, rows[i].high, 0.03),
                         rows[i].want);
}

/* ---- rounds of a comparison in turns ---- */

TEST(swapped_sides_negate_the_figure_of_a_round)
{
    static const double samples[2][10] = {{100, 100, 110, 110, 90, 90, 100, 100, 100, 100},
                                          {50, 50, 100, 100, 100, 100, 100, 100, 96, 96}};
    struct compare_run a = {samples[0], 10}, b = {samples[1], 10};

    /* The first pair of blocks is left out: the median of 10/11, 96/100, 1 and 10/9 remains. */
    assert_true(fabs(turns_figure(&a, &b, 2, 500) - log(0.96) / 2) < 1e-12);
    for (uint64_t block = 0; block <= 11; block++)
        assert_true(fabs(turns_figure(&a, &b, block, 500) + turns_figure(&b, &a, block, 500)) <
                    1e-12);
}

/* Returns the verdict over rounds with heavy-tailed noise, and the number of rounds in *rounds. */
static enum compare_verdict take_turns(uint64_t key, double slower, double noise, uint32_t most,
                                       uint32_t *rounds)
{
    struct random r = {.key = random_mix(key)};
    static double figure[400];
    enum compare_verdict verdict = COMPARE_UNCLEAR;
    uint32_t look = 1;

    for (*rounds = 0; *rounds < most && verdict == COMPARE_UNCLEAR;) {
        struct comparison x;
        double u = random_unit(&r) - 0.5, tail = random_unit(&r) < 0.1 ? 10 : 1;

        figure[(*rounds)++] = log(slower) + noise * tail * 2 * u;
        if (*rounds < turns_look(look) && *rounds < most)
            continue;
        verdict = turns_judge(figure, *rounds, look++, 0.03, 0.01, &x);
    }
    return verdict;
}

TEST(rounds_rarely_separate_equals_and_find_five_percent)
{
    uint32_t alarms = 0, same = 0, found = 0, faster = 0, early = 0, rounds;

    for (uint32_t i = 0; i < 200; i++) {
        enum compare_verdict verdict = take_turns(i, 1, 0.05, 60, &rounds);

        alarms += verdict == COMPARE_SLOWER || verdict == COMPARE_FASTER;
        same += verdict == COMPARE_SAME;
    }
    assert_true(alarms <= 2 && same >= 150);
    for (uint32_t i = 0; i < 100; i++) {
        found += take_turns(1000 + i, 1.05, 0.03, 60, &rounds) == COMPARE_SLOWER;
        early += rounds <= turns_look(2);
        faster += take_turns(2000 + i, 1 / 1.05, 0.03, 60, &rounds) == COMPARE_FASTER;
    }
    assert_true(found >= 90 && faster >= 90 && early >= 50);
}

/* Computed by hand: eight rounds of equal sign have p = 2 / 256, which is not enough at the first
 * look. */
TEST(few_rounds_decide_nothing)
{
    const double figure[] = {0.5, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56, 0.57, 0.58, 0.59};
    struct comparison x;

    assert_int_equal(turns_judge(figure, 8, 1, 0.03, 0.01, &x), COMPARE_UNCLEAR);
    assert_close(x.p, 2.0 / 256);
    assert_true(isnan(x.low));
    assert_int_equal(turns_judge(figure, 10, 1, 0.03, 0.01, &x), COMPARE_SLOWER);
    assert_close(x.p, 2.0 / 1024);
    assert_true(log(x.low) > 0.499 && log(x.high) < 0.591 && log(x.low) < 0.52);
    assert_close(x.ratio, exp(0.545));
}
