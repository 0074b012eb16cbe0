/* Expectations of results made by hand: what meets them, and in which words they are missed. */
#include <math.h>
#include "test.h"

#include "fake_session.h"

#include "base/exit_code.h"
#include "report/result.h"

enum { SECOND = 1000000000 };

/* Ten samples of two ranks; median of dispatch 105 us, of combine 205 us, of total 310 us. */
static void begin(struct fake *f, enum verb verb)
{
    fake_init(f, verb, 2, 10);
    if (verb != VERB_VERIFY) /* which has no room for times */
        fake_measure(f, 10);
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
    fake_result(f, status, status == EPA_OK ? NULL : "because");
}

static const json_t *verdict(const struct fake *f, uint32_t i)
{
    return json_array_get(json_object_get(f->result, "expect"), i);
}

static bool is_met(const struct fake *f, uint32_t i)
{
    return json_is_true(json_object_get(verdict(f, i), "met"));
}

static uint32_t missed(const struct fake *f)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < size(f, "expect"); i++)
        n += !is_met(f, i);
    return n;
}

TEST_OF_TEN(a_bare_bound_is_of_the_last_row, VERB_BENCH)
{
    f->experiment.expect.last.median = 310000;
    end(f, EPA_OK);
    assert_int_equal(size(f, "expect"), 1);
    assert_string_equal(words(f, "expect.0.stage"), "total");
    assert_true(is_met(f, 0)); /* what is just as much is met */
    assert_int_equal(num(f, "exit_code"), EXIT_OK);
    assert_string_equal(words(f, "error.text"), "");
}

TEST_OF_TEN(what_is_missed_is_reported_with_how_much, VERB_BENCH)
{
    char text[256];

    struct expect_row row[] = {{"dispatch", EXPECT_ANY}, {"combine", EXPECT_ANY}};

    row[0].bounds.median = 1000000000;
    row[1].bounds.median = 100000;
    f->experiment.expect.row = row;
    f->experiment.expect.n_rows = LENGTH(row);
    f->experiment.expect.last.median = 248000;
    end(f, EPA_OK);
    assert_string_equal(words(f, "status"), "missed");
    assert_int_equal(num(f, "exit_code"), EXIT_WRONG);
    assert_int_equal(missed(f), 2);
    assert_string_equal(words(f, "error.text"),
                        "expected total median <= 248 us, it is 310 us (+25.0 %), and 1 more");
    assert_true(is_met(f, 1));
    assert_string_equal(verdict_wanted(verdict(f, 0), text, sizeof(text)),
                        "total median <= 248 us");
    assert_string_equal(verdict_found(f->result, verdict(f, 0), text, sizeof(text)),
                        "310 us (+25.0 %)");
}

TEST_OF_TEN(each_figure_is_the_one_of_its_name, VERB_BENCH)
{
    static const char *const want[] = {"stages.2.ns.min",
                                       "stages.2.ns.median",
                                       "stages.2.ns.p95",
                                       "stages.2.ns.p99",
                                       NULL /* of so few samples */,
                                       "stages.2.ns.max",
                                       "stages.2.ns.mean",
                                       "stages.0.rate.goodput",
                                       "stages.1.rate.wire",
                                       "stages.2.rate.bottleneck",
                                       "stages.2.of_peak"};

    struct expect_row row[] = {{"dispatch", EXPECT_ANY}, {"combine", EXPECT_ANY}};

    row[0].bounds.goodput = row[1].bounds.wire = 1;
    f->experiment.expect = (struct expect_options){
        .last = {SECOND, SECOND, SECOND, SECOND, SECOND, SECOND, SECOND, -1, -1, 1, 0.01},
        .wrong = UINT32_MAX,
        .row = row,
        .n_rows = LENGTH(row)};
    fake_peaks(f);
    end(f, EPA_OK);
    assert_int_equal(size(f, "expect"), LENGTH(want));
    for (uint32_t i = 0; i < LENGTH(want); i++) {
        assert_string_equal(json_text_at(verdict(f, i), "figure"), expect_figures[i].name);
        assert_int_equal(is_met(f, i), want[i] != NULL);
        assert_true(want[i] == NULL ||
                    json_number_at(verdict(f, i), "measured") == num(f, want[i]));
    }
}

TEST_OF_TEN(what_is_not_known_misses, VERB_BENCH)
{
    struct expect_row row = {"dispatch", EXPECT_ANY};

    row.bounds.of_peak = 0;
    f->experiment.expect.row = &row;
    f->experiment.expect.n_rows = 1;
    f->experiment.expect.wrong = 0;
    end(f, EPA_OK);
    assert_int_equal(missed(f), 2); /* nothing was compared */
    assert_string_equal(words(f, "error.text"),
                        "expected dispatch >= 0 % of its limit, it is not known: the "
                        "transport does not measure what its links can do, and 1 more");
}

TEST_OF_TEN(wrong_wants_data_that_was_compared, VERB_BENCH)
{
    f->experiment.expect.wrong = 0;
    session_rank(&f->session, 1)->compared = 1000;
    end(f, EPA_OK);
    assert_int_equal(missed(f), 0);
}

TEST_OF_TEN(a_run_that_failed_is_not_judged, VERB_BENCH)
{
    f->experiment.expect.last.median = 1;
    end(f, EPA_ERR_TIMEOUT);
    assert_int_equal(size(f, "expect"), 0);
    assert_int_equal(num(f, "exit_code"), EXIT_TIMEOUT);
    assert_string_equal(words(f, "error.text"), "because");
}

/* Why there are no more samples: the rule's word, or that all came. */
TEST(a_result_says_why_it_stopped)
{
    struct fake f;

    begin(&f, VERB_BENCH);
    end(&f, EPA_OK);
    assert_string_equal(words(&f, "stop.reason"), "iterations");
    f.session.stop = STOP_TIME;
    f.experiment.bench.ci95 = 0.001;
    end(&f, EPA_OK);
    assert_string_equal(words(&f, "stop.reason"), "time");
    assert_true(fabs(num(&f, "stop.ci95") - 14.0 / 310) < 1e-9); /* ranks 2 and 9 of 10 */
    fake_finish(&f);
    begin(&f, VERB_BENCH);
    session_rank(&f.session, 1)->samples = 7;
    end(&f, EPA_ERR_INTERRUPTED);
    assert_string_equal(words(&f, "stop.reason"), "");
    fake_finish(&f);
}
