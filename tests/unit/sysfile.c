/* Small files of /proc and /sys. */
#include "test.h"

#include "fake_root.h"

#include "base/sysfile.h"

TEST_IN(root_set_up, root_tear_down, a_line_has_no_end)
{
    char line[8];

    root_put(*state, "/a", "first\nsecond\n");
    assert_true(sysfile_line(*state, "/a", line, sizeof(line)));
    assert_string_equal(line, "first");
    root_put(*state, "/a", "longer than that\n");
    assert_true(sysfile_line(*state, "/a", line, sizeof(line)));
    assert_string_equal(line, "longer ");
}

TEST_IN(root_set_up, root_tear_down, what_is_not_there_is_empty)
{
    char line[8] = "x";

    assert_false(sysfile_line(*state, "/none", line, sizeof(line)));
    assert_string_equal(line, "");
    root_put(*state, "/empty", "");
    assert_false(sysfile_line(*state, "/empty", line, sizeof(line)));
    assert_false(sysfile_field(*state, "/none", "key", line, sizeof(line)));
    assert_int_equal(sysfile_number(*state, "/none"), 0);
}

TEST_IN(root_set_up, root_tear_down, a_field_is_the_first_of_its_name)
{
    char value[32];

    root_put(*state, "/a", "model: 85\nmodel name\t: Fast CPU\nmodel name\t: other\n");
    assert_true(sysfile_field(*state, "/a", "model name", value, sizeof(value)));
    assert_string_equal(value, "Fast CPU");
    assert_true(sysfile_field(*state, "/a", "model", value, sizeof(value)));
    assert_string_equal(value, "85");
    assert_false(sysfile_field(*state, "/a", "mode", value, sizeof(value)));
}

TEST_IN(root_set_up, root_tear_down, the_chosen_word_is_in_brackets)
{
    char word[16];

    root_put(*state, "/a", "always [madvise] never\n");
    sysfile_chosen(*state, "/a", word, sizeof(word));
    assert_string_equal(word, "madvise");
    root_put(*state, "/a", "none of them\n");
    sysfile_chosen(*state, "/a", word, sizeof(word));
    assert_string_equal(word, "");
}

TEST(a_list_counts_what_it_names)
{
    assert_int_equal(sysfile_list_count("0-3,8"), 5);
    assert_int_equal(sysfile_list_count("7"), 1);
    assert_int_equal(sysfile_list_count(""), 0);
    assert_int_equal(sysfile_list_count("3-1"), 0);
}
