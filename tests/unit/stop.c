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

/* Uniform over 20 % of the median: the interval of n is 20 % * 1.96 / sqrt(n), so 1 % takes about
 * 1540. */
TEST(each_rule_stops_soon_after_it_is_met_and_looks_seldom)
{
    static const struct {
        struct bench_options options;
        struct series series;
        enum stop_reason reason;
        uint64_t least, most, looks;
    } c[] = {
        {{.iterations = 100000, .ci95 = 0.01, .min_iterations = 50},
         {noisy, 100},
         STOP_CI95,
         801,
         2999,
         24},
        {{.iterations = 10000, .ci95 = 0.01, .min_iterations = 50},
         {either, 100},
         STOP_ITERATIONS,
         10000,
         10000,
         39},
        {{.iterations = 1000000, .max_time_ns = 10000000},
         {alike, 123},
         STOP_TIME,
         10000000 / 123,
         10000000 / 123 + 2,
         59},
        {{.iterations = 100000, .ci95 = 0.01, .min_iterations = 50, .min_time_ns = 1000000},
         {alike, 100},
         STOP_CI95,
         10000,
         12600,
         100},
        {{.iterations = 100, .ci95 = 0.01, .min_iterations = 10},
         {none, 0},
         STOP_ITERATIONS,
         100,
         100,
         100},
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        struct outcome out = run(&c[i].options, &c[i].series);

        assert_int_equal(out.reason, c[i].reason);
        assert_in_range(out.n, c[i].least, c[i].most);
        assert_in_range(out.looks, 1, c[i].looks);
    }
}

TEST(the_width_is_that_of_the_interval_of_the_median)
{
    double five[] = {1, 1, 1, 1, 1}, six[] = {5, 1, 4, 2, 3, 6}, ns[1600];

    assert_true(isinf(stop_width(five, 5)));
    assert_true(fabs(stop_width(six, 6) - 5.0 / 3) < 1e-12); /* 1 to 6 by 3 */
    for (uint64_t i = 0; i < 1600; i++)
        ns[i] = noisy(i);
    assert_true(stop_width(ns, 300) > 0.01);
    assert_true(stop_width(ns, 1600) <= 0.012);
}
