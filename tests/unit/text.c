/* Nearest names, and sizes for people. */
#include "test.h"

#include "base/text.h"

static const char *nearest_of(const char *want, const char *const *names, uint32_t n)
{
    struct nearest nearest = {.want = want};

    for (uint32_t i = 0; i < n; i++)
        nearest_try(&nearest, names[i]);
    return nearest.name;
}

static bool near(const char *want, const char *have)
{
    return nearest_of(want, &have, 1) != NULL;
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

TEST(nearest_takes_the_closest_or_none)
{
    static const char *const names[] = {"topk", "tokens", "token"};

    assert_string_equal(nearest_of("tokem", names, 3), "token");
    assert_string_equal(nearest_of("top_k", names, 3), "topk");
    assert_null(nearest_of("bandwidth", names, 3));
    assert_null(nearest_of("x", names, 0));
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
