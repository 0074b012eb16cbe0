/* Runs of a file: which there are, in which order, what they are called and what they say. */
#include "files.h"

#include "config/batch.h"
#include "config/diag.h"
#include "fake_registry.h"
#include "base/text.h"

#define SMALL "version: 1\nmoe: {hidden: 128, experts: 8, topk: 2, fp8_group_size: 64}\n"

static struct batch *read_text(const char *text, const char *const *sets)
{
    struct diag *diag = diag_create();
    struct batch *batch = NULL;

    write_file("a.yaml", text);
    if (batch_read("a.yaml", sets, count_sets(sets), BATCH_RUNS_MOST, NULL, diag, &batch) != EPA_OK)
        diag_print(diag, stderr);
    assert_non_null(batch);
    diag_destroy(diag);
    return batch;
}

/* What is said of it. */
static char *refuse(const char *text, const char *const *sets, uint32_t most)
{
    struct diag *diag = diag_create();
    struct batch *batch = NULL;
    char *out = NULL;
    size_t bytes = 0;
    FILE *file;

    write_file("a.yaml", text);
    assert_int_equal(batch_read("a.yaml", sets, count_sets(sets), most, NULL, diag, &batch),
                     EPA_ERR_CONFIG);
    assert_null(batch);
    file = open_memstream(&out, &bytes);
    diag_print(diag, file);
    fclose(file);
    diag_destroy(diag);
    return out;
}

/* "label|label|". */
static void assert_labels(const struct batch *batch, const char *want)
{
    struct text have = {0};

    for (uint32_t i = 0; i < batch->n; i++)
        text_add(&have, "%s|", batch->run[i].label);
    assert_string_equal(have.data, want);
    text_free(&have);
}

TEST(a_file_without_runs_is_one)
{
    struct batch *batch = read_text(SMALL "name: mine\n", NULL);

    assert_labels(batch, "mine|");
    assert_null(batch->run[0].x->label);
    assert_int_equal(strlen(batch->run[0].x->id), 12);
    batch_destroy(batch);
}

TEST(a_matrix_is_every_combination_the_last_list_fastest)
{
    struct batch *batch =
        read_text(SMALL "matrix:\n  moe.topk: [1, 2]\n  moe: {max_tokens: [4, 8, 16]}\n", NULL);

    assert_labels(batch, "moe.topk=1 moe.max_tokens=4|moe.topk=1 moe.max_tokens=8|"
                         "moe.topk=1 moe.max_tokens=16|moe.topk=2 moe.max_tokens=4|"
                         "moe.topk=2 moe.max_tokens=8|moe.topk=2 moe.max_tokens=16|");
    assert_int_equal(batch->run[4].x->moe.topk, 2);
    assert_int_equal(batch->run[4].x->moe.max_tokens, 8);
    assert_int_equal(batch->run[4].x->moe.hidden, 128);
    assert_string_equal(batch->run[4].x->label, batch->run[4].label);
    batch_destroy(batch);
}

TEST(exclude_goes_before_include)
{
    struct batch *batch =
        read_text(SMALL "matrix:\n  moe.topk: [1, 2]\n  moe.max_tokens: [4, 8]\n"
                        "  exclude: [{moe.topk: 1, moe: {max_tokens: 8}}, {moe.topk: 2}]\n"
                        "  include: [{moe.topk: 2, moe.max_tokens: 8}, {moe: {max_tokens: 3}}]\n",
                  NULL);

    assert_labels(batch, "moe.topk=1 moe.max_tokens=4|moe.topk=2 moe.max_tokens=8|"
                         "moe={max_tokens: 3}|");
    assert_int_equal(batch->run[2].x->moe.max_tokens, 3);
    assert_int_equal(batch->run[2].x->moe.topk, 2);
    batch_destroy(batch);
}

TEST(lists_of_zip_go_together)
{
    struct batch *batch = read_text(
        SMALL "zip: {ranks: [2, 4], moe.experts: [8, 16]}\nmatrix: {moe.topk: [1, 2]}\n", NULL);

    assert_labels(batch, "moe.topk=1 ranks=2 moe.experts=8|"
                         "moe.topk=1 ranks=4 moe.experts=16|"
                         "moe.topk=2 ranks=2 moe.experts=8|"
                         "moe.topk=2 ranks=4 moe.experts=16|");
    assert_int_equal(batch->run[3].x->ranks, 4);
    assert_int_equal(batch->run[3].x->moe.experts, 16);
    batch_destroy(batch);
}

