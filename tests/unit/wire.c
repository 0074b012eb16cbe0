/* Messages there and back, cut short at every byte, and with lengths that lie. */
#include "test.h"

#include "launch/wire.h"

static unsigned char data[4096];

static struct wire_span span_of(const char *text)
{
    return (struct wire_span){(const unsigned char *)text, strlen(text)};
}

static void assert_span(struct wire_span got, const char *want)
{
    assert_int_equal(got.bytes, strlen(want));
    assert_memory_equal(got.data, want, got.bytes);
}

TEST(a_greeting_comes_back_whole_or_not_at_all)
{
    struct wire_greet in = {.protocol = WIRE_PROTOCOL, .token = "a token"}, out;
    size_t n = wire_put_greet(data, sizeof(data), &in);

    assert_true(n > 0 && n <= WIRE_GREET_MAX);
    assert_true(wire_get_greet(data, n, &out));
    assert_string_equal(out.token, in.token);
    for (size_t cut = 0; cut < n; cut++)
        assert_false(wire_get_greet(data, cut, &out));
    assert_false(wire_get_greet(data, n + 1, &out));
    data[0] ^= 1;
    assert_false(wire_get_greet(data, n, &out));
    for (size_t room = 0; room < n; room++)
        assert_int_equal(wire_put_greet(data, room, &in), 0);
}

TEST(a_greeting_of_another_protocol_is_one)
{
    struct wire_greet in = {.protocol = WIRE_PROTOCOL + 1}, out;
    size_t n = wire_put_greet(data, sizeof(data), &in);

    memset(data + n, 'x', 40);
    assert_true(wire_get_greet(data, n + 40, &out));
    assert_int_equal(out.protocol, WIRE_PROTOCOL + 1);
    assert_string_equal(out.token, "");
}

TEST(a_hello_comes_back_whole_or_not_at_all)
{
    struct wire_hello in = {.rank = 3,
                            .size = 9,
                            .pid = 77,
                            .abi = 5,
                            .version = "1.2",
                            .host = "b\x1b[2J",
                            .machine = "boot",
                            .identity = "b boot",
                            .mask = span_of("\x0f\xf0"),
                            .fingerprint = span_of("moe:\n  hidden: 4096\n")};
    struct wire_hello out;
    size_t n = wire_put_hello(data, sizeof(data), &in);

    assert_true(wire_get_hello(data, n, &out));
    assert_int_equal(out.rank, 3);
    assert_int_equal(out.size, 9);
    assert_int_equal(out.pid, 77);
    assert_int_equal(out.abi, 5);
    assert_string_equal(out.version, "1.2");
    assert_string_equal(out.host, "b?[2J"); /* a terminal would have obeyed it */
    assert_string_equal(out.machine, "boot");
    assert_string_equal(out.identity, "b boot");
    assert_span(out.mask, "\x0f\xf0");
    assert_span(out.fingerprint, "moe:\n  hidden: 4096\n");
    for (size_t cut = 0; cut < n; cut++)
        assert_false(wire_get_hello(data, cut, &out));
    assert_false(wire_get_hello(data, n + 1, &out));
}

TEST(a_length_that_lies_is_refused)
{
    struct wire_hello in = {.version = "1"}, out;
    size_t n = wire_put_hello(data, sizeof(data), &in);

    for (uint32_t length = 2; length < 40; length++) {
        wire_put_u32(data + 16, length < 39 ? length : UINT32_MAX);
        assert_false(wire_get_hello(data, n, &out));
    }
}

TEST(a_welcome_must_make_sense)
{
    unsigned char node[16];
    struct wire_welcome in = {.pid = 5,
                              .host = "a",
                              .share = 1,
                              .shares = 2,
                              .local_cores = 8,
                              .node = {node, sizeof(node)}};
    struct wire_welcome out;
    size_t n;

    for (uint32_t r = 0; r < 4; r++)
        wire_put_u32(node + (size_t)r * 4, r / 2);
    n = wire_put_welcome(data, sizeof(data), &in);
    assert_true(wire_get_welcome(data, n, 4, &out));
    assert_int_equal(wire_get_u32(out.node.data + 12), 1);
    assert_int_equal(out.local_cores, 8);
    assert_false(wire_get_welcome(data, n, 3, &out));
    assert_false(wire_get_welcome(data, n, 5, &out));
    in.share = 2;
    n = wire_put_welcome(data, sizeof(data), &in);
    assert_false(wire_get_welcome(data, n, 4, &out));
    in.share = 0;
    wire_put_u32(node + 4, 2);
    n = wire_put_welcome(data, sizeof(data), &in);
    assert_false(wire_get_welcome(data, n, 4, &out));
}

