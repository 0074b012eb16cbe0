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

/* Five that are all below five others say as much where some of them are equal. */
TEST(few_values_with_ties_have_an_exact_p)
{
    const double a[] = {1, 2, 2, 3, 3}, b[] = {6, 7, 7, 7, 8};
    const double tied_a[] = {1, 2, 2, 3, 3, 3, 4}, tied_b[] = {2, 3, 4, 4, 5, 5};

    assert_close(compare_ranks(a, 5, b, 5), 2.0 / 252);
    assert_close(compare_ranks(b, 5, a, 5), 2.0 / 252);
    assert_close(compare_ranks(tied_a, 7, tied_b, 6), 0.074592074592); /* 128 of 1716 draws */
    assert_close(compare_ranks(tied_b, 6, tied_a, 7), 0.074592074592);
}

TEST(p_is_that_of_mann_and_whitney)
{
    const double tied_a[] = {1, 2, 2, 3, 3, 3, 4}, tied_b[] = {2, 3, 4, 4, 5, 5};
    const double same[] = {3, 3, 3};
    double a[30], b[30], many_a[28], many_b[24];

    for (uint32_t i = 0; i < 28; i++)
        many_a[i] = tied_a[i % 7];
    for (uint32_t i = 0; i < 24; i++)
        many_b[i] = tied_b[i % 6];
    for (uint32_t i = 0; i < 30; i++) {
        a[i] = i + 0.1;
        b[i] = i + 4.3;
    }
    assert_close(compare_ranks(a, 30, b, 30), 0.065671257689);
    assert_close(compare_ranks(many_a, 28, many_b, 24), 0.000162007403);
    assert_close(compare_ranks(many_b, 24, many_a, 28), 0.000162007403);
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

    for (uint32_t i = 0; i < runs; i++) {
        make(2 * (key * 8 + i), 1, a[i]);
        make(2 * (key * 8 + i) + 1, scale, b[i]);
        run_a[i] = (struct compare_run){a[i], SAMPLES};
        run_b[i] = (struct compare_run){b[i], SAMPLES};
    }
    return compare_sides(&(struct compare_side){run_a, runs}, &(struct compare_side){run_b, runs});
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

/* However many samples one process gives, the next may be elsewhere. */
TEST(fewer_runs_than_five_are_no_proof)
{
    struct comparison x = compare_made(2000, 1.5, COMPARE_RUNS - 1);

    assert_true(x.low > 1.4 && isnan(x.p));
    assert_int_equal(compare_judge(&x, 0.03, 0.01), COMPARE_UNCLEAR);
    assert_int_equal(compare_judge(&x, 0.6, 0.01), COMPARE_SAME);
}

TEST(five_runs_a_side_tell_five_percent)
{
    uint32_t alarms = 0;

    for (uint32_t i = 0; i < 8; i++) {
        struct comparison x = compare_made(3000 + i, 1.05, COMPARE_RUNS);

        assert_int_equal(x.runs_a, COMPARE_RUNS);
        assert_true(fabs(x.ratio - 1.05) < 0.02);
        assert_int_equal(compare_judge(&x, 0.03, 0.01), COMPARE_SLOWER);
        x = compare_made(3000 + i, 1 / 1.05, COMPARE_RUNS);
        assert_int_equal(compare_judge(&x, 0.03, 0.01), COMPARE_FASTER);
        x = compare_made(4000 + i, 1, COMPARE_RUNS);
        alarms += compare_judge(&x, 0.001, 0.01) != COMPARE_SAME &&
                  compare_judge(&x, 0.001, 0.01) != COMPARE_UNCLEAR;
    }
    assert_true(alarms <= 1);
}

/* ---- turns ---- */

/* The verdict of rounds whose noise has heavy tails, and how many it took. */
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

TEST(equal_sides_in_turns_cry_no_wolf)
{
    uint32_t alarms = 0, same = 0, rounds;

    for (uint32_t i = 0; i < 200; i++) {
        enum compare_verdict verdict = take_turns(i, 1, 0.05, 60, &rounds);

        alarms += verdict == COMPARE_SLOWER || verdict == COMPARE_FASTER;
        same += verdict == COMPARE_SAME;
    }
    assert_true(alarms <= 2);
    assert_true(same >= 150);
}

TEST(turns_find_five_percent)
{
    uint32_t found = 0, faster = 0, rounds, early = 0;

    for (uint32_t i = 0; i < 100; i++) {
        found += take_turns(1000 + i, 1.05, 0.03, 60, &rounds) == COMPARE_SLOWER;
        early += rounds <= turns_look(2);
        faster += take_turns(2000 + i, 1 / 1.05, 0.03, 60, &rounds) == COMPARE_FASTER;
    }
    assert_true(found >= 90 && faster >= 90);
    assert_true(early >= 50);
}

/* By hand: ranks of eight rounds above have 2 / 256, so that the first look may not yet believe. */
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

TEST(bounds_of_a_median_are_of_runs_where_there_are_several)
{
    static double sample[4][SAMPLES];
    struct compare_run run[4];
    struct spread one, four;

    for (uint32_t i = 0; i < 4; i++) {
        make(i, 1 + 0.1 * i, sample[i]);
        run[i] = (struct compare_run){sample[i], SAMPLES};
    }
    one = spread_of_side(&(struct compare_side){run, 1});
    assert_int_equal(one.units, 14); /* blocks of 14 */
    assert_true(one.low < one.median && one.median < one.high && one.high < 1.05 * one.low);
    four = spread_of_side(&(struct compare_side){run, 4});
    assert_int_equal(four.units, 4);
    assert_true(four.high > 1.25 * four.low);
    assert_true(four.median > 1.05 * one.median && four.median < 1.2 * one.median);
}
