/* Tests of results and reports made from simulated sessions, for states that a real run cannot
 * produce on demand: the slowest rank per iteration, the first failed rank, warnings, and tables
 * with long names and extreme figures. tests/cli/results.py and stop.case recompute statistics,
 * rates, traffic, limits and expectations from real results and check documents against their
 * schema. */
#include "test.h"

#include <math.h>

#include "fake_session.h"

#include "base/sysfile.h"
#include "base/text.h"
#include "report/summary.h"
#include "report/report.h"

#include "report/rows.h"

static struct fake *fake_of(enum verb verb, uint32_t ranks, uint32_t iterations)
{
    static struct fake f;

    fake_init(&f, verb, ranks, iterations);
    return &f;
}

#define TEST_OF_FAKE(name, ...) TEST_OF(name, struct fake, f, fake_of(__VA_ARGS__), fake_finish)

static void assert_near(double is, double want)
{
    assert_true(fabs(is - want) <= 1e-9 * fabs(want));
}

/* ---- samples ---- */

TEST_OF_FAKE(a_sample_is_the_slowest_rank_of_its_iteration, VERB_BENCH, 3, 2)
{
    fake_measure(f, 2);
    *fake_time(f, 0, 0, 1) = 500000; /* rank 0 is the slowest once, in dispatch only */
    fake_result(f, EPA_OK, NULL);
    assert_int_equal(num(f, "stop.samples"), 2);
    assert_near(num(f, "stages.0.samples_ns.0"), 102000);
    assert_near(num(f, "stages.0.samples_ns.1"), 500000);
    assert_near(num(f, "stages.1.samples_ns.1"), 203000);
}

TEST_OF_FAKE(total_adds_up_within_a_rank_before_the_slowest_is_taken, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    *fake_time(f, 0, 0, 0) = 10;
    *fake_time(f, 1, 0, 0) = 1;
    *fake_time(f, 0, 1, 0) = 1;
    *fake_time(f, 1, 1, 0) = 9;
    fake_result(f, EPA_OK, NULL);
    assert_string_equal(words(f, "stages.2.name"), "total");
    assert_near(num(f, "stages.2.samples_ns.0"), 11); /* not 10 + 9 */
}

TEST_OF_FAKE(only_iterations_that_all_ranks_finished_count, VERB_BENCH, 4, 200)
{
    fake_measure(f, 60);
    session_rank(&f->session, 2)->samples = 57;
    fake_result(f, EPA_ERR_INTERRUPTED, "stopped by the user");
    assert_int_equal(num(f, "stop.samples"), 57);
    assert_int_equal(size(f, "stages.2.samples_ns"), 57);
}

TEST_OF_FAKE(skew_and_straggler_follow_from_the_total, VERB_BENCH, 4, 10)
{
    fake_measure(f, 10);
    *fake_time(f, 0, 1, 7) = 900000;
    fake_result(f, EPA_OK, NULL);
    /* 1 us per rank and stage: 3 ranks apart, two stages */
    assert_near(num(f, "skew.median_ns"), 6000);
    assert_int_equal(num(f, "skew.straggler"), 3);
    assert_near(num(f, "skew.straggler_share"), 0.9);
}

TEST_OF_FAKE(traffic_is_divided_by_its_own_iterations, VERB_BENCH, 2, 8)
{
    fake_measure(f, 8);
    for (uint32_t r = 0; r < 2; r++) {
        session_rank(&f->session, r)->traffic_n = 1; /* one set of inputs, used eight times */
        session_rank(&f->session, r)->traffic =
            (struct op_traffic){{{300, 100, 100, 0}, {300, 100, 100, 0}}, 0};
    }
    fake_result(f, EPA_OK, NULL);
    assert_near(num(f, "traffic.dispatch.needed_bytes"), 300);
    assert_near(num(f, "traffic.total.wire_bytes"), 200);
}

