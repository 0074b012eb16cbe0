/* Nearest names, sizes for people, and numbers of documents. */
#include "test.h"

#include "base/json.h"
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

/* Else what is printed of a run differs from what is printed when its document is read again. */
TEST(a_number_is_what_is_read_of_it)
{
    static const double x[] = {1.0 / 3, 3.1124549996, 123456789.123, -2e18 / 7, 0.1 + 0.2, 1e-320};

    for (size_t i = 0; i < LENGTH(x); i++) {
        json_auto_t *number = json_number(x[i]), *again;
        text_auto text = {0};

        json_write(&text, number, JSON_ENCODE_ANY | JSON_DIGITS);
        again = json_loads(text.data, JSON_DECODE_ANY, NULL);
        assert_true(json_number_value(number) == json_number_value(again));
    }
}
