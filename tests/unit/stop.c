/* Stop rules over series that are made up: when they stop, at which sample and why, and how
 * seldom they look. */
#include <math.h>
#include "test.h"

#include "base/random.h"
#include "session/session.h"

struct series {
    double (*ns)(uint64_t i); /* of sample i */
    double each_ns;           /* what a sample takes, with all around it */
};

struct outcome {
    enum stop_reason reason;
    uint64_t n, looks;
};

static double alike(uint64_t i)
{
    (void)i;
    return 100;
}

/* 100, give or take 10 %, all alike. */
static double noisy(uint64_t i)
{
    struct random random = {random_mix(i), 0};

    return 90 + 20.0 * random_below(&random, 1000) / 1000;
}

/* As often 10 as 1000: the median never settles. */
static double either(uint64_t i)
{
    return i % 2 == 0 ? 10 : 1000;
}

static double none(uint64_t i)
{
    (void)i;
    return 0;
}

static struct outcome run(const struct bench_options *options, const struct series *series)
{
    struct outcome out = {STOP_NOT, 0, 0};
    struct epa_error err = {EPA_OK, ""};
    struct stop stop;

    assert_int_equal(stop_init(&stop, options, &err), EPA_OK);
    while (out.reason == STOP_NOT) {
        assert_true(stop.next > stop.n && stop.next <= options->iterations);
        for (; stop.n < stop.next; stop.n++)
            stop.ns[stop.n] = series->ns(stop.n);
        out.n = stop.n;
        out.looks++;
        out.reason = stop_poll(&stop, (uint64_t)(series->each_ns * (double)stop.n));
    }
    stop_finish(&stop);
    return out;
}

/* Uniform over 20 % of the median: the interval of n is 20 % * 1.96 / sqrt(n), so 1 % takes
 * about 1540. */
TEST(noise_stops_once_the_interval_is_narrow)
{
    const struct bench_options o = {.iterations = 100000, .ci95 = 0.01, .min_iterations = 50};
    struct outcome out = run(&o, &(struct series){noisy, 100});
    double ns[100000];

    assert_int_equal(out.reason, STOP_CI95);
    assert_true(out.n > 800 && out.n < 3000);
    assert_true(out.looks < 25);
    for (uint64_t i = 0; i < out.n; i++)
        ns[i] = noisy(i);
    assert_true(stop_width(ns, out.n) <= 0.01);
    for (uint64_t i = 0; i < 300; i++)
        ns[i] = noisy(i);
    assert_true(stop_width(ns, 300) > 0.01);
}

TEST(a_median_that_never_settles_stops_at_iterations)
{
    const struct bench_options o = {.iterations = 10000, .ci95 = 0.01, .min_iterations = 50};
    struct outcome out = run(&o, &(struct series){either, 100});

    assert_int_equal(out.reason, STOP_ITERATIONS);
    assert_int_equal(out.n, 10000);
    assert_true(out.looks < 40);
}

TEST(max_time_stops_soon_after_it_and_looks_seldom)
{
    const struct bench_options o = {.iterations = 1000000, .max_time_ns = 10000000};
    struct outcome out = run(&o, &(struct series){alike, 123});

    assert_int_equal(out.reason, STOP_TIME);
    assert_true(out.n >= 10000000 / 123 && out.n <= 10000000 / 123 + 2);
    assert_true(out.looks < 60);
}

TEST(min_time_holds_the_interval_back)
{
    const struct bench_options o = {
        .iterations = 100000, .ci95 = 0.01, .min_iterations = 50, .min_time_ns = 1000000};
    struct outcome out = run(&o, &(struct series){alike, 100});

    assert_int_equal(out.reason, STOP_CI95);
    assert_true(out.n >= 10000 && out.n <= 12600);
}

TEST(a_median_of_nothing_has_no_interval)
{
    const struct bench_options o = {.iterations = 100, .ci95 = 0.01, .min_iterations = 10};
    double five[] = {1, 1, 1, 1, 1}, six[] = {5, 1, 4, 2, 3, 6};

    assert_int_equal(run(&o, &(struct series){none, 0}).reason, STOP_ITERATIONS);
    assert_true(isinf(stop_width(five, 5)));
    assert_true(fabs(stop_width(six, 6) - 5.0 / 3) < 1e-12); /* 1 to 6 by 3 */
}