TEST_OF_FAKE(the_first_rank_that_failed_by_itself_explains, VERB_BENCH, 3, 5)
{
    session_rank(&f->session, 0)->status = EPA_ERR_ABORTED;
    session_rank(&f->session, 0)->failed_ns = 1;
    session_rank(&f->session, 1)->status = EPA_ERR_TIMEOUT;
    session_rank(&f->session, 1)->failed_ns = 30;
    strcpy(session_rank(&f->session, 1)->text, "later");
    session_rank(&f->session, 2)->status = EPA_ERR_TIMEOUT;
    session_rank(&f->session, 2)->failed_ns = 20;
    strcpy(session_rank(&f->session, 2)->text, "earlier");
    fake_result(f, EPA_ERR_TIMEOUT, "");
    assert_string_equal(words(f, "error.text"), "earlier");
}

TEST_OF_FAKE(a_peak_slower_than_the_result_is_dropped, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    fake_peaks(f);
    fake_result(f, EPA_OK, NULL);
    assert_false(json_is_true(json_at(f->result, "stages.0.beaten")));
    assert_near(num(f, "stages.0.peak_ns"), 1000000 / 100.0 + 2000);
    for (uint32_t r = 0; r < 2; r++)
        /* a value as with two ranks on one core */
        session_rank(&f->session, r)->peak.bytes_per_ns = 1e-3;
    fake_result(f, EPA_OK, NULL);
    assert_true(json_is_true(json_at(f->result, "stages.0.beaten")));
    assert_true(isnan(num(f, "stages.0.peak_ns")));
}

/* ---- expectations ---- */

/* A bound of `expect` is the bound of the figure of its name: a maximum of a time in ns, otherwise a
 * minimum. */
TEST(figures_have_the_digits_of_documents)
{
    struct stage_figures s = {.wire = 1.23456499951, .of_peak = NAN};

    s.ns.median = 1234.5678;
    figures_round(&s);
    assert_true(s.ns.median == 1235);
    /* Six digits of the value itself would be 1.23456. */
    assert_true(s.wire == 1.234565);
    assert_true(isnan(s.of_peak));
}

TEST(each_expectation_is_a_figure)
{
    for (const struct epa_option *o = expect_figures; o->name != NULL; o++) {
        const struct figure *figure = figure_find(o->name);

        assert_non_null(figure);
        assert_int_equal(o->type == EPA_OPTION_DURATION, figure->kind == FIGURE_NS);
        assert_int_equal(o->type == EPA_OPTION_DURATION, figure->better == FIGURE_SMALLER);
    }
}

/* ---- warnings ---- */

static bool warned(const struct fake *f, const char *what)
{
    const json_t *warning;
    bool found = false;
    size_t i;

    json_array_foreach(json_object_get(f->result, "warnings"), i, warning) found =
        found || strstr(json_string_value(warning), what) != NULL;
    return found;
}

/* A result with times of a GPU has no warning about the clock of the host; a result without times
 * has no warning about times. */
TEST(doubtful_conditions_cause_warnings)
{
    static const char *const said[] = {"4 ranks of 1 thread share 2 cores",
                                       "debug build",
                                       "EPA2A_ISA=avx9",
                                       "governor is \"powersave\"",
                                       "1 of 4 ranks are not pinned",
                                       "the first sample took 9200.0 us",
                                       "1 of 50 samples are outliers",
                                       "p99 of 50 samples is the maximum",
                                       "steps of 4000000 ns"};

    for (uint32_t i = 0; i < 3; i++) {
        struct fake f;

        fake_init(&f, i < 2 ? VERB_BENCH : VERB_RUN, 4, 50);
        fake_measure(&f, 50);
        f.notes.clock = i == 1 ? CLOCK_EVENTS : CLOCK_HOST;
        f.machine.cores = 2;
        f.machine.timer_ns = 4e6;
        f.machine.build.debug = true;
        f.machine.build.isa_refused = "avx9";
        strcpy(f.machine.governor, "powersave");
        session_rank(&f.session, 3)->core = -1;
        *fake_time(&f, 0, 0, 0) = 9e6;
        fake_result(&f, EPA_OK, NULL);
        for (uint32_t k = 0; k < LENGTH(said) - (i == 1); k++)
            assert_int_equal(warned(&f, said[k]), i < 2 || k == 2);
        assert_int_equal(size(&f, "warnings"), i == 0 ? 9 : i == 1 ? 8 : 1);
        fake_finish(&f);
    }
}

