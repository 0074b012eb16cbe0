/* The summary of several runs, as golden text in each form, and where its figures are from. */
#include <math.h>
#include "test.h"

#include "fake_session.h"

#include "report/summary.h"
#include "report/table.h"

struct sample {
    const char *who, *file, *id, *end;
    double dispatch, experts, combine, total;
    enum epa_status status;
    const char *error;
    int question, repetition;
    bool baseline;
};

static json_t *rows_of(const struct sample *sample, uint32_t n)
{
    json_t *rows = json_array();

    for (uint32_t i = 0; i < n; i++) {
        const struct sample *x = &sample[i];
        json_t *row = report_row(x->who, x->file, x->who, x->id);

        if (x->end != NULL)
            report_row_end(row, x->end, x->status, x->error);
        json_object_set_new(row, "dispatch_ns", json_number(x->dispatch > 0 ? x->dispatch : NAN));
        json_object_set_new(row, "experts_ns", json_number(x->experts > 0 ? x->experts : NAN));
        json_object_set_new(row, "combine_ns", json_number(x->combine > 0 ? x->combine : NAN));
        json_object_set_new(row, "total_ns", json_number(x->total > 0 ? x->total : NAN));
        json_object_set_new(row, "question", json_integer(x->question));
        json_object_set_new(row, "repetition", json_integer(x->repetition));
        json_object_set_new(row, "baseline", json_boolean(x->baseline));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *made_runs(void)
{
    static const struct sample of[] = {
        {"moe.topk=1", "a.yaml", "0123456789ab", REPORT_FAILED, .status = EPA_ERR_TIMEOUT,
         .error = "rank 1: dispatch | late"},
        {"moe.topk=2", "a.yaml", "0123456789ac", REPORT_OK, 1250, 0, 0, 10000},
        {"transport=ucx, far", "a.yaml", NULL, REPORT_SKIPPED, .status = EPA_ERR_UNSUPPORTED,
         .error = "no \"ucx\"\x1b here"},
        {"a label that is longer than any column of the table could ever be", "b.yaml",
         "0123456789ad", REPORT_OK, 2500, 0, 3000, 25000},
        {"c", "b.yaml", NULL, NULL},
    };
    json_t *rows = rows_of(of, LENGTH(of)), *wide = json_array_get(rows, 3);

    json_object_set_new(wide, "label", json_string("long"));
    json_object_set_new(wide, "samples", json_integer(200));
    json_object_set_new(wide, "stop", json_string("ci95"));
    json_object_set_new(wide, "ci95", json_real(0.0095));
    return rows;
}

TEST(the_table_is_this_one)
{
    static const char want[] =
        "#\n"
        "# 5 runs: 2 ok, 1 failed, 1 skipped, 1 not run\n"
        "# medians; ratio: total over that of moe.topk=2\n"
        "#\n"
        "# run                                             dispatch    combine      total      "
        "ratio\n"
        "#                                                     [us]       [us]       [us]\n"
        "  moe.topk=1                                             -          -          -          "
        "-  failed (timeout): rank 1: dispatch | late\n"
        "  moe.topk=2                                          1.25          -      10.00       "
        "1.00\n"
        "  transport=ucx, far                                     -          -          -          "
        "-  skipped: no \"ucx\"? here\n"
        "  a label that is longer than any column of the table could ever be\n"
        "                                                      2.50       3.00      25.00       "
        "2.50\n"
        "  c                                                      -          -          -          "
        "-  not run\n";
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    json_t *rows = made_runs();

    report_batch_text(file, &(struct report_batch){VERB_BENCH, rows, "declared", 0});
    fclose(file);
    json_decref(rows);
    assert_string_equal(text, want);
    free(text);
}

TEST(markdown_is_this)
{
    struct text text = {0};
    json_t *rows = made_runs();

    json_array_remove(rows, 4);
    json_array_remove(rows, 3);
    report_batch_markdown(&text, &(struct report_batch){VERB_BENCH, rows, "declared", 0});
    json_decref(rows);
    assert_string_equal(
        text.data, "| run | id | dispatch [us] | combine [us] | total [us] | end |\n"
                   "|---|---|---:|---:|---:|---|\n"
                   "| moe.topk=1 | 0123456789ab | - | - | - | failed (timeout): rank 1: dispatch "
                   "\\| late |\n"
                   "| moe.topk=2 | 0123456789ac | 1.25 | - | 10.00 | ok |\n"
                   "| transport=ucx, far |  | - | - | - | skipped: no \"ucx\"  here |\n");
    text_free(&text);
}

/* Ratios are within a question; the three runs of b are a line with the median and how far apart
 * they are; one that failed is told beside the others' figures. */
TEST(repetitions_are_one_line_and_ratios_within_a_question)
{
    static const struct sample of[] = {
        {"a n=1", "x", NULL, REPORT_OK, .total = 10000, .question = 1},
        {"a n=8", "x", NULL, REPORT_OK, .total = 40000, .question = 8},
        {"b n=1 #1", "x", NULL, REPORT_OK, .total = 22000, .question = 1, .repetition = 1},
        {"b n=1 #2", "x", NULL, REPORT_OK, .total = 20000, .question = 1, .repetition = 2},
        {"b n=1 #3", "x", NULL, REPORT_OK, .total = 19000, .question = 1, .repetition = 3},
        {"b n=8 #1", "x", NULL, REPORT_OK, .total = 20000, .question = 8, .repetition = 1,
         .baseline = true},
        {"b n=8 #2", "x", NULL, REPORT_FAILED, .status = EPA_ERR_DIED, .question = 8,
         .repetition = 2, .baseline = true},
    };
    struct text text = {0};
    json_t *rows = rows_of(of, LENGTH(of));

    report_batch_markdown(&text, &(struct report_batch){VERB_BENCH, rows, "declared", 0});
    json_decref(rows);
    assert_string_equal(
        text.data,
        "| run | id | dispatch [us] | combine [us] | total [us] | ratio | spread [%] | end |\n"
        "|---|---|---:|---:|---:|---:|---:|---|\n"
        "| a n=1 |  | - | - | 10.0 | 1.00 | - | ok |\n"
        "| a n=8 |  | - | - | 40.0 | 2.00 | - | ok |\n"
        "| b n=1 |  | - | - | 20.0 | 2.00 | 15.0 | ok |\n"
        "| b n=8 |  | - | - | 20.0 | 1.00 | - | 1 of 2 ok, failed (died) |\n"
        "\nRatio: total over that of the baseline, of runs that differ only in algorithm, "
        "transport, "
        "backend or launcher.\n");
    text_free(&text);
}

TEST(csv_is_this)
{
    struct text text = {0};
    json_t *rows = made_runs();

    report_batch_csv(&text, &(struct report_batch){VERB_BENCH, rows, "shuffled", 7});
    json_decref(rows);
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
    json_t *row = report_row("a", "a.yaml", "a", NULL);

    fake_measure(f, 200);
    fake_result(f, EPA_OK, NULL);
    report_row_fill(row, &f->session, f->result);
    assert_true(json_number_at(row, "dispatch_ns") == num(f, "stages.0.ns.median"));
    assert_true(json_number_at(row, "combine_ns") == num(f, "stages.1.ns.median"));
    assert_true(json_number_at(row, "total_ns") == num(f, "stages.2.ns.median"));
    assert_string_equal(json_text_at(row, "end"), REPORT_OK);
    json_decref(row);
}

/* Two halves of a stage are one figure: of the sums, as of the row total. */
TEST_OF_FAKE(halves_of_a_stage_are_one_figure, VERB_BENCH, 4, 200)
{
    json_t *row = report_row("a", "a.yaml", "a", NULL);

    fake_measure(f, 200);
    f->session.stage_kind[0] = EPA_STAGE_SEND;
    fake_result(f, EPA_OK, NULL);
    report_row_fill(row, &f->session, f->result);
    assert_true(isnan(json_number_at(row, "dispatch_ns")));
    assert_true(json_number_at(row, "combine_ns") == json_number_at(row, "total_ns"));
    json_decref(row);
}

/* ---- tables ---- */

static const struct table_column few[] = {
    {"name", "run", .digits = 6}, {"x", "time", "us", 1e3, 2, 8}, {"end", NULL}, {0}};

/* The last row has no time at all, the one before does not know it. */
static json_t *made_rows(void)
{
    return json_pack("[{s:s, s:f}, {s:s, s:f}, {s:s, s:n, s:s}, {s:s}]", "name", "a|b", "x", 1.5e3,
                     "name", "wide", "x", 1e15, "name", "no,", "x", "end", "late", "name", "none");
}

TEST(cells_keep_to_their_columns)
{
    json_t *made = made_rows();
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    table_text(file, few, made);
    fclose(file);
    assert_string_equal(text, "# run        time\n"
                              "#            [us]\n"
                              "  a|b        1.50\n"
                              "  wide   1.00e+12\n"
                              "  no,           -  late\n"
                              "  none\n");
    free(text);
    json_decref(made);
}

TEST(forms_of_a_table_differ_in_what_is_around_a_cell)
{
    json_t *made = made_rows();
    struct text text = {0};

    json_array_remove(made, 1);
    table_markdown(&text, few, made);
    assert_string_equal(text.data, "| run | time [us] |  |\n|---|---:|---|\n| a\\|b | 1.50 |  |\n"
                                   "| no, | - | late |\n| none |  |  |\n");
    text_free(&text);
    table_csv(&text, (const struct table_column[]){few[0], few[1], {0}}, made);
    assert_string_equal(text.data, "run,time\na|b,1.50\n\"no,\",\nnone,\n");
    text_free(&text);
    json_decref(made);
}
