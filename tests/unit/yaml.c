/* The limits of YAML. What is said about bad YAML stands in tests/cli/bad-inputs.txt. */
#include "test.h"

#include "base/text.h"
#include "config/tree.h"

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

/* `text`, then `n` of `many`, then `end`. */
static void refused_long(const char *text, const char *many, int n, const char *end,
                         const char *words)
{
    struct text all = {0};

    text_add(&all, "%s", text);
    for (int i = 0; i < n; i++)
        text_add(&all, "%s", many);
    text_add(&all, "%s", end);
    refused(all.data, all.bytes, words);
    text_free(&all);
}

TEST(what_is_too_much_is_refused_at_once)
{
    struct text text = {0};

    refused_long("", "[", 1 << 20, "", "a.yaml:1:65: error: maps and lists nest deeper than 64");
    refused_long("", "{", 1 << 20, "", "nest deeper than 64 levels");
    refused_long("", "#", (1 << 20) + 1, "", "longer than 1 MiB");
    refused_long("a: ", "x", 65537, "", "longer than 64 KiB");
    refused_long("[", "1,", 100000, "]", "more than 100000 values");
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
