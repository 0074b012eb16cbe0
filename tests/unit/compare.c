/* Whether compare knows a shift from noise. Values of p are those of scipy's mannwhitneyu
 * (methods exact, asymptotic). */
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

TEST(few_values_have_an_exact_p)
{
    const double a[] = {5, 3, 1, 2, 4}, b[] = {6, 7, 8, 9, 10};
    const double mixed_a[] = {1, 3, 5, 7, 9, 11, 13}, mixed_b[] = {2, 4, 6.5, 8.5, 20, 21};

    assert_close(compare_ranks(a, 5, b, 5), 2.0 / 252); /* of 10 over 5 ways, 2 */
    assert_close(compare_ranks(b, 5, a, 5), 2.0 / 252);
    assert_close(compare_ranks(mixed_a, 7, mixed_b, 6), 0.730769230769);
    assert_close(compare_ranks(a, 1, b, 1), 1);
}

TEST(p_is_that_of_mann_and_whitney)
{
    const double tied_a[] = {1, 2, 2, 3, 3, 3, 4}, tied_b[] = {2, 3, 4, 4, 5, 5};
    const double same[] = {3, 3, 3};
    double a[30], b[30];

    for (uint32_t i = 0; i < 30; i++) {
        a[i] = i + 0.1;
        b[i] = i + 4.3;
    }
    assert_close(compare_ranks(a, 30, b, 30), 0.065671257689);
    assert_close(compare_ranks(tied_a, 7, tied_b, 6), 0.078262429475);
    assert_close(compare_ranks(tied_b, 6, tied_a, 7), 0.078262429475);
    assert_close(compare_ranks(same, 3, same, 3), 1);
}

/* About 1000 with noise that comes in phases of some ten samples. */
static void make(uint64_t key, double scale, double *out)
{
    struct random r = {.key = random_mix(key)};
    double phase = 0;

    for (uint32_t i = 0; i < SAMPLES; i++) {
        phase = 0.9 * phase + random_unit(&r) - 0.5;
        out[i] = scale * (1000 + 10 * phase + 5 * random_unit(&r));
    }
}

static struct comparison compare_made(uint64_t key, double scale, uint32_t runs)
{
    static double a[8][SAMPLES], b[8][SAMPLES];
    struct compare_run run_a[8], run_b[8];
    struct comparison x;

    for (uint32_t i = 0; i < runs; i++) {
        make(2 * (key * 8 + i), 1, a[i]);
        make(2 * (key * 8 + i) + 1, scale, b[i]);
        run_a[i] = (struct compare_run){a[i], SAMPLES};
        run_b[i] = (struct compare_run){b[i], SAMPLES};
    }
    assert_int_equal(
        compare_sides(&(struct compare_side){run_a, runs}, &(struct compare_side){run_b, runs}, &x),
        EPA_OK);
    return x;
}

/* Such noise leaves ten samples worth of 200: three of four hold it, about half if blocks were of
 * one sample. */
TEST(the_interval_of_equals_holds_one)
{
    uint32_t holds = 0;

    for (uint32_t i = 0; i < TRIALS; i++) {
        struct comparison x = compare_made(i, 1, 1);

        assert_true(x.low <= x.ratio && x.ratio <= x.high);
        holds += x.low <= 1 && x.high >= 1;
    }
    assert_true(holds >= TRIALS * 70 / 100);
}

TEST(p_of_equals_is_seldom_small)
{
    uint32_t small = 0;

    for (uint32_t i = 0; i < TRIALS; i++)
        small += compare_made(1000 + i, 1, 1).p < 0.01;
    assert_true(small <= TRIALS * 5 / 100);
}

TEST(five_percent_are_found)
{
    for (uint32_t i = 0; i < 20; i++) {
        struct comparison x = compare_made(2000 + i, 1.05, 1);

        assert_true(x.low > 1 && x.p < 0.01);
        assert_true(fabs(x.ratio - 1.05) < 0.02);
        assert_int_equal(x.units_a, 14); /* blocks of 14 */
        assert_int_equal(x.samples_a, SAMPLES);
    }
}

TEST(runs_are_the_units_where_there_are_enough)
{
    struct comparison x = compare_made(3000, 1.05, COMPARE_RUNS);

    assert_int_equal(x.units_a, COMPARE_RUNS);
    assert_int_equal(x.units_b, COMPARE_RUNS);
    assert_int_equal(x.samples_b, COMPARE_RUNS * SAMPLES);
    assert_true(x.p < 0.02 && x.low > 1);
    assert_true(compare_made(3001, 1.05, COMPARE_RUNS - 1).units_a > COMPARE_RUNS);
}

TEST(one_sample_each_says_nothing)
{
    const double a = 10, b = 20;
    const struct compare_run run_a = {&a, 1}, run_b = {&b, 1};
    struct comparison x;

    assert_int_equal(
        compare_sides(&(struct compare_side){&run_a, 1}, &(struct compare_side){&run_b, 1}, &x),
        EPA_OK);
    assert_close(x.ratio, 2);
    assert_true(x.p > 0.3);
}

TEST(bounds_of_a_median_are_of_runs_where_there_are_several)
{
    static double sample[4][SAMPLES];
    struct compare_run run[4];
    struct spread one, four;

    for (uint32_t i = 0; i < 4; i++) {
        make(i, 1 + 0.1 * i, sample[i]);
        run[i] = (struct compare_run){sample[i], SAMPLES};
    }
    assert_int_equal(spread_of_side(&(struct compare_side){run, 1}, &one), EPA_OK);
    assert_int_equal(one.units, 14); /* blocks of 14 */
    assert_true(one.low < one.median && one.median < one.high && one.high < 1.05 * one.low);
    assert_int_equal(spread_of_side(&(struct compare_side){run, 4}, &four), EPA_OK);
    assert_int_equal(four.units, 4);
    assert_true(four.high > 1.25 * four.low);
    assert_true(four.median > 1.05 * one.median && four.median < 1.2 * one.median);
}
