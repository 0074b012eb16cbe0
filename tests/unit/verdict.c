/* Expectations of results made by hand: what meets them, and in which words they are missed. */
#include <math.h>
#include "test.h"

#include "fake_session.h"

#include "base/exit_code.h"
#include "report/result.h"

/* Ten samples of two ranks; median of dispatch 105 us, of combine 205 us, of total 310 us. */
static void begin(struct fake *f, enum verb verb)
{
    fake_init(f, verb, 2, 10);
    if (verb != VERB_VERIFY) /* which has no room for times */
        fake_measure(f, 10);
    f->experiment.expect.wrong = UINT32_MAX;
}

#define TEST_OF_TEN(name, verb) \
    static void name##_in(struct fake *f); \
    TEST(name) \
    { \
        struct fake f; \
\
        begin(&f, verb); \
        name##_in(&f); \
        fake_finish(&f); \
    } \
    static void name##_in(struct fake *f)

static void end(struct fake *f, enum epa_status status)
{
    assert_int_equal(fake_result(f, status, status == EPA_OK ? NULL : "because"), EPA_OK);
}

TEST_OF_TEN(a_bare_bound_is_of_the_last_row, VERB_BENCH)
{
    f->experiment.expect.median = "310us";
    end(f, EPA_OK);
    assert_int_equal(f->result.n_verdicts, 1);
    assert_string_equal(f->result.verdict[0].row, "total");
    assert_true(f->result.verdict[0].met); /* what is just as much is met */
    assert_int_equal(f->result.exit_code, EXIT_OK);
    assert_string_equal(f->result.error, "");
}

TEST_OF_TEN(what_is_missed_is_reported_with_how_much, VERB_BENCH)
{
    char words[256];

    f->experiment.expect.median = "dispatch 1s , combine 100us,total 248us";
    end(f, EPA_OK);
    assert_int_equal(f->result.status, EPA_OK);
    assert_int_equal(f->result.exit_code, EXIT_WRONG);
    assert_int_equal(f->result.n_missed, 2);
    assert_string_equal(f->result.error,
                        "expected combine median <= 100 us, it is 205 us (+105.0 %), and 1 "
                        "more");
    assert_true(f->result.verdict[0].met);
    assert_string_equal(verdict_wanted(&f->result.verdict[2], words, sizeof(words)),
                        "total median <= 248 us");
    assert_string_equal(verdict_found(&f->result, &f->result.verdict[2], words, sizeof(words)),
                        "310 us (+25.0 %)");
}

TEST_OF_TEN(each_figure_is_the_one_of_its_name, VERB_BENCH)
{
    const struct stats *s;

    f->experiment.expect = (struct expect_options){.min = "1s",
                                                   .median = "1s",
                                                   .p95 = "1s",
                                                   .p99 = "1s",
                                                   .p999 = "1s",
                                                   .max = "1s",
                                                   .mean = "1s",
                                                   .goodput = "dispatch 1",
                                                   .wire = "combine 1",
                                                   .bottleneck = "total 1",
                                                   .of_peak = "1%",
                                                   .wrong = UINT32_MAX};
    fake_peaks(f);
    end(f, EPA_OK);
    assert_int_equal(f->result.n_verdicts, EXPECT_FIGURES);
    s = &f->result.stage[2].slowest;
    for (uint32_t i = 0; i < EXPECT_FIGURES; i++) {
        const double want[] = {s->min,
                               s->median,
                               s->p95,
                               s->p99,
                               NAN, /* of so few samples */
                               s->max,
                               s->mean,
                               f->result.stage[0].goodput,
                               f->result.stage[1].wire,
                               f->result.stage[2].bottleneck,
                               f->result.stage[2].peak_ns / s->median};

        assert_int_equal(f->result.verdict[i].figure, i);
        assert_true(f->result.verdict[i].measured == want[i] || isnan(want[i]));
        assert_true(f->result.verdict[i].met == !isnan(want[i]));
    }
}

TEST_OF_TEN(what_is_not_known_misses, VERB_BENCH)
{
    f->experiment.expect.of_peak = "dispatch 0%";
    f->experiment.expect.wrong = 0;
    end(f, EPA_OK);
    assert_int_equal(f->result.n_missed, 2); /* nothing was compared */
    assert_string_equal(f->result.error,
                        "expected dispatch >= 0 % of its limit, it is not known: the "
                        "transport does not measure what its links can do, and 1 more");
}

TEST_OF_TEN(wrong_wants_data_that_was_compared, VERB_BENCH)
{
    f->experiment.expect.wrong = 0;
    session_rank(&f->session, 1)->compared = 1000;
    end(f, EPA_OK);
    assert_int_equal(f->result.n_missed, 0);
}

TEST_OF_TEN(a_run_that_failed_is_not_judged, VERB_BENCH)
{
    f->experiment.expect.median = "1ns";
    end(f, EPA_ERR_TIMEOUT);
    assert_int_equal(f->result.n_verdicts, 0);
    assert_int_equal(f->result.exit_code, EXIT_TIMEOUT);
    assert_string_equal(f->result.error, "because");
}

TEST(so_many_are_too_many)
{
    struct expect_options x = {.wrong = UINT32_MAX};
    struct expectation all[EXPECT_MOST];
    struct value_error error;
    char text[4096] = "";

    for (int i = 0; i < EXPECT_MOST; i++)
        strcat(text, i == 0 ? "1s" : ", 1s");
    x.max = text;
    assert_int_equal(expect_read(&x, EXPECT_MAX, all, &error), UINT32_MAX);
    assert_string_equal(error.what, "says too much");
    text[strlen(text) - 4] = '\0';
    assert_int_equal(expect_read(&x, EXPECT_MAX, all, &error), EXPECT_MOST - 1);
    memset(text, 'x', 200);
    text[200] = '\0';
    assert_int_equal(expect_read(&x, EXPECT_MAX, all, &error), UINT32_MAX);
    assert_string_equal(error.what, "is too long");
}

/* Why there are no more samples: the rule's word, or that all came. */
TEST(a_result_says_why_it_stopped)
{
    struct fake f;

    begin(&f, VERB_BENCH);
    end(&f, EPA_OK);
    assert_int_equal(f.result.stop, STOP_ITERATIONS);
    result_finish(&f.result);
    f.session.stop = STOP_TIME;
    f.experiment.bench.ci95 = 0.001;
    end(&f, EPA_OK);
    assert_int_equal(f.result.stop, STOP_TIME);
    assert_true(fabs(result_ci95(&f.result) - 14.0 / 310) < 1e-9); /* ranks 2 and 9 of 10 */
    fake_finish(&f);
    begin(&f, VERB_BENCH);
    session_rank(&f.session, 1)->samples = 7;
    end(&f, EPA_ERR_INTERRUPTED);
    assert_int_equal(f.result.stop, STOP_NOT);
    fake_finish(&f);
}
