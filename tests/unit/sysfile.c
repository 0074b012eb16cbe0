/* Small files of /proc and /sys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fake_root.h"

#include "base/sysfile.h"

static void a_line_has_no_end(void **state)
{
    char line[8];

    root_put(*state, "/a", "first\nsecond\n");
    assert_true(sysfile_line(*state, "/a", line, sizeof(line)));
    assert_string_equal(line, "first");
    root_put(*state, "/a", "longer than that\n");
    assert_true(sysfile_line(*state, "/a", line, sizeof(line)));
    assert_string_equal(line, "longer ");
}

static void what_is_not_there_is_empty(void **state)
{
    char line[8] = "x";

    assert_false(sysfile_line(*state, "/none", line, sizeof(line)));
    assert_string_equal(line, "");
    root_put(*state, "/empty", "");
    assert_false(sysfile_line(*state, "/empty", line, sizeof(line)));
    assert_false(sysfile_field(*state, "/none", "key", line, sizeof(line)));
    assert_int_equal(sysfile_number(*state, "/none"), 0);
}

static void a_field_is_the_first_of_its_name(void **state)
{
    char value[32];

    root_put(*state, "/a", "model: 85\nmodel name\t: Fast CPU\nmodel name\t: other\n");
    assert_true(sysfile_field(*state, "/a", "model name", value, sizeof(value)));
    assert_string_equal(value, "Fast CPU");
    assert_true(sysfile_field(*state, "/a", "model", value, sizeof(value)));
    assert_string_equal(value, "85");
    assert_false(sysfile_field(*state, "/a", "mode", value, sizeof(value)));
}

static void the_chosen_word_is_in_brackets(void **state)
{
    char word[16];

    root_put(*state, "/a", "always [madvise] never\n");
    sysfile_chosen(*state, "/a", word, sizeof(word));
    assert_string_equal(word, "madvise");
    root_put(*state, "/a", "none of them\n");
    sysfile_chosen(*state, "/a", word, sizeof(word));
    assert_string_equal(word, "");
}

static void a_list_counts_what_it_names(void **state)
{
    (void)state;
    assert_int_equal(sysfile_list_count("0-3,8"), 5);
    assert_int_equal(sysfile_list_count("7"), 1);
    assert_int_equal(sysfile_list_count(""), 0);
    assert_int_equal(sysfile_list_count("3-1"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define IN_ROOT(test) cmocka_unit_test_setup_teardown(test, root_set_up, root_tear_down)
        IN_ROOT(a_line_has_no_end),
        IN_ROOT(what_is_not_there_is_empty),
        IN_ROOT(a_field_is_the_first_of_its_name),
        IN_ROOT(the_chosen_word_is_in_brackets),
        cmocka_unit_test(a_list_counts_what_it_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
