/* From a file and --set to struct experiment and back to YAML. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "op/op.h"
#include "config/diag.h"
#include "config/experiment.h"
#include "fake_registry.h"
#include "base/text.h"

static char folder[] = "/tmp/epa2a-experiment-XXXXXX";

static int enter_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL || chdir(folder) != 0 || mkdir("sub", 0700) != 0;
}

static int leave_folder(void **state)
{
    (void)state;
    unlink("a.yaml");
    unlink("sub/a.yaml");
    return rmdir("sub") != 0 || chdir("/") != 0 || rmdir(folder) != 0;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* Sets end in NULL. */
static struct experiment *read_file(const char *path, const char *const *sets)
{
    struct diag *diag = diag_create();
    struct experiment *x = NULL;
    uint32_t n = 0;

    while (sets != NULL && sets[n] != NULL)
        n++;
    if (experiment_read(path, sets, n, NULL, diag, &x) != EPA_OK)
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

static void one_line_is_an_experiment(void **state)
{
    struct experiment *x = read_text("version: 1\n", NULL);
    const struct fake_algorithm *algorithm = x->algorithm.config;

    (void)state;
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

static void bare_values_are_names_kinds_and_lists(void **state)
{
    struct experiment *x = read_text("version: 1\ntransport: shm\nrouting: masked\n"
                                     "expert: scale\ntokens: [128, 0]\n",
                                     NULL);

    (void)state;
    assert_int_equal(x->routing.kind, ROUTING_MASKED);
    assert_int_equal(x->tokens.kind, TOKENS_LIST);
    assert_int_equal(x->tokens.per_rank.n, 2);
    assert_int_equal(x->tokens.per_rank.item[0], 128);
    experiment_destroy(x);
}

static void set_wins_over_the_file_and_the_later_one_over_the_first(void **state)
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

    (void)state;
    assert_int_equal(x->ranks, 4);
    assert_int_equal(x->moe.topk, 2);
    assert_int_equal(x->moe.experts, 8);
    assert_int_equal(x->tokens.per_rank.item[3], 4);
    assert_int_equal(((const struct fake_transport *)x->transport.config)->wait, 1);
    assert_int_equal(((const struct fake_algorithm *)x->algorithm.config)->buffers, 1);
    assert_string_equal(x->name, "a, b");
    experiment_destroy(x);
}

static void set_of_a_plugin_drops_the_options_of_the_other(void **state)
{
    static const char *const sets[] = {"transport=shm", NULL};
    struct experiment *x =
        read_text("version: 1\ntransport: {name: ucx, rails: 2}\n", sets);

    (void)state;
    assert_string_equal(x->transport.plugin->name, "shm");
    experiment_destroy(x);
}

static void set_changes_one_use_of_an_alias(void **state)
{
    static const char *const sets[] = {"run.iterations=3", NULL};
    struct experiment *x =
        read_text("version: 1\nrun: &n {iterations: 5}\nverify: *n\n", sets);

    (void)state;
    assert_int_equal(x->run.iterations, 3);
    assert_int_equal(x->verify.iterations, 5);
    experiment_destroy(x);
}

static void paths_are_relative_to_who_names_them(void **state)
{
    static const char *const sets[] = {"routing.hidden_states=./h.npy", NULL};
    struct experiment *x;
    char want[256];

    (void)state;
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

static void what_show_prints_reads_back_as_the_same(void **state)
{
    static const char *const sets[] = {
        "seed=18446744073709551615",
        "transport.device=\"\\x1b \\u2028\\U0001f600'\\\"\\\\\"", "transport.lanes=[1, 8]",
        NULL};

    (void)state;
    assert_round_trip("version: 1\n", NULL);
    assert_round_trip("version: 1\nname: \"a: b # c\\n\\t\\u00e9\"\ntimeout: 1500ms\n",
                      sets);
    assert_round_trip("version: 1\nrouting: {kind: zipf, exponent: 0.3}\ntokens: [1, 2]\n",
                      NULL);
    assert_round_trip("version: 1\nrouting: {kind: file, path: \"a b\", layer: 12}\n",
                      NULL);
    assert_round_trip("version: 1\nranks: 8\nranks_per_node: 8\nverify: {straggle: 10us}\n",
                      NULL);
}

static void origins_tell_default_file_and_set(void **state)
{
    static const char *const sets[] = {"moe.topk=4", NULL};
    struct experiment *x = read_text("version: 1\nmoe:\n  hidden: 64\n  fp8_group_size: 64\n", sets);
    struct text shown = {0};

    (void)state;
    experiment_show(x, true, &shown);
    assert_non_null(strstr(shown.data, "  hidden: 64                            "
                                       "# a.yaml:3:11\n"));
    assert_non_null(
        strstr(shown.data, "  topk: 4                               # --set\n"));
    assert_non_null(strstr(shown.data, "ranks: 2                                "
                                       "# default\n"));
    text_free(&shown);
    experiment_destroy(x);
}

struct seen {
    char text[4096];
};

static void note(void *arg, const char *key, const char *value, bool quoted)
{
    struct seen *seen = arg;
    size_t n = strlen(seen->text);

    snprintf(seen->text + n, sizeof(seen->text) - n, "%s=%s%s%s\n", key, quoted ? "'" : "",
             value, quoted ? "'" : "");
}

static void visit_tells_strings_from_numbers(void **state)
{
    struct experiment *x = read_text("version: 1\ntokens: [3, 4]\n", NULL);
    struct seen seen = {""};

    (void)state;
    experiment_visit(x, note, &seen);
    assert_non_null(strstr(seen.text, "version=1\nname='a'\nranks=2\n"));
    assert_non_null(strstr(seen.text, "timeout='5s'\n"));
    assert_non_null(strstr(seen.text,
                           "transport.name='shm'\ntransport.wait='auto'\n"
                           "transport.prefault=false\ntransport.ring='64KiB'\n"));
    assert_non_null(strstr(seen.text, "tokens.kind='list'\ntokens.each=[3, 4]\n"));
    assert_null(strstr(seen.text, "routing.exponent"));
    experiment_destroy(x);
}

static void problem_has_the_shapes(void **state)
{
    struct experiment *x = read_text("version: 1\nmoe: {input_dtype: fp8, topk: 3}\n", NULL);
    struct epa_problem problem = operation_problem(x);

    (void)state;
    assert_int_equal(problem.op, EPA_OP_MOE);
    assert_int_equal(problem.u.moe.hidden, 7168);
    assert_int_equal(problem.u.moe.topk, 3);
    assert_int_equal(problem.u.moe.dtype, EPA_BF16);
    assert_int_equal(problem.u.moe.x_dtype, EPA_FP8_E4M3);
    assert_null(problem.u.moe.x);
    experiment_destroy(x);
}

static void file_that_is_wrong_outweighs_a_plugin_that_is_missing(void **state)
{
    (void)state;
    assert_int_equal(refuse("version: 1\ntransport: ucx\n"), EPA_ERR_UNSUPPORTED);
    assert_int_equal(refuse("version: 1\ntransport: ucx\nranks: 0\n"), EPA_ERR_CONFIG);
    assert_int_equal(refuse("version: 1\ntransport: none\n"), EPA_ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_line_is_an_experiment),
        cmocka_unit_test(bare_values_are_names_kinds_and_lists),
        cmocka_unit_test(set_wins_over_the_file_and_the_later_one_over_the_first),
        cmocka_unit_test(set_of_a_plugin_drops_the_options_of_the_other),
        cmocka_unit_test(set_changes_one_use_of_an_alias),
        cmocka_unit_test(paths_are_relative_to_who_names_them),
        cmocka_unit_test(what_show_prints_reads_back_as_the_same),
        cmocka_unit_test(origins_tell_default_file_and_set),
        cmocka_unit_test(visit_tells_strings_from_numbers),
        cmocka_unit_test(problem_has_the_shapes),
        cmocka_unit_test(file_that_is_wrong_outweighs_a_plugin_that_is_missing),
    };

    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