TEST(a_word_has_a_status_that_there_is)
{
    struct wire_word out;

    for (int s = EPA_ERR_INTERRUPTED - 2; s <= 1; s++) {
        struct wire_word in = {
            .status = (enum epa_status)s, .rank = UINT32_MAX, .signal = 15, .text = "why"};
        size_t n = wire_put_word(data, sizeof(data), &in);
        bool good = s <= 0 && s >= EPA_ERR_INTERRUPTED;

        assert_int_equal(wire_get_word(data, n, &out), good);
        if (!good)
            continue;
        assert_int_equal(out.status, s);
        assert_int_equal(out.rank, UINT32_MAX);
        assert_int_equal(out.signal, 15);
        assert_string_equal(out.text, "why");
    }
}

TEST(a_text_that_is_too_long_is_cut)
{
    struct wire_word in = {.status = EPA_ERR_DIED}, out;

    memset(in.text, 'x', sizeof(in.text));
    assert_true(wire_get_word(data, wire_put_word(data, sizeof(data), &in), &out));
    assert_int_equal(strlen(out.text), sizeof(out.text) - 1);
}

TEST(a_piece_keeps_its_number_and_may_be_empty)
{
    struct wire_piece in = {.number = 0x123456789abcdef0}, out;
    size_t n = wire_put_piece(data, sizeof(data), &in);

    assert_true(wire_get_piece(data, n, &out));
    assert_true(out.number == in.number && out.data.bytes == 0);
    assert_false(wire_get_piece(data, n - 1, &out));
    in.data = span_of("bytes");
    n = wire_put_piece(data, sizeof(data), &in);
    assert_true(wire_get_piece(data, n, &out));
    assert_span(out.data, "bytes");
}

TEST(pieces_of_all_ranks_together_are_bounded)
{
    assert_int_equal(wire_gather_bytes(1), WIRE_GATHER_MAX);
    assert_int_equal(wire_gather_bytes(4), WIRE_GATHER_MAX / 4);
    assert_int_equal(wire_gather_bytes(100000), 1024);
}

TEST(the_first_difference_is_reported_with_its_key)
{
    static const struct {
        const char *there, *here, *want;
    } cases[] = {
        {"a: 1\nmoe:\n  hidden: 4096\n  topk: 8\n", "a: 1\nmoe:\n  hidden: 7168\n  topk: 4\n",
         "moe.hidden: 4096 there, 7168 here"},
        {"epa2a 1\nseed: 1\n", "epa2a 2\nseed: 1\n", "epa2a 1 there, epa2a 2 here"},
        {"x:\n  a: 1\nseed: 1\n", "x:\n  a: 1\nseed: 2\n", "seed: 1 there, 2 here"},
        {"x:\n  a: 1\n", "x:\n  a: 1\n  b: 2\n", "nothing there, b: 2 here"},
        {"x:\n  a: 1\n  b: 2\n", "x:\n  a: 1\n", "b: 2 there, nothing here"},
        {"x:\n  a: 1\n", "x:\n  b: 1\n", "a: 1 there, b: 1 here"},
        {"a: \x1b[2J\n", "a: 1\n", "a: ?[2J there, 1 here"},
        {"", "a: 1\n", "nothing there, a: 1 here"},
    };
    char text[200];

    for (size_t i = 0; i < LENGTH(cases); i++) {
        assert_true(wire_difference(span_of(cases[i].there), cases[i].here, text, sizeof(text)));
        assert_string_equal(text, cases[i].want);
    }
    assert_false(wire_difference(span_of("a: 1\nb: 2\n"), "a: 1\nb: 2\n", text, 200));
    assert_false(wire_difference(span_of(""), "", text, 200));
}

TEST(tokens_are_the_same_or_not)
{
    assert_true(wire_token_is("", ""));
    assert_true(wire_token_is("abc", "abc"));
    assert_false(wire_token_is("abc", "abd"));
    assert_false(wire_token_is("ab", "abc"));
    assert_false(wire_token_is("abc", ""));
}