TEST(named_runs_build_on_each_other)
{
    struct batch *batch =
        read_text(SMALL "runs:\n  plain:\n  few: {moe.max_tokens: 4, transport.wait: spin}\n"
                        "  fewer: {from: few, moe: {topk: 1}, transport: {prefault: true}}\n"
                        "  least: {from: fewer, moe.max_tokens: 1}\n",
                  NULL);
    const struct fake_transport *transport = batch->run[2].x->transport.config;

    assert_labels(batch, "plain|few|fewer|least|");
    assert_int_equal(batch->run[0].x->moe.max_tokens, 128);
    assert_int_equal(batch->run[1].x->moe.topk, 2);
    assert_int_equal(batch->run[2].x->moe.max_tokens, 4);
    assert_int_equal(batch->run[2].x->moe.topk, 1);
    assert_int_equal(transport->wait, 1);
    assert_true(transport->prefault);
    assert_int_equal(batch->run[3].x->moe.max_tokens, 1);
    assert_int_equal(batch->run[3].x->moe.topk, 1);
    batch_destroy(batch);
}

TEST(a_map_that_names_the_plugin_stands_for_the_section)
{
    struct batch *batch =
        read_text(SMALL "algorithm: {name: ll_v2, dispatch_dtype: native, buffers: 1}\n"
                        "matrix: {algorithm: [{buffers: 2}, {name: ll_v2, buffers: 2}, ll_v2]}\n",
                  NULL);
    const struct fake_algorithm *merged = batch->run[0].x->algorithm.config,
                                *whole = batch->run[1].x->algorithm.config,
                                *bare = batch->run[2].x->algorithm.config;

    assert_labels(batch, "algorithm={buffers: 2}|algorithm={name: ll_v2, buffers: 2}|"
                         "algorithm=ll_v2|");
    assert_int_equal(merged->dispatch_dtype, 1);
    assert_int_equal(merged->buffers, 2);
    assert_int_equal(whole->dispatch_dtype, 0);
    assert_int_equal(bare->dispatch_dtype, 0);
    batch_destroy(batch);
}

TEST(repetitions_have_one_id)
{
    struct batch *batch = read_text(SMALL "repeat: 2\nruns: {a: {}, b: {moe.topk: 1}}\n", NULL);

    assert_labels(batch, "a #1|a #2|b #1|b #2|");
    assert_string_equal(batch->run[0].x->id, batch->run[1].x->id);
    assert_string_not_equal(batch->run[0].x->id, batch->run[2].x->id);
    batch_destroy(batch);
}

TEST(each_run_has_traces_of_its_own)
{
    struct batch *batch =
        read_text(SMALL "profile: out\nruns: {a: {}, b: {}, c: {profile: there}}\n", NULL);

    assert_string_equal(batch->run[0].x->profile.file, "out-1");
    assert_string_equal(batch->run[1].x->profile.file, "out-2");
    assert_string_equal(batch->run[2].x->profile.file, "there-3");
    assert_string_equal(batch->run[0].x->id, batch->run[2].x->id);
    batch_destroy(batch);
    batch = read_text(SMALL "profile: out\n", NULL);
    assert_string_equal(batch->run[0].x->profile.file, "out");
    batch_destroy(batch);
}

/* However it is said, wherever it is, whatever it is called. */
TEST(an_id_is_of_what_runs)
{
    struct batch *one = read_text(SMALL "routing: {kind: file, path: r.jsonl}\nname: one\n", NULL);
    struct batch *two;
    static const char *const sets[] = {"moe.topk=2", NULL};

    write_file("sub/low.yaml", "version: 1\nmoe: {experts: 8, fp8_group_size: 64, hidden: 128}\n"
                               "x-note: [1]\n");
    two = read_text("include: sub/low.yaml\nranks: 2\nname: two\n"
                    "runs: {a: {}, b: {routing: {kind: file, path: r.jsonl}}}\n",
                    sets);
    assert_string_equal(one->run[0].x->id, two->run[1].x->id);
    assert_string_not_equal(one->run[0].x->id, two->run[0].x->id);
    batch_destroy(one);
    batch_destroy(two);
}

TEST(set_wins_over_what_a_run_says)
{
    static const char *const sets[] = {"moe.topk=4", "matrix.moe.max_tokens=[1, 2]", "repeat=2",
                                       NULL};
    struct batch *batch =
        read_text(SMALL "runs: {a: {moe.topk: 1}}\nmatrix: {moe.max_tokens: [64]}\n", sets);

    assert_labels(batch, "a moe.max_tokens=1 #1|a moe.max_tokens=1 #2|"
                         "a moe.max_tokens=2 #1|a moe.max_tokens=2 #2|");
    assert_int_equal(batch->run[0].x->moe.topk, 4);
    assert_int_equal(batch->run[3].x->moe.max_tokens, 2);
    batch_destroy(batch);
}

