/* How errors look beside what bad_inputs.c holds: limits, long lines, what a terminal obeys. */
#include "test.h"

#include "config/tree.h"
#include "base/text.h"

static char *printed(struct diag *diag)
{
    enum { ROOM = 1 << 16 };
    char *out = calloc(1, ROOM);
    FILE *file = fmemopen(out, ROOM - 1, "w");

    assert_non_null(file);
    diag_print(diag, file);
    fclose(file);
    diag_destroy(diag);
    return out;
}

TEST(only_twenty_errors_are_shown_and_the_rest_counted)
{
    struct diag *diag = diag_create();
    char *got;

    for (int i = 0; i < 23; i++)
        diag_error(diag, NULL, NULL, "number %d", i);
    assert_int_equal(diag_errors(diag), 23);
    got = printed(diag);
    assert_non_null(strstr(got, "number 19\n"));
    assert_null(strstr(got, "number 20"));
    assert_non_null(strstr(got, "and 3 more errors\n"));
    free(got);
}

TEST(control_characters_never_reach_the_terminal)
{
    const struct source_location location = {"a\x1b.yaml", "name: \x1b[31m\xff red\n", 1, 7, 4};
    struct diag *diag = diag_create();
    char *got;

    diag_error(diag, &location, "not \x1b[0m", "value '%s'", "\x1b[31m\x07");
    got = printed(diag);
    for (const char *s = got; *s != 0; s++)
        assert_true(*s == '\n' || ((unsigned char)*s >= 0x20 && (unsigned char)*s < 0x7f));
    free(got);
}
