/* The tree that YAML becomes, its places, and the limits. What is said about bad YAML
 * stands in tests/cli/bad-inputs.txt. */
#include "test.h"
#include <unistd.h>

#include "base/arena.h"
#include "config/diag.h"
#include "config/node.h"
#include "base/text.h"

struct parsed {
    struct arena *arena;
    struct diag *diag;
    struct node *root;
    enum epa_status status;
};

static struct parsed parse(const char *text, size_t bytes)
{
    struct parsed p = {.arena = arena_create(), .diag = diag_create()};

    p.status = yaml_parse(p.arena, "a.yaml", text, bytes, p.diag, &p.root);
    return p;
}

static void finish(struct parsed *p)
{
    arena_destroy(p->arena);
    diag_destroy(p->diag);
}

/* Parses, expects a refusal with `words` in it. */
static void refused(const char *text, size_t bytes, const char *words)
{
    struct parsed p = parse(text, bytes);
    size_t n = 0;
    char *said = NULL;
    FILE *file = open_memstream(&said, &n);

    assert_int_equal(p.status, EPA_ERR_CONFIG);
    assert_true(diag_errors(p.diag) > 0);
    diag_print(p.diag, file);
    fclose(file);
    if (strstr(said, words) == NULL)
        fail_msg("\"%s\" is not in: %s", words, said);
    free(said);
    finish(&p);
}

TEST(nodes_know_their_place)
{
    const char *text = "a: 1\nmoe:\n  hidden: 64 # c\n  list: [x, \"y z\"]\n";
    struct parsed p = parse(text, strlen(text));
    const struct node *moe = node_find(p.root, "moe"), *list = node_find(moe, "list");

    assert_int_equal(p.status, EPA_OK);
    assert_int_equal(p.root->n, 2);
    assert_string_equal(node_find(moe, "hidden")->text, "64");
    assert_int_equal(node_find(moe, "hidden")->location.line, 3);
    assert_int_equal(node_find(moe, "hidden")->location.column, 11);
    assert_int_equal(node_find(moe, "hidden")->location.width, 2);
    assert_int_equal(moe->key[1]->location.column, 3);
    assert_int_equal(list->kind, NODE_LIST);
    assert_int_equal(list->n, 2);
    assert_false(list->item[0]->quoted);
    assert_true(list->item[1]->quoted);
    assert_int_equal(list->item[1]->location.column, 13);
    assert_int_equal(list->item[1]->location.width, 5);
    assert_null(node_find(p.root, "hidden"));
    finish(&p);
}

TEST(byte_order_mark_is_skipped)
{
    const char *text = "\xef\xbb\xbf"
                       "a: 1\n";
    struct parsed p = parse(text, strlen(text));

    assert_int_equal(p.status, EPA_OK);
    assert_int_equal(p.root->key[0]->location.column, 1);
    finish(&p);
}

TEST(aliases_are_copies)
{
    const char *text = "a: &x {n: 1}\nb: *x\n";
    struct parsed p = parse(text, strlen(text));
    struct node *a = node_find(p.root, "a"), *b = node_find(p.root, "b");

    assert_int_equal(p.status, EPA_OK);
    assert_string_equal(node_find(b, "n")->text, "1");
    node_set(p.arena, b, b->key[0], p.root->key[0]);
    assert_string_equal(node_find(b, "n")->text, "a");
    assert_string_equal(node_find(a, "n")->text, "1");
    finish(&p);
}

TEST(value_of_a_set_counts_columns_from_the_start_of_the_argument)
{
    const char *text = "moe.list=[1, 2]";
    struct arena *arena = arena_create();
    struct diag *diag = diag_create();
    struct node *value;

    assert_int_equal(yaml_parse_value(arena, "--set", text, 9, diag, &value), EPA_OK);
    assert_int_equal(value->n, 2);
    assert_int_equal(value->item[1]->location.column, 14);
    assert_string_equal(value->item[1]->location.source, text);
    arena_destroy(arena);
    diag_destroy(diag);
}

TEST(reader_errors_have_their_line)
{
    refused("a: 1\nb: \xc3\xa4\xff\n", 12, "a.yaml:2:5: error: byte 0xff is not UTF-8");
    refused("a: 1\nb: \x01\n", 10, "a.yaml:2:4: error: control character 0x01");
    refused("a: 1\nb\0: 2\n", 11, "a.yaml:2:2: error: control character 0x00");
    refused("\xff\xfe"
            "a\0:\0",
            6, "a.yaml:1:1: error: byte 0xff is not UTF-8");
}

TEST(million_open_brackets_are_refused_at_once)
{
    const size_t bytes = 1 << 20;
    char *text = malloc(bytes);

    memset(text, '[', bytes);
    refused(text, bytes, "a.yaml:1:65: error: maps and lists nest deeper than 64 levels");
    memset(text, '{', bytes);
    refused(text, bytes, "nest deeper than 64 levels");
    free(text);
}

TEST(text_longer_than_a_mebibyte_is_refused)
{
    const size_t bytes = (1 << 20) + 1;
    char *text = malloc(bytes);

    memset(text, '#', bytes);
    refused(text, bytes, "longer than 1 MiB");
    free(text);
}

