/* Nearest names, and sizes for people. */
#include "test.h"

#include "base/text.h"

static bool near(const char *want, const char *have)
{
    struct nearest nearest = {.want = want};

    nearest_try(&nearest, have);
    return nearest.name != NULL;
}

TEST(near_allows_one_edit_or_swap_in_short_names_and_two_in_long_ones)
{
    char *endless = malloc(70000);

    assert_true(near("shm", "shm"));
    assert_true(near("shn", "shm"));
    assert_false(near("sxx", "shm"));
    assert_true(near("hiden", "hidden"));
    assert_true(near("tokne", "token"));
    assert_false(near("kitten", "sitting"));
    assert_true(near("tranpsort", "transport"));
    assert_true(near("trnsprt", "transport"));
    assert_false(near("trsprt", "transport"));
    assert_true(near("FP8", "fp8"));
    memset(endless, 'a', 69999);
    endless[69999] = 0;
    assert_false(near(endless, "aaa"));
    assert_false(near("aaa", endless));
    free(endless);
}

TEST(sizes_read_well)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } c[] = {{0, "0 B"},
             {640, "640 B"},
             {(1 << 20) - 1, "1.00 MiB"},
             {15938355, "15.2 MiB"},
             {1536ull << 20, "1.50 GiB"},
             {UINT64_MAX, "16.0 EiB"}};
    char buf[32];

    for (size_t i = 0; i < LENGTH(c); i++)
        assert_string_equal(text_size(buf, sizeof(buf), c[i].bytes), c[i].text);
}
