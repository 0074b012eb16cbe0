/* From a file and --set to struct experiment and back to YAML. */
#include "files.h"

#include "config/diag.h"
#include "config/experiment.h"
#include "fake_registry.h"
#include "base/text.h"

static struct experiment *read_file(const char *path, const char *const *sets)
{
    struct diag *diag = diag_create();
    struct experiment *x = NULL;

    if (experiment_read(path, sets, count_sets(sets), NULL, diag, &x) != EPA_OK)
        diag_print(diag, stderr);
    assert_int_equal(diag_errors(diag), 0);
    assert_non_null(x);
    diag_destroy(diag);
    return x;
}

static struct experiment *read_text(const char *text, const char *const *sets)
{
    write_file("a.yaml", text);
    return read_file("a.yaml", sets);
}

static enum epa_status refuse(const char *text)
{
    struct diag *diag = diag_create();
    struct experiment *x = NULL;
    enum epa_status status;

    write_file("a.yaml", text);
    status = experiment_read("a.yaml", NULL, 0, NULL, diag, &x);
    assert_null(x);
    assert_true(diag_errors(diag) > 0);
    diag_destroy(diag);
    return status;
}

TEST(one_line_is_an_experiment)
{
    struct experiment *x = read_text("version: 1\n", NULL);
    const struct fake_algorithm *algorithm = x->algorithm.config;

    assert_string_equal(x->name, "a");
    assert_int_equal(x->ranks, 2);
    assert_int_equal(x->timeout_ns, 5000000000);
    assert_int_equal(x->seed, 1);
    assert_int_equal(x->moe.hidden, 7168);
    assert_int_equal(x->moe.experts, 256);
    assert_int_equal(x->moe.dtype, EPA_BF16);
    assert_int_equal(x->routing.kind, ROUTING_UNIFORM);
    assert_null(x->routing.path);
    assert_int_equal(x->bench.iterations, 200);
    assert_string_equal(x->launcher.plugin->name, "fork");
    assert_string_equal(x->backend.plugin->name, "host");
    assert_string_equal(x->transport.plugin->name, "shm");
    assert_int_equal(algorithm->buffers, 2);
    experiment_destroy(x);
}

TEST(bare_values_are_names_kinds_and_lists)
{
    struct experiment *x = read_text("version: 1\ntransport: shm\nrouting: masked\n"
                                     "expert: scale\ntokens: [128, 0]\n",
                                     NULL);

    assert_int_equal(x->routing.kind, ROUTING_MASKED);
    assert_int_equal(x->tokens.kind, TOKENS_LIST);
    assert_int_equal(x->tokens.per_rank.n, 2);
    assert_int_equal(x->tokens.per_rank.item[0], 128);
    experiment_destroy(x);
}

TEST(set_wins_over_the_file_and_the_later_one_over_the_first)
{
    static const char *const sets[] = {"ranks=8",
                                       "ranks=4",
                                       "moe.topk=2",
                                       "tokens=[1, 2, 3, 4]",
                                       "transport.wait=spin",
                                       "algorithm.buffers=1",
                                       "name=a, b",
                                       "x-note=1",
                                       NULL};
    struct experiment *x = read_text("version: 1\nranks: 2\nmoe: {topk: 4, experts: 8}\n"
                                     "transport: shm\ntokens: random\n",
                                     sets);

    assert_int_equal(x->ranks, 4);
    assert_int_equal(x->moe.topk, 2);
    assert_int_equal(x->moe.experts, 8);
    assert_int_equal(x->tokens.per_rank.item[3], 4);
    assert_int_equal(((const struct fake_transport *)x->transport.config)->wait, 1);
    assert_int_equal(((const struct fake_algorithm *)x->algorithm.config)->buffers, 1);
    assert_string_equal(x->name, "a, b");
    experiment_destroy(x);
}

TEST(set_of_a_plugin_drops_the_options_of_the_other)
{
    static const char *const sets[] = {"transport=shm", NULL};
    struct experiment *x = read_text("version: 1\ntransport: {name: ucx, rails: 2}\n", sets);

    assert_string_equal(x->transport.plugin->name, "shm");
    experiment_destroy(x);
}

