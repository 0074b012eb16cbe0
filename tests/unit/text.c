/* Growing text, nearest names, sizes and times for people. */
#include "test.h"

#include "base/text.h"

TEST(text_grows_past_its_first_room)
{
    struct text text = {0};

    for (int i = 0; i < 1000; i++)
        text_add(&text, "%d,", i % 10);
    assert_int_equal(text.bytes, 2000);
    assert_int_equal(strlen(text.data), 2000);
    assert_memory_equal(text.data + 1994, "7,8,9,", 6);
    text_free(&text);
    assert_null(text.data);
}

TEST(text_of_no_bytes_is_an_empty_string)
{
    struct text text = {0};

    text_add_bytes(&text, NULL, 0);
    assert_string_equal(text.data, "");
    text_free(&text);
}

TEST(distance_counts_edits_and_swaps)
{
    assert_int_equal(text_distance("", "abc"), 3);
    assert_int_equal(text_distance("shm", "shm"), 0);
    assert_int_equal(text_distance("hiden", "hidden"), 1);
    assert_int_equal(text_distance("tokne", "token"), 1);
    assert_int_equal(text_distance("kitten", "sitting"), 3);
}

TEST(distance_of_endless_names_is_large_and_harmless)
{
    char *name = malloc(70000);

    memset(name, 'a', 69999);
    name[69999] = 0;
    assert_true(text_distance(name, "aaa") > 10);
    assert_false(text_near(name, "aaa"));
    assert_false(text_near("aaa", name));
    free(name);
}

TEST(near_allows_one_edit_in_short_names_and_two_in_long_ones)
{
    assert_true(text_near("shn", "shm"));
    assert_false(text_near("sxx", "shm"));
    assert_true(text_near("tranpsort", "transport"));
    assert_true(text_near("trnsprt", "transport"));
    assert_false(text_near("trsprt", "transport"));
    assert_true(text_near("FP8", "fp8"));
}

TEST(nearest_takes_the_closest_or_none)
{
    static const char *const names[] = {"topk", "tokens", "token"};

    assert_string_equal(text_nearest("tokem", names, 3), "token");
    assert_string_equal(text_nearest("top_k", names, 3), "topk");
    assert_null(text_nearest("bandwidth", names, 3));
    assert_null(text_nearest("x", names, 0));
}

TEST(sizes_read_well)
{
    char buf[32];

    assert_string_equal(text_size(buf, sizeof(buf), 0), "0 B");
    assert_string_equal(text_size(buf, sizeof(buf), 640), "640 B");
    assert_string_equal(text_size(buf, sizeof(buf), 1536ull << 20), "1.50 GiB");
    assert_string_equal(text_size(buf, sizeof(buf), 15938355), "15.2 MiB");
    assert_string_equal(text_size(buf, sizeof(buf), (1 << 20) - 1), "1.00 MiB");
    assert_string_equal(text_size(buf, sizeof(buf), UINT64_MAX), "16.0 EiB");
}

static void is_shown_as(const char *text, const char *as)
{
    char room[128];

    snprintf(room, sizeof(room), "%s", text);
    assert_string_equal(text_clean(room), as);
}

TEST(what_a_terminal_obeys_is_shown_as_question_marks)
{
    is_shown_as("plain, \303\244, \342\202\254, \360\237\230\200",
                "plain, \303\244, \342\202\254, \360\237\230\200");
    is_shown_as("\033[2J\a\177\n", "?[2J???");
    is_shown_as("\302\233"
                "31m \302\205",
                "?31m ?"); /* C1 as UTF-8 */
    is_shown_as("\233"
                "31m",
                "?31m");                                          /* and as a byte */
    is_shown_as("\342\200\256x\342\201\246y\330\234z", "?x?y?z"); /* directions */
    is_shown_as("\300\201\355\240\200\364\220\200\200", "???");   /* no UTF-8 */
    is_shown_as("\342\202", "?");
}