/* Outliers have a reason if the quota stopped ranks or is smaller than their threads need. */
TEST(a_short_cpu_quota_causes_a_warning)
{
    static const struct {
        struct cpu_quota quota;
        bool short_quota, stopped;
    } all[] = {{{0, 0, 0}, false, false},
               {{4, 0, 0}, false, false},
               {{0.5, 0, 0}, true, false},
               {{8, 3, 25000000}, true, true}};

    for (uint32_t i = 0; i < LENGTH(all); i++) {
        struct fake f;

        fake_init(&f, VERB_BENCH, 4, 200);
        fake_measure(&f, 200);
        f.quota = all[i].quota;
        for (uint32_t r = 0; r < 4; r++)
            session_rank(&f.session, r)->local_size = session_rank(&f.session, r)->local_cores = 4;
        *fake_time(&f, 0, 0, 9) = 9e6;
        fake_result(&f, EPA_OK, NULL);
        assert_int_equal(warned(&f, "cores' worth of time"), all[i].short_quota);
        assert_int_equal(warned(&f, "3 times, and ranks were stopped for 25 ms"), all[i].stopped);
        assert_int_equal(warned(&f, "1 of 200 samples are outliers"), true);
        assert_int_equal(warned(&f, "the CPU quota stopped ranks"), all[i].stopped);
        assert_int_equal(warned(&f, "other programs may have run"), !all[i].stopped);
        assert_true(all[i].quota.cores > 0
                        ? num(&f, "cpu_quota.stops") == (double)all[i].quota.stops
                        : json_is_null(json_object_get(f.result, "cpu_quota")));
        fake_finish(&f);
    }
}

/* Ranks bound to a core each do not share cores, whatever the affinity of rank 0 is. Otherwise the
 * warning names the node with the fewest cores. */
TEST(shared_cores_cause_a_warning)
{
    for (uint32_t bound = 0; bound < 2; bound++) {
        struct fake f;

        fake_init(&f, VERB_BENCH, 4, 200);
        fake_measure(&f, 200);
        f.machine.cores = 1;
        for (uint32_t r = 0; r < 4; r++) {
            session_rank(&f.session, r)->local_size = bound != 0 ? 4 : 2;
            session_rank(&f.session, r)->local_cores = bound != 0 ? 4 : r < 2 ? 8 : 1;
        }
        fake_result(&f, EPA_OK, NULL);
        assert_int_equal(warned(&f, " share "), bound == 0);
        assert_int_equal(size(&f, "warnings"), bound == 0); /* and no other warning */
        assert_int_equal(warned(&f, "2 ranks of 1 thread share 1 core:"), bound == 0);
        fake_finish(&f);
    }
}

/* ---- the table of a result ---- */

static char *table_of(const struct fake *f)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    report_table(file, &f->result_of_run, &f->facts);
    fclose(file);
    return text;
}

/* Reports need no memory of the ranks. */
TEST(a_result_outlives_its_session)
{
    struct fake f;
    char *before, *after;
    json_t *document;

    fake_init(&f, VERB_BENCH, 4, 200);
    fake_measure(&f, 200);
    fake_peaks(&f);
    fake_result(&f, EPA_OK, NULL);
    before = table_of(&f);
    memset(f.session.block, 0x5a, 4 * f.session.block_bytes);
    memset(&f.notes, 0x5a, sizeof(f.notes));
    memset(&f.routing, 0x5a, sizeof(f.routing));
    memset(&f.experiment, 0, sizeof(f.experiment));
    after = table_of(&f);
    assert_string_equal(before, after);
    document = result_json(&f.result_of_run, &f.facts);
    assert_true(json_equal(document, f.result));
    json_decref(document);
    free(before);
    free(after);
    fake_finish(&f);
}