TEST(value_longer_than_64_kib_is_refused)
{
    struct text text = {0};

    text_add(&text, "a: ");
    for (int i = 0; i < 65537; i++)
        text_add_bytes(&text, "x", 1);
    refused(text.data, text.bytes, "longer than 64 KiB");
    text_free(&text);
}

TEST(more_than_a_hundred_thousand_values_are_refused)
{
    struct text text = {0};

    text_add(&text, "[");
    for (int i = 0; i < 100000; i++)
        text_add(&text, "1,");
    text_add(&text, "]");
    refused(text.data, text.bytes, "more than 100000 values");
    text_free(&text);
}

TEST(billion_laughs_are_refused)
{
    struct text text = {0};

    text_add(&text, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 12; i++) {
        text_add(&text, "a%d: &a%d [", i, i);
        for (int j = 0; j < 10; j++)
            text_add(&text, "%s*a%d", j == 0 ? "" : ", ", i - 1);
        text_add(&text, "]\n");
    }
    refused(text.data, text.bytes, "aliases expand to more than 10000 values");
    text_free(&text);
}

TEST(forty_thousand_keys_are_compared_in_no_quadratic_time)
{
    struct text text = {0};
    struct parsed p;

    for (int i = 0; i < 40000; i++)
        text_add(&text, "k%d: 1\n", i);
    text_add(&text, "k39999: 2\n");
    p = parse(text.data, text.bytes);
    assert_int_equal(p.status, EPA_ERR_CONFIG);
    assert_int_equal(diag_errors(p.diag), 1);
    assert_int_equal(p.root->n, 40000);
    assert_string_equal(p.root->item[39999]->text, "1");
    finish(&p);
    text_free(&text);
}

TEST(errors_that_leave_the_structure_clear_do_not_stop)
{
    const char *text = "a: !!int 1\na: 2\nb: *none\n<<: 1\nc: 3\n";
    struct parsed p = parse(text, strlen(text));

    assert_int_equal(p.status, EPA_ERR_CONFIG);
    assert_int_equal(diag_errors(p.diag), 4);
    assert_string_equal(node_find(p.root, "c")->text, "3");
    assert_string_equal(node_find(p.root, "a")->text, "1");
    finish(&p);
}

TEST(files_that_cannot_be_read_are_reported)
{
    static const char *const path[] = {"/nowhere/at-all.yaml", "/"};
    static const char *const says[] = {"cannot read it: No such file", "Is a directory"};

    for (int i = 0; i < 2; i++) {
        struct arena *arena = arena_create();
        struct diag *diag = diag_create();
        struct node *root;
        char *said = NULL;
        size_t n = 0;
        FILE *file = open_memstream(&said, &n);

        assert_int_equal(yaml_read(arena, path[i], diag, &root), EPA_ERR_CONFIG);
        assert_null(root);
        diag_print(diag, file);
        fclose(file);
        assert_non_null(strstr(said, says[i]));
        free(said);
        diag_destroy(diag);
        arena_destroy(arena);
    }
}

static struct parsed read_file(const char *text)
{
    struct parsed p = {.arena = arena_create(), .diag = diag_create()};
    char path[] = "/tmp/epa2a-yaml-XXXXXX";
    int fd = mkstemp(path);
    size_t n = strlen(text);

    assert_true(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    close(fd);
    p.status = yaml_read(p.arena, path, p.diag, &p.root);
    unlink(path);
    return p;
}

TEST(variables_are_put_into_values_of_files_and_not_into_keys)
{
    const char *text = "${TEST_A}: ${TEST_A}\nb: '-${TEST_A}${TEST_NONE:-}-'\nc: $${TEST_A} "
                       "$$${TEST_A} $TEST_A\nd: [&x \"${TEST_A}\", *x]\n";
    struct parsed p;

    setenv("TEST_A", "${TEST_A}", 1); /* and not looked at again */
    unsetenv("TEST_NONE");
    p = read_file(text);
    assert_int_equal(p.status, EPA_OK);
    assert_string_equal(p.root->key[0]->text, "${TEST_A}");
    assert_null(p.root->key[0]->variables);
    assert_string_equal(p.root->item[0]->text, "${TEST_A}");
    assert_string_equal(p.root->item[0]->variables, "${TEST_A}");
    assert_string_equal(p.root->item[1]->text, "-${TEST_A}-");
    assert_string_equal(p.root->item[1]->variables, "${TEST_A}, default of ${TEST_NONE}");
    assert_string_equal(p.root->item[2]->text, "${TEST_A} $${TEST_A} $TEST_A");
    assert_null(p.root->item[2]->variables);
    assert_string_equal(p.root->item[3]->item[1]->text, "${TEST_A}");
    assert_non_null(p.root->item[3]->item[1]->variables);
    finish(&p);
    p = parse(text, strlen(text)); /* text that is no file's */
    assert_string_equal(p.root->item[1]->text, "-${TEST_A}${TEST_NONE:-}-");
    finish(&p);
}

TEST(variables_that_make_a_value_too_long_are_refused)
{
    static char value[40000];
    struct parsed p;

    memset(value, 'x', sizeof(value) - 1);
    setenv("TEST_A", value, 1);
    p = read_file("a: ${TEST_A}\nb: ${TEST_A}${TEST_A}\n");
    assert_int_equal(p.status, EPA_ERR_CONFIG);
    assert_int_equal(diag_errors(p.diag), 1);
    assert_true(p.root->item[1]->refused);
    finish(&p);
}
