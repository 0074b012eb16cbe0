/* plugins/transport/ucx/lanes.c, over what UCX 1.13.1 prints. */
#include "test.h"

#include "lanes.h"

TEST(memory_is_put_to_and_added_to)
{
    struct lanes lanes =
        lanes_read("#\n# UCP endpoint \n#\n#               peer: host:1234\n"
                   "#                 lane[0]:  3:sysv/memory.0 md[2]           -> "
                   "md[2]/sysv/sysdev[255] amo#0 am am_bw#0\n"
                   "#                 lane[1]:  4:posix/memory.0 md[3]          -> "
                   "md[3]/posix/sysdev[255] amo#1\n#\n"
                   "#                  put[0]: 0..<short>..4294967296..<bcopy>..(inf)\n"
                   "#                  get[0]: 0..<bcopy>..(inf)\n"
                   "#                  put[1]: 0..<short>..4294967296..<bcopy>..(inf)\n"
                   "#                  get[1]: 0..<bcopy>..(inf)\n#\n");

    assert_true(lanes.puts && lanes.additions);
    assert_string_equal(lanes.names, "sysv/memory, posix/memory");
}

TEST(tcp_has_neither_and_is_named_for_its_messages)
{
    struct lanes lanes =
        lanes_read("#                 lane[0]:  1:tcp/lo.0 md[1]                -> "
                   "md[1]/tcp/sysdev[255] am am_bw#0 wireup\n"
                   "#                 lane[1]:  2:tcp/eth0.100.0 md[1]          -> "
                   "md[1]/tcp/sysdev[255] am_bw#1\n#\n");

    assert_false(lanes.puts || lanes.additions);
    assert_string_equal(lanes.names, "tcp/lo");
}

TEST(a_network_that_puts_may_leave_additions_to_the_peer)
{
    struct lanes lanes =
        lanes_read("#                 lane[0]:  2:rc_verbs/rxe0:1.0 md[1]       -> "
                   "md[1]/ib/sysdev[255] rma_bw#0 am am_bw#0 wireup{ud_verbs/rxe0:1}\n#\n"
                   "#                  put[0]: 0..<short>..33..<bcopy>..1024..<zcopy>..(inf)\n");

    assert_true(lanes.puts);
    assert_false(lanes.additions);
    assert_string_equal(lanes.names, "rc_verbs/rxe0:1");
}

TEST(a_device_with_a_dot_keeps_it)
{
    struct lanes lanes = lanes_read("# lane[0]:  1:tcp/eth0.100.0 md[1] -> md[1]/tcp/sysdev[255] "
                                    "rma_bw#0 am am_bw#0\n");

    assert_string_equal(lanes.names, "tcp/eth0.100");
}

TEST(what_is_not_understood_counts_as_emulated)
{
    char text[2000];
    struct lanes lanes;

    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    lanes = lanes_read(text);
    assert_false(lanes.puts || lanes.additions);
    lanes = lanes_read("");
    assert_string_equal(lanes.names, "what this UCX does not tell");
    lanes = lanes_read("lane[99]: 1:tcp/lo.0\nlane[0]:\nlane[\n put[77]: 0..<short>\n put[3]: 0");
    assert_false(lanes.puts);
}

TEST(many_names_fit_or_are_cut_short)
{
    char text[4096] = "";
    size_t n = 0;
    struct lanes lanes;

    for (int i = 0; i < 16; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n,
                              "# lane[%d]: %d:rc_mlx5/mlx5_%d:1.0 md[1] -> md[1]/ib/sysdev[1] "
                              "amo#%d\n#  put[%d]: 0\n",
                              i, i, i, i, i);
    lanes = lanes_read(text);
    assert_true(lanes.puts && lanes.additions);
    assert_int_equal(strlen(lanes.names), LANES_NAMES - 1);
}

TEST(what_it_may_use_are_its_resources)
{
    static const char text[] = "#\n# UCP context\n#\n#     component 0  :  self\n#\n"
                               "#            md 0  :  component 0  self \n#\n"
                               "#      resource 0  :  md 0  dev 0  flags -- self/memory0\n"
                               "#      resource 1  :  md 1  dev 2  flags -- tcp/eth0 \n"
                               "#      resource 2  :  md 1  dev 2  flags s- posix/memory\n#\n";
    char out[64], narrow[24];

    lanes_choices(text, out, sizeof(out));
    assert_string_equal(out, "self/memory0, tcp/eth0, posix/memory");
    lanes_choices(text, narrow, sizeof(narrow));
    assert_string_equal(narrow, "self/memory0, tcp/eth0");
    lanes_choices("", out, sizeof(out));
    assert_string_equal(out, "");
}

static const struct card good = {.base = 0x7f0000000000,
                                 .heap_bytes = 4096,
                                 .region_bytes = 8192,
                                 .signals = 3,
                                 .address_bytes = 77,
                                 .key_bytes = 30,
                                 .version = {1, 13}};

static void card_is_refused(struct card bad, const char *text)
{
    const struct card cards[2] = {good, bad};
    struct epa_error err = {EPA_OK, ""};

    assert_true(cards_check(cards, 2, 0, &err) != EPA_OK);
    assert_words(err.text, "rank 1");
    assert_words(err.text, text);
}

TEST(cards_that_cannot_be_are_refused)
{
    const struct card cards[2] = {good, good};
    struct card bad = good;

    assert_int_equal(cards_check(cards, 2, 1, NULL), EPA_OK);
    assert_int_equal(cards_stride(cards, 2), 112);
    bad.address_bytes = CARD_ADDRESS_MOST + 1;
    card_is_refused(bad, "an address of 65537 bytes");
    bad = good;
    bad.key_bytes = UINT32_MAX;
    card_is_refused(bad, "a key of 4294967295");
    bad = good;
    bad.key_bytes = 0;
    card_is_refused(bad, "a key of 0");
    bad = good;
    bad.region_bytes = 4096;
    card_is_refused(bad, "memory of 4096 bytes");
    bad = good;
    bad.base = UINT64_MAX - 4095;
    card_is_refused(bad, "cannot be");
    bad = good;
    bad.base++;
    card_is_refused(bad, "cannot be");
    bad = good;
    bad.signals++;
    card_is_refused(bad, "4 signals");
    bad = good;
    bad.version[1]++;
    card_is_refused(bad, "UCX 1.14");
}