/* Lines stay within 100 columns with long names, huge times and missing times. */
TEST(tables_fit_100_columns_and_missing_values_are_dashes)
{
    for (uint32_t i = 0; i < 3; i++) {
        struct fake f;
        char *table;

        fake_init(&f, VERB_BENCH, 64, 200);
        f.experiment.name = "a name that a careful person gave to an experiment so that nobody "
                            "could ever confuse it with another one of the same kind";
        strcpy(f.notes.stage[0], "a_stage_with_as_long_a_name_as"); /* the longest possible name */
        if (i < 2)
            fake_measure(&f, 200);
        for (uint32_t r = 0; r < 64; r++) {
            session_rank(&f.session, r)->core = (int32_t)(r * 37 % 64);
            *fake_time(&f, 0, r, 7) = 9.9e12;
        }
        if (i == 1)
            fake_peaks(&f);
        fake_result(&f, i < 2 ? EPA_OK : EPA_ERR_DIED, i < 2 ? NULL : "rank 1 was killed");
        table = table_of(&f);
        for (const char *at = table; *at != 0; at += strcspn(at, "\n") + 1)
            if (strcspn(at, "\n") > 100)
                fail_msg("%.*s", (int)strcspn(at, "\n"), at);
        if (i == 2)
            assert_words(table,
                         "\n  total .. - .. - .. - .. - .. - .. - .. -\n .. # 0 of 200 samples "
                         ".. # ended early: died (exit 5): rank 1 was killed\n");
        assert_null(strstr(table, "nan"));
        free(table);
        fake_finish(&f);
    }
}

/* ---- the summary of several runs ---- */

/* Ratios compare only runs with the same question. The three runs of b are one line with their
 * median and spread; a failed run is listed beside the figures of the others. Labels contain no
 * control characters. */
TEST(repetitions_are_one_line_and_ratios_within_a_question)
{
    static const struct {
        const char *label, *end;
        double total;
        const char *question;
        uint32_t repetition;
        bool baseline;
    } of[] = {
        {"a\x1b n=1", REPORT_OK, 10000, "1", 0, 0},  {"a n=8", REPORT_OK, 40000, "8", 0, 0},
        {"b n=1 #1", REPORT_OK, 22000, "1", 1, 0},   {"b n=1 #2", REPORT_OK, 20000, "1", 2, 0},
        {"b n=1 #3", REPORT_OK, 19000, "1", 3, 0},   {"b n=8 #1", REPORT_OK, 20000, "8", 1, 1},
        {"b n=8 #2", REPORT_FAILED, NAN, "8", 2, 1},
    };
    struct text text = {0};
    struct report_row rows[LENGTH(of)];

    for (size_t i = 0; i < LENGTH(of); i++) {
        struct report_row *row = &rows[i];

        report_row(row, of[i].label, "a.yaml", of[i].label, NULL);

        report_row_end(row, of[i].end, strcmp(of[i].end, REPORT_OK) == 0 ? EPA_OK : EPA_ERR_DIED,
                       NULL);
        row->time_ns[ROW_DISPATCH] = i == 0 ? 1250 : NAN;
        row->time_ns[ROW_TOTAL] = of[i].total;
        row->question = of[i].question;
        row->repetition = of[i].repetition;
        row->baseline = of[i].baseline;
    }
    report_batch_markdown(&text,
                          &(struct report_batch){VERB_BENCH, rows, LENGTH(of), "declared", 0});
    assert_words(
        text.data,
        "| run | id | dispatch [us] | combine [us] | total [us] | ratio | spread [%] | end |"
        "\n|---|---|---:|---:|---:|---:|---:|---|\n"
        "| a  n=1 |  | 1.25 | - | 10.00 | 1.00 | - | ok |\n"
        "| a n=8 |  | - | - | 40.00 | 2.00 | - | ok |\n"
        "| b n=1 |  | - | - | 20.00 | 2.00 | 15.0 | ok |\n"
        "| b n=8 |  | - | - | 20.00 | 1.00 | - | 1 of 2 ok, failed (died) |\n"
        "\nRatio: total / total of the baseline");
    text_free(&text);
}
