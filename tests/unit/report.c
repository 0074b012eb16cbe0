/* The table as golden text, and the JSON read back. In the folder
 * EPA2A_TEST_DOCUMENTS it leaves documents that tests/cli/schema.py holds against the schema. */
#include "test.h"
#include <jansson.h>

#include "fake_session.h"

#include "base/file.h"
#include "base/json.h"
#include "report/summary.h"

static char *table_of(const struct fake *f)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    report_table(file, &f->session, f->result);
    fclose(file);
    return text;
}

TEST_OF_FAKE(the_table_of_a_bench_has_all_figures, VERB_BENCH, 4, 200)
{
    char *table;

    fake_measure(f, 200);
    fake_result(f, EPA_OK, NULL);
    table = table_of(f);
    assert_words(
        table,
        "# epa2a bench: a fake\n .. ll_fake (buffers 2) .. shm .. host\n .. max_tokens 128, hidden "
        "7168, experts 256, topk 8 .. 128 .. zipf (exponent 1.5 .. 4 ranks by fork .. cores 0-3; "
        "seed 1\n .. Some CPU @ 2.60GHz, 64 cores, 24.0 GiB, Linux 6.1.0, node1\n .. 0.1.0, gcc "
        "12.2.0, release, avx512");
    assert_words(
        table,
        "# stage .. min .. median .. p95 .. p99 .. max .. goodput .. wire .. "
        "# .. [us] .. [us] .. [us] .. [us] .. [us] .. [GB/s] .. [GB/s] .. [GB/s]\n .. "
        "dispatch .. 103.0 .. 202.0 .. 292.0 .. 300.0 .. 302.0 .. 14.85 .. 4.95 .. 9.90\n .. "
        "combine .. 203.0 .. 302.0 .. 392.0 .. 400.0 .. 402.0 .. 9.93 .. 3.31 .. 6.62\n .. "
        "total .. 306.0 .. 504.0 .. 684.0 .. 700.0 .. 704.0 .. 11.90 .. 3.97 .. 7.94\n");
    assert_words(
        table,
        "# 200 of 200 samples after 20 .. 505.0 us .. 115.8 (cv 22.9 %) .. 100.0, 0 outliers\n "
        ".. 476.0 "
        "to 534.0 us, 11.51 % .. 900.0 us .. 6.0 us .. rank 3 .. 100 %");
    assert_words(
        table,
        "# dispatch: .. 2.86 MiB .. 976.6 KiB .. 1.91 MiB .. # combine: .. 2.86 MiB .. 976.6 KiB "
        ".. 1.91 "
        "MiB .. 51,200 tokens, 409,600 choices, 0 dropped in 200 .. min 2, mean 8.0, max 17, "
        "imbalance "
        "2.12 .. min 900, mean 1024.0, max 1150, imbalance 1.10");
    free(table);
}

TEST_OF_FAKE(who_started_ranks_and_on_which_nodes_is_said, VERB_BENCH, 3, 5)
{
    char *table;

    fake_measure(f, 5);
    strcpy(f->session.process_id.source, "Open MPI: rank 0 of 3");
    for (uint32_t r = 0; r < 3; r++) {
        session_rank(&f->session, r)->node = r % 2;
        strcpy(session_rank(&f->session, r)->host, r % 2 == 0 ? "a" : "b");
    }
    fake_result(f, EPA_OK, NULL);
    table = table_of(f);
    assert_non_null(strstr(table, "# found: Open MPI: rank 0 of 3\n"
                                  "# 2 nodes: a (ranks 0, 2), b (ranks 1)\n"));
    free(table);
}

TEST_OF_FAKE(the_table_of_graphs_has_limits_and_what_is_not_known, VERB_BENCH, 4, 200)
{
    char *table;

    fake_graphs(f, 200);
    fake_peaks(f);
    fake_fact(f, 0, "device", "NVIDIA H200");
    fake_fact(f, 0, "driver", "580.159.04");
    fake_fact(f, 0, "clock", "1980 MHz");
    fake_fact(f, 1, "device", "not told");
    f->session.not_alone[FIGURE_COMBINE] = true;
    for (uint32_t r = 0; r < 4; r++)
        session_rank(&f->session, r)->compared = 300;
    fake_result(f, EPA_OK, NULL);
    table = table_of(f);
    assert_words(
        table,
        "# rank 0's device NVIDIA H200, driver 580.159.04, clock 1980 MHz\n .. 100.0 GB/s .. "
        "2.00 us");
    assert_words(
        table,
        "dispatch .. 103.0 .. 202.0 .. 292.0 .. 300.0 .. 302.0 .. 14.85 .. 4.95 .. 9.90 .. 12.0 "
        ".. 5.9\n .. "
        "combine .. - .. - .. - .. - .. - .. - .. - .. - .. 12.0 .. -\n .. "
        "total .. 253.0 .. 352.0 .. 442.0 .. 450.0 .. 452.0 .. 17.05 .. 5.68 .. 11.36 .. 24.0 .. "
        "6.8\n");
    assert_words(
        table,
        "graph of 20 calls .. cache warm .. ll_fake cannot combine twice .. 200 of 200 samples");
    assert_words(table, "checked: 1,200 elements, 0 wrong");
    free(table);
}

