/* Tests of the stop rules with made-up series: the sample and the reason of the stop, and the
 * number of evaluations. */
#include <math.h>
#include "test.h"

#include "base/random.h"
#include "session/session.h"

struct series {
    double (*ns)(uint64_t i); /* time of sample i */
    double each_ns;           /* total time per sample, including work around it */
};

struct outcome {
    enum stop_reason reason;
    uint64_t n, looks;
};

static double alike(uint64_t i)
{
    return 100;
}

/* Uniform between 90 and 110. */
static double noisy(uint64_t i)
{
    struct random random = {random_mix(i), 0};

    return 90 + 20.0 * random_below(&random, 1000) / 1000;
}

/* Alternates between 10 and 1000, so that the median never converges. */
static double either(uint64_t i)
{
    return i % 2 == 0 ? 10 : 1000;
}

static double none(uint64_t i)
{
    return 0;
}

static struct outcome run(const struct bench_options *options, const struct series *series)
{
    struct outcome out = {STOP_NOT, 0, 0};
    struct stop stop;

    assert_int_equal(stop_init(&stop, options, NULL), EPA_OK);
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

/* Samples are uniform over 20 % of the median. The interval of n samples is 20 % * 1.96 / sqrt(n),
 * so that 1 % needs about 1540 samples. */
TEST(each_rule_stops_soon_after_it_is_met_with_few_evaluations)
{
    static const struct {
        struct series series;
        struct bench_options options;
        enum stop_reason reason;
        uint64_t least, most, looks;
    } c[] = {
        {{noisy, 100}, {.iterations = 100000, .ci95 = 0.01}, STOP_CI95, 801, 2999, 24},
        {{either, 100}, {.iterations = 10000, .ci95 = 0.01}, STOP_ITERATIONS, 10000, 10000, 39},
        {{alike, 123},
         {.iterations = 1000000, .max_time_ns = 10000000},
         STOP_TIME,
         81300,
         81303,
         59},
        {{alike, 100},
         {.iterations = 100000, .ci95 = 0.01, .min_time_ns = 1000000},
         STOP_CI95,
         10000,
         12600,
         100},
        {{none, 0}, {.iterations = 100, .ci95 = 0.01}, STOP_ITERATIONS, 100, 100, 100},
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        struct bench_options options = c[i].options;
        struct outcome out;

        options.min_iterations = options.ci95 > 0 ? options.iterations < 1000 ? 10 : 50 : 0;
        out = run(&options, &c[i].series);
        assert_int_equal(out.reason, c[i].reason);
        assert_in_range(out.n, c[i].least, c[i].most);
        assert_in_range(out.looks, 1, c[i].looks);
    }
}
