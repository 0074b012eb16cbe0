/* Tests of plugins/transport/ucx/lanes.c with output of UCX 1.13.1. */
#include "test.h"

#include "lanes.h"

TEST(lanes_name_the_operations_of_the_network)
{
    static const struct {
        const char *text;
        bool puts, additions, rdma;
        const char *names;
    } c[] = {
        {"#\n# UCP endpoint \n#\n#               peer: host:1234\n"
         "#                 lane[0]:  3:sysv/memory.0 md[2]           -> "
         "md[2]/sysv/sysdev[255] amo#0 am am_bw#0\n"
         "#                 lane[1]:  4:posix/memory.0 md[3]          -> "
         "md[3]/posix/sysdev[255] amo#1\n#\n"
         "#                  put[0]: 0..<short>..4294967296..<bcopy>..(inf)\n"
         "#                  get[0]: 0..<bcopy>..(inf)\n"
         "#                  put[1]: 0..<short>..4294967296..<bcopy>..(inf)\n",
         true, true, false, "sysv/memory, posix/memory"},
        /* TCP has neither puts nor additions and is named for its messages. */
        {"#                 lane[0]:  1:tcp/lo.0 md[1]                -> "
         "md[1]/tcp/sysdev[255] am am_bw#0 wireup\n"
         "#                 lane[1]:  2:tcp/eth0.100.0 md[1]          -> "
         "md[1]/tcp/sysdev[255] am_bw#1\n#\n",
         false, false, false, "tcp/lo"},
        /* A network with puts may leave additions to the peer. */
        {"#                 lane[0]:  2:rc_verbs/rxe0:1.0 md[1]       -> "
         "md[1]/ib/sysdev[255] rma_bw#0 am am_bw#0 wireup{ud_verbs/rxe0:1}\n#\n"
         "#                  put[0]: 0..<short>..33..<bcopy>..1024..<zcopy>..(inf)\n",
         true, false, true, "rc_verbs/rxe0:1"},
        {"# lane[0]:  1:tcp/eth0.100.0 md[1] -> md[1]/tcp/sysdev[255] rma_bw#0 am am_bw#0\n", false,
         false, false, "tcp/eth0.100"},
        /* format of protocols that put from GPU memory */
        {"# lane[0]: 2:rc_mlx5/mlx5_0:1.0 md[1] -> md[1]/ib/sysdev[1] rma_bw#0 am am_bw#0\n", false,
         false, true, "rc_mlx5/mlx5_0:1"},
        {"# lane[0]: 2:rc_mlx5/mlx5_0:1.0 md[1] -> md[1]/ib/sysdev[1] rma_bw#0 am am_bw#0\n"
         "# lane[1]: 3:cuda_ipc/cuda.0 md[2] -> md[2]/cuda_ipc/sysdev[1] rma_bw#1\n",
         false, false, false, "rc_mlx5/mlx5_0:1"},
        /* Within a host a device may serve only additions. */
        {"# lane[0]:  4:posix/memory.0 md[3] -> md[3]/posix/sysdev[255] am am_bw#0\n"
         "# lane[1]:  2:rc_mlx5/mlx5_0:1.0 md[1] -> md[1]/ib/sysdev[1] amo#0\n"
         "# put[0]: 0..<short>..4294967296..<bcopy>..(inf)\n",
         true, true, false, "posix/memory"},
        {"", false, false, false, "what this UCX does not tell"},
    };
    char text[4096] = "";
    size_t n = 0;
    struct lanes lanes;

    for (size_t i = 0; i < LENGTH(c); i++) {
        lanes = lanes_read(c[i].text);
        assert_int_equal(lanes.puts, c[i].puts);
        assert_int_equal(lanes.additions, c[i].additions);
        assert_int_equal(lanes.rdma, c[i].rdma);
        assert_string_equal(lanes.names, c[i].names);
    }
    lanes = lanes_read("lane[99]: 1:tcp/lo.0\nlane[0]:\nlane[\n put[77]: 0..<short>\n put[3]: 0");
    assert_false(lanes.puts);
    for (int i = 0; i < 16; i++) /* long lists of names are truncated */
        n += (size_t)snprintf(text + n, sizeof(text) - n,
                              "# lane[%d]: %d:rc_mlx5/mlx5_%d:1.0 md[1] -> md[1]/ib/sysdev[1] "
                              "amo#%d\n#  put[%d]: 0\n",
                              i, i, i, i, i);
    lanes = lanes_read(text);
    assert_true(lanes.puts && lanes.additions && !lanes.rdma);
    assert_int_equal(strlen(lanes.names), LANES_NAMES - 1);
}

TEST(usable_devices_are_the_resources)
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
                                 .version = {1, 13},
                                 .tcp_segments = "128k/256k"};

TEST(invalid_cards_are_refused)
{
    struct card bad[10];
    static const char *const said[] = {"",
                                       "an address of 65537 bytes",
                                       "a key of 4294967295",
                                       "a key of 0",
                                       "memory of 4096 bytes",
                                       "cannot be",
                                       "cannot be",
                                       "4 signals",
                                       "UCX 1.14",
                                       "other TCP segments"};

    for (size_t i = 0; i < LENGTH(bad); i++)
        bad[i] = good;
    bad[1].address_bytes = CARD_ADDRESS_MOST + 1;
    bad[2].key_bytes = UINT32_MAX;
    bad[3].key_bytes = 0;
    bad[4].region_bytes = 4096;
    bad[5].base = UINT64_MAX - 4095;
    bad[6].base++;
    bad[7].signals++;
    bad[8].version[1]++;
    /* control characters must not reach a terminal */
    memcpy(bad[9].tcp_segments, "\033[2J16k", sizeof("\033[2J16k"));
    for (size_t i = 0; i < LENGTH(bad); i++) {
        const struct card cards[2] = {good, bad[i]};
        struct epa_error err = {EPA_OK, ""};

        assert_int_equal(cards_check(cards, 2, 0, &err) == EPA_OK, i == 0);
        assert_words(err.text, i == 0 ? "" : "rank 1");
        assert_words(err.text, said[i]);
        assert_null(strchr(err.text, '\033'));
        if (i == 0)
            assert_int_equal(cards_stride(cards, 2), 112);
    }
}