TEST_OF_FAKE(tables_fit_100_columns, VERB_BENCH, 64, 200)
{
    char *table;

    fake_measure(f, 200);
    f->experiment.name = "a name that a careful person gave to an experiment so that nobody "
                         "could ever confuse it with another one of the same kind";
    f->session.stage[0] = "a_stage_with_a_name_beyond_all_measure";
    for (uint32_t r = 0; r < 64; r++) {
        session_rank(&f->session, r)->core = (int32_t)(r * 37 % 64);
        *fake_time(f, 0, r, 7) = 9.9e12;
    }
    for (uint32_t limits = 0; limits < 2; limits++) {
        if (limits != 0)
            fake_peaks(f);
        fake_result(f, EPA_OK, NULL);
        table = table_of(f);
        for (const char *at = table; *at != 0; at += strcspn(at, "\n") + 1)
            if (strcspn(at, "\n") > 100)
                fail_msg("%.*s", (int)strcspn(at, "\n"), at);
        free(table);
    }
}

TEST_OF_FAKE(what_was_not_measured_is_a_dash, VERB_BENCH, 2, 200)
{
    char *table;

    fake_result(f, EPA_ERR_DIED, "rank 1 was killed by signal 9");
    table = table_of(f);
    assert_words(table, "\n  total .. - .. - .. - .. - .. - .. - .. -\n");
    assert_non_null(strstr(table, "# 0 of 200 samples"));
    assert_non_null(strstr(table, "# ended early: died (exit 5): rank 1 was killed by "
                                  "signal 9\n"));
    assert_null(strstr(table, "nan"));
    free(table);
}

TEST_OF_FAKE(names_do_not_move_the_cursor, VERB_BENCH, 1, 1)
{
    char *table;

    f->experiment.name = "two\nlines and \x1b[31mred";
    fake_result(f, EPA_OK, NULL);
    table = table_of(f);
    assert_non_null(strstr(table, "# epa2a bench: two?lines and ?[31mred\n"));
    free(table);
}

/* ---- JSON ---- */

/* Writes the one result and reads it back. */
static json_t *json_of(const struct fake *f)
{
    json_auto_t *written = report_document(json_pack("[O]", f->result), NULL);
    struct text text = {0};
    json_t *document;

    json_write(&text, written, JSON_INDENT(1) | JSON_DIGITS);
    document = json_loadb(text.data, text.bytes, JSON_REJECT_DUPLICATES, NULL);
    text_free(&text);
    assert_non_null(document);
    return document;
}

static json_int_t int_at(const json_t *document, const char *path)
{
    assert_true(json_is_integer(json_at(document, path)));
    return json_integer_value(json_at(document, path));
}

static const char *text_at(const json_t *document, const char *path)
{
    assert_true(json_is_string(json_at(document, path)));
    return json_string_value(json_at(document, path));
}

TEST(json_holds_every_sample_and_whole_nanoseconds)
{
    struct fake f;
    json_t *document;

    fake_init(&f, VERB_BENCH, 4, 200);
    fake_measure(&f, 200);
    *fake_time(&f, 0, 3, 1) = 104000.6;
    fake_result(&f, EPA_OK, NULL);
    document = json_of(&f);
    assert_int_equal(int_at(document, "schema"), 1);
    assert_int_equal(json_array_size(json_at(document, "results.0.stages.2.samples_ns")), 200);
    assert_int_equal(int_at(document, "results.0.stages.0.samples_ns.1"), 104001);
    assert_string_equal(text_at(document, "results.0.stages.2.name"), "total");
    assert_int_equal(int_at(document, "results.0.stages.2.ns.median"), 504000);
    assert_int_equal(int_at(document, "results.0.stages.2.ranks.1.median_ns"), 500000);
    assert_int_equal(int_at(document, "results.0.skew.straggler"), 3);
    assert_int_equal(int_at(document, "results.0.world.ranks.3.pid"), 1003);
    assert_int_equal(int_at(document, "results.0.exit_code"), 0);
    assert_string_equal(text_at(document, "results.0.status"), "ok");
    assert_string_equal(text_at(document, "results.0.started"), "1970-01-01T00:00:01Z");
    assert_true(json_is_null(json_at(document, "results.0.error")));
    assert_true(json_is_false(json_at(document, "results.0.machine.build.debug")));
    json_decref(document);
    fake_finish(&f);
}