TEST(an_included_file_is_the_base)
{
    struct batch *batch;
    char want[256];

    write_file("sub/low.yaml", "version: 1\nmoe: {hidden: 128, experts: 8, topk: 2}\n"
                               "routing: {kind: file, path: low.jsonl}\nranks: 4\n");
    write_file("sub/base.yaml", "include: low.yaml\nmoe: {topk: 1, fp8_group_size: 64}\nranks: 2\n"
                                "matrix: {moe.max_tokens: [1, 2]}\n");
    batch = read_text("include: sub/base.yaml\nmoe: {experts: 16}\n"
                      "matrix: {moe.max_tokens: [3, 4]}\n",
                      NULL);
    assert_labels(batch, "moe.max_tokens=3|moe.max_tokens=4|");
    assert_int_equal(batch->run[0].x->ranks, 2);
    assert_int_equal(batch->run[0].x->moe.experts, 16);
    assert_int_equal(batch->run[0].x->moe.topk, 1);
    assert_int_equal(batch->run[0].x->moe.hidden, 128);
    snprintf(want, sizeof(want), "%s/sub/low.jsonl", folder);
    assert_string_equal(batch->run[0].x->routing.path, want);
    batch_destroy(batch);
}

TEST(files_that_include_each_other_are_refused)
{
    char *said;

    write_file("b.yaml", "include: a.yaml\n");
    said = refuse("version: 1\ninclude: b.yaml\n", NULL, 10);
    assert_words(said, "b.yaml:1:10: error: .. a.yaml .. b.yaml");
    free(said);
    said = refuse("include: a.yaml\nversion: 1\n", NULL, 10);
    assert_words(said, "a.yaml:1:10: error: .. a.yaml");
    free(said);
}

TEST(an_error_of_many_runs_is_reported_once)
{
    char *said =
        refuse(SMALL "ranks: 3\nmatrix: {moe.topk: [1, 2], moe.max_tokens: [1, 0]}\n", NULL, 10);

    assert_words(
        said, "a.yaml:2:29: error: .. a.yaml:3:8: note: .. 'moe.topk=1 moe.max_tokens=1' and 3 .. "
              "a.yaml:4:48: error: .. 'moe.topk=1 moe.max_tokens=0' and 1");
    assert_null(strstr(strstr(said, "moe.experts (8)") + 1, "moe.experts (8)"));
    free(said);
}

TEST(a_plugin_that_is_not_here_is_no_error_of_several)
{
    struct batch *batch = read_text(SMALL "matrix: {transport: [shm, ucx, none]}\n", NULL);

    assert_int_equal(batch->n, 3);
    assert_non_null(batch->run[0].x);
    assert_null(batch->run[1].x);
    assert_int_equal(batch->run[1].absent.status, EPA_ERR_UNSUPPORTED);
    assert_non_null(strstr(batch->run[1].absent.text, "libucp.so.0"));
    assert_int_equal(batch->run[2].absent.status, EPA_ERR_CONFIG);
    batch_destroy(batch);
    free(refuse(SMALL "matrix: {transport: [shm, {name: ucx, wait: 3}], ranks: [2, 3]}\n", NULL,
                10));
    free(refuse(SMALL "transport: none\n", NULL, 10));
}

TEST(more_runs_than_the_cap_are_refused)
{
    char *said = refuse(SMALL "repeat: 4\nmatrix: {moe.topk: [1, 2, 3]}\n", NULL, 11);

    assert_string_equal(said, "a.yaml: error: there are more than 11 runs; --max-runs "
                              "raises that\n");
    free(said);
    said = refuse(SMALL "matrix: {moe.topk: [1, 2, 3], moe.hidden: [1, 2, 3, 4, 5]}\n", NULL, 11);
    assert_non_null(strstr(said, "more than 11 runs"));
    free(said);
}

TEST(base_is_read_without_its_runs)
{
    struct diag *diag = diag_create();
    struct experiment *x = NULL;

    write_file("a.yaml", SMALL "runs: {a: {moe.topk: 1}}\nmatrix: {ranks: [2, 4]}\n");
    assert_int_equal(experiment_read("a.yaml", NULL, 0, NULL, diag, &x), EPA_OK);
    assert_int_equal(x->moe.topk, 2);
    assert_int_equal(x->ranks, 2);
    assert_null(x->id);
    experiment_destroy(x);
    diag_destroy(diag);
}

TEST(a_label_is_one_short_line)
{
    char *yaml = NULL;
    struct batch *batch;

    assert_true(asprintf(&yaml, SMALL "runs: {\"a\\tb\": {}, \"%0300d\": {}}\n", 7) > 0);
    batch = read_text(yaml, NULL);
    assert_string_equal(batch->run[0].label, "a?b");
    assert_int_equal(strlen(batch->run[1].label), 203);
    batch_destroy(batch);
    free(yaml);
}

TEST_GROUP(enter_folder, leave_folder)
