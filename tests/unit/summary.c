/* The summary of several runs, as golden text in each form, and where its figures are from. */
#include <math.h>
#include "test.h"

#include "fake_session.h"

#include "report/summary.h"

#define LABEL(text) .who = text, .label = text
#define TIMES(dispatch, combine, total) \
    .dispatch_ns = dispatch, .experts_ns = NAN, .combine_ns = combine, .total_ns = total

static const struct report_row rows[] = {
    {LABEL("moe.topk=1"), .file = "a.yaml", .id = "0123456789ab", .end = REPORT_FAILED,
     .status = EPA_ERR_TIMEOUT, .error = "rank 1: dispatch | late", TIMES(NAN, NAN, NAN)},
    {LABEL("moe.topk=2"), .file = "a.yaml", .id = "0123456789ac", .end = REPORT_OK,
     TIMES(1250, NAN, 10000), .checked = 3, .compared = 4096},
    {LABEL("transport=ucx, far"), .file = "a.yaml", .end = REPORT_SKIPPED,
     .status = EPA_ERR_UNSUPPORTED, .error = "no \"ucx\"\x1b here", TIMES(NAN, NAN, NAN)},
    {.who = "a label that is longer than any column of the table could ever be",
     .label = "long",
     .file = "b.yaml",
     .id = "0123456789ad",
     .end = REPORT_OK,
     TIMES(2500, 3000, 25000),
     .samples = 200,
     .stop = STOP_CI95,
     .ci95 = 0.0095},
    {LABEL("c"), .file = "b.yaml", TIMES(NAN, NAN, NAN)},
};
enum { ROWS = LENGTH(rows) };

TEST(the_table_is_this_one)
{
    static const char want[] =
        "#\n"
        "# 5 runs: 2 ok, 1 failed, 1 skipped, 1 not run\n"
        "# medians; ratio: total over that of moe.topk=2\n"
        "#\n"
        "# run                                                      dispatch    combine      "
        "total      ratio\n"
        "#                                                              [us]       [us]       "
        "[us]\n"
        "  moe.topk=1                                               failed (timeout): rank 1: "
        "dispatch | late\n"
        "  moe.topk=2                                                   1.25          -      "
        "10.00       1.00\n"
        "  transport=ucx, far                                       skipped: no \"ucx\"? here\n"
        "  a label that is longer than any column of the table could ever be\n"
        "                                                               2.50       3.00      "
        "25.00       2.50\n"
        "  c                                                        not run\n";
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    report_batch_text(file, &(struct report_batch){VERB_BENCH, rows, ROWS, "declared", 0});
    fclose(file);
    assert_string_equal(text, want);
    free(text);
}

TEST(markdown_is_this)
{
    struct text text = {0};

    report_batch_markdown(&text, &(struct report_batch){VERB_BENCH, rows, 3, "declared", 0});
    assert_string_equal(
        text.data, "| run | id | dispatch [us] | combine [us] | total [us] | end |\n"
                   "|---|---|---:|---:|---:|---|\n"
                   "| moe.topk=1 | 0123456789ab | - | - | - | failed (timeout): rank 1: dispatch "
                   "\\| late |\n"
                   "| moe.topk=2 | 0123456789ac | 1.25 | - | 10.00 | ok |\n"
                   "| transport=ucx, far | - | - | - | - | skipped: no \"ucx\"  here |\n");
    text_free(&text);
}

/* Ratios are within a question; the three runs of b are a line with the median and how far apart they are; one that
 * failed is told beside the others' figures. */