TEST(json_is_complete_whatever_happened)
{
    static const struct {
        enum epa_status status;
        const char *want, *cause;
        int exit_code;
    } end[] = {{EPA_ERR_TIMEOUT, "timeout", "timeout", 4},
               {EPA_ERR_DIED, "died", "died", 5},
               {EPA_ERR_INTERRUPTED, "interrupted", "interrupted", 130},
               {EPA_ERR_MISMATCH, "mismatch", "mismatch", 1},
               {EPA_ERR_NOMEM, "failed", "nomem", 3},
               {EPA_ERR_ABORTED, "failed", "aborted", 6}};

    for (size_t i = 0; i < LENGTH(end); i++) {
        struct fake f;
        json_t *document;

        fake_init(&f, VERB_BENCH, 2, 200);
        fake_result(&f, end[i].status, "because");
        document = json_of(&f);
        assert_string_equal(text_at(document, "results.0.status"), end[i].want);
        assert_string_equal(text_at(document, "results.0.error.status"), end[i].cause);
        assert_string_equal(text_at(document, "results.0.error.text"), "because");
        assert_int_equal(int_at(document, "results.0.exit_code"), end[i].exit_code);
        assert_true(json_is_null(json_at(document, "results.0.stages.0.ns.median")));
        assert_true(json_is_null(json_at(document, "results.0.stages.0.rate.bottleneck")));
        assert_true(json_is_null(json_at(document, "results.0.skew")));
        assert_int_equal(json_array_size(json_at(document, "results.0.stages.0.samples_ns")), 0);
        json_decref(document);
        fake_finish(&f);
    }
}

TEST(text_that_is_no_utf8_is_made_so)
{
    struct fake f;
    json_t *document;

    fake_init(&f, VERB_BENCH, 1, 1);
    fake_machine_set(f.facts.machine, NULL, "host", json_text("caf\xe9"));
    fake_result(&f, EPA_ERR_SYSTEM, "\xff\xfe broke");
    document = json_of(&f);
    assert_string_equal(text_at(document, "results.0.machine.host"), "caf?");
    assert_string_equal(text_at(document, "results.0.error.text"), "?? broke");
    json_decref(document);
    fake_finish(&f);
}

/* ---- documents for the schema ---- */

static int write_document(const char *folder, const char *name, struct fake *f,
                          enum epa_status status)
{
    json_t *rows = json_array();
    json_t *results = json_array(), *document;
    struct text text = {0};
    char path[1024];
    int failed;

    snprintf(path, sizeof(path), "%s/%s.json", folder, name);
    fake_result(f, status, "in words");
    json_array_append_new(results, json_incref(f->result));
    json_array_append_new(rows, report_row("a", "a.yaml", "a", "0123456789ab"));
    json_array_append_new(rows, report_row("b", "a.yaml", "b", NULL));
    json_array_append_new(rows, report_row("c", "a.yaml", "c", NULL));
    report_row_fill(json_array_get(rows, 0), &f->session, f->result);
    report_row_end(json_array_get(rows, 1), REPORT_SKIPPED, EPA_ERR_UNSUPPORTED, "no \xff");
    document =
        report_document(results, &(struct report_batch){f->session.verb, rows, "shuffled", 7});
    json_write(&text, document, JSON_INDENT(1) | JSON_DIGITS);
    json_decref(document);
    failed = file_write("--json", path, false, &text, NULL) != EPA_OK;
    text_free(&text);
    json_decref(rows);
    fake_finish(f);
    return failed;
}

static int write_documents(const char *folder)
{
    struct fake f;
    int failed = 0;

    fake_init(&f, VERB_BENCH, 64, 200);
    fake_measure(&f, 200);
    failed |= write_document(folder, "bench", &f, EPA_OK);
    fake_init(&f, VERB_BENCH, 2, 200);
    fake_graphs(&f, 200);
    fake_peaks(&f);
    fake_fact(&f, 0, "device", "NVIDIA H200");
    f.session.not_alone[FIGURE_COMBINE] = true;
    failed |= write_document(folder, "graph", &f, EPA_OK);
    fake_init(&f, VERB_RUN, 1, 10);
    fake_measure(&f, 10);
    failed |= write_document(folder, "run", &f, EPA_OK);
    fake_init(&f, VERB_VERIFY, 2, 50);
    failed |= write_document(folder, "verify", &f, EPA_ERR_MISMATCH);
    fake_init(&f, VERB_BENCH, 2, 200);
    fake_measure(&f, 57);
    session_rank(&f.session, 1)->samples = 56;
    failed |= write_document(folder, "interrupted", &f, EPA_ERR_INTERRUPTED);
    fake_init(&f, VERB_BENCH, 2, 200);
    json_decref(f.facts.machine);
    f.facts.machine = facts_collect("/none"); /* of which nothing is known */
    session_rank(&f.session, 0)->core = -1;
    session_rank(&f.session, 1)->status = EPA_ERR_TIMEOUT;
    failed |= write_document(folder, "nothing", &f, EPA_ERR_TIMEOUT);
    return failed;
}

TEST(documents_for_the_schema)
{
    const char *folder = getenv("EPA2A_TEST_DOCUMENTS");

    if (folder != NULL)
        assert_int_equal(write_documents(folder), 0);
}

TEST(a_path_leads_through_objects_and_lists)
{
    json_t *document = json_pack("{s:{s:[i, {s:s}]}}", "a", "b", 7, "c", "d");

    assert_true(json_number_at(document, "a.b.0") == 7);
    assert_string_equal(json_text_at(document, "a.b.1.c"), "d");
    assert_string_equal(json_text_at(document, "a.b.0"), "");
    assert_null(json_at(document, "a.b.2"));
    assert_null(json_at(document, "a.x.0"));
    json_decref(document);
}