TEST(set_changes_one_use_of_an_alias)
{
    static const char *const sets[] = {"run.iterations=3", NULL};
    struct experiment *x = read_text("version: 1\nrun: &n {iterations: 5}\nverify: *n\n", sets);

    assert_int_equal(x->run.iterations, 3);
    assert_int_equal(x->verify.iterations, 5);
    experiment_destroy(x);
}

TEST(paths_are_relative_to_who_names_them)
{
    static const char *const sets[] = {"routing.hidden_states=./h.npy", NULL};
    struct experiment *x;
    char want[256];

    write_file("sub/a.yaml", "version: 1\nrouting: {kind: file, path: r.jsonl}\n");
    x = read_file("sub/a.yaml", sets);
    snprintf(want, sizeof(want), "%s/sub/r.jsonl", folder);
    assert_string_equal(x->routing.path, want);
    snprintf(want, sizeof(want), "%s/h.npy", folder);
    assert_string_equal(x->routing.hidden_states, want);
    experiment_destroy(x);
    snprintf(want, sizeof(want), "%s/sub/a.yaml", folder);
    x = read_file(want, NULL);
    snprintf(want, sizeof(want), "%s/sub/r.jsonl", folder);
    assert_string_equal(x->routing.path, want);
    experiment_destroy(x);
}

static void assert_round_trip(const char *yaml, const char *const *sets)
{
    struct experiment *x = read_text(yaml, sets), *back;
    struct text first = {0}, with_origin = {0}, second = {0};

    experiment_show(x, false, &first);
    experiment_show(x, true, &with_origin);
    experiment_destroy(x);
    back = read_text(with_origin.data, NULL);
    experiment_show(back, false, &second);
    experiment_destroy(back);
    assert_string_equal(first.data, second.data);
    back = read_text(first.data, NULL);
    assert_non_null(back->name);
    experiment_destroy(back);
    text_free(&first);
    text_free(&with_origin);
    text_free(&second);
}

TEST(what_show_prints_reads_back_as_the_same)
{
    static const char *const sets[] = {"seed=18446744073709551615",
                                       "transport.device=\"\\x1b \\u2028\\U0001f600'\\\"\\\\\"",
                                       "transport.lanes=[1, 8]", NULL};

    assert_round_trip("version: 1\n", NULL);
    assert_round_trip("version: 1\nname: \"a: b # c\\n\\t\\u00e9\"\ntimeout: 1500ms\n", sets);
    assert_round_trip("version: 1\nrouting: {kind: zipf, exponent: 0.3}\ntokens: [1, 2]\n", NULL);
    assert_round_trip("version: 1\nrouting: {kind: file, path: \"a b\", layer: 12}\n", NULL);
    assert_round_trip("version: 1\nranks: 8\nranks_per_node: 8\nverify: {straggle: 10us}\n", NULL);
}

TEST(origins_tell_default_file_and_set)
{
    static const char *const sets[] = {"moe.topk=4", NULL};
    struct experiment *x =
        read_text("version: 1\nmoe:\n  hidden: 64\n  fp8_group_size: 64\n", sets);
    struct text shown = {0};

    experiment_show(x, true, &shown);
    assert_non_null(strstr(shown.data, "  hidden: 64                            "
                                       "# a.yaml:3:11\n"));
    assert_non_null(strstr(shown.data, "  topk: 4                               # --set\n"));
    assert_non_null(strstr(shown.data, "ranks: 2                                "
                                       "# default\n"));
    text_free(&shown);
    experiment_destroy(x);
}

TEST(file_that_is_wrong_outweighs_a_plugin_that_is_missing)
{
    assert_int_equal(refuse("version: 1\ntransport: ucx\n"), EPA_ERR_UNSUPPORTED);
    assert_int_equal(refuse("version: 1\ntransport: ucx\nranks: 0\n"), EPA_ERR_CONFIG);
    assert_int_equal(refuse("version: 1\ntransport: none\n"), EPA_ERR_CONFIG);
}

TEST_GROUP(enter_folder, leave_folder)