TEST(repetitions_are_one_line_and_ratios_within_a_question)
{
    static const struct report_row of[] = {
        {LABEL("a n=1"), .file = "x", TIMES(NAN, NAN, 10000), .end = REPORT_OK, .question = 1},
        {LABEL("a n=8"), .file = "x", TIMES(NAN, NAN, 40000), .end = REPORT_OK, .question = 8},
        {LABEL("b n=1 #1"), .file = "x", TIMES(NAN, NAN, 22000), .end = REPORT_OK, .question = 1,
         .repetition = 1},
        {LABEL("b n=1 #2"), .file = "x", TIMES(NAN, NAN, 20000), .end = REPORT_OK, .question = 1,
         .repetition = 2},
        {LABEL("b n=1 #3"), .file = "x", TIMES(NAN, NAN, 19000), .end = REPORT_OK, .question = 1,
         .repetition = 3},
        {LABEL("b n=8 #1"), .file = "x", TIMES(NAN, NAN, 20000), .end = REPORT_OK, .question = 8,
         .repetition = 1, .baseline = true},
        {LABEL("b n=8 #2"), .file = "x", TIMES(NAN, NAN, NAN), .end = REPORT_FAILED,
         .status = EPA_ERR_DIED, .question = 8, .repetition = 2, .baseline = true},
    };
    struct text text = {0};

    report_batch_markdown(&text, &(struct report_batch){VERB_BENCH, of, LENGTH(of), "declared", 0});
    assert_string_equal(
        text.data,
        "| run | id | dispatch [us] | combine [us] | total [us] | ratio | spread [%] | end |\n"
        "|---|---|---:|---:|---:|---:|---:|---|\n"
        "| a n=1 | - | - | - | 10.0 | 1.00 | - | ok |\n"
        "| a n=8 | - | - | - | 40.0 | 2.00 | - | ok |\n"
        "| b n=1 | - | - | - | 20.0 | 2.00 | 15.0 | ok |\n"
        "| b n=8 | - | - | - | 20.0 | 1.00 | - | 1 of 2 ok, failed (died) |\n"
        "\nRatio: total over that of the baseline, of runs that differ only in algorithm, transport, "
        "backend or launcher.\n");
    text_free(&text);
}

TEST(csv_is_this)
{
    struct text text = {0};

    report_batch_csv(&text, &(struct report_batch){VERB_BENCH, rows, ROWS, "shuffled", 7});
    assert_string_equal(
        text.data,
        "file,label,id,dispatch_us,experts_us,combine_us,total_us,ratio,end,status,error,samples,"
        "stop,ci95\n"
        "a.yaml,moe.topk=1,0123456789ab,,,,,,failed,timeout,rank 1: dispatch | late,,,\n"
        "a.yaml,moe.topk=2,0123456789ac,1.250,,,10.000,1.00,ok,ok,,,,\n"
        "a.yaml,\"transport=ucx, far\",,,,,,,skipped,unsupported,\"no \"\"ucx\"\"\x1b here\",,,\n"
        "b.yaml,long,0123456789ad,2.500,,3.000,25.000,2.50,ok,ok,,200,ci95,0.009500\n"
        "b.yaml,c,,,,,,,not run,,,,,\n");
    text_free(&text);
}

TEST_OF_FAKE(figures_are_those_of_the_table, VERB_BENCH, 4, 200)
{
    struct report_row row = {.who = "a"};

    fake_measure(f, 200);
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_int_equal(report_row_fill(&row, &f->result, NULL), EPA_OK);
    assert_true(row.dispatch_ns == f->result.stage[0].slowest.median);
    assert_true(row.combine_ns == f->result.stage[1].slowest.median);
    assert_true(row.total_ns == f->result.stage[2].slowest.median);
    assert_int_equal(row.end, REPORT_OK);
}

/* Two halves of a stage are one figure: of the sums, as of the row total. */
TEST_OF_FAKE(halves_of_a_stage_are_one_figure, VERB_BENCH, 4, 200)
{
    struct report_row row = {.who = "a"};

    fake_measure(f, 200);
    f->session.stage_kind[0] = EPA_STAGE_SEND;
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_int_equal(report_row_fill(&row, &f->result, NULL), EPA_OK);
    assert_true(isnan(row.dispatch_ns));
    assert_true(row.combine_ns == row.total_ns);
}
