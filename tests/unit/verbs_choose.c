/* Which port, GID and P_Key the verbs transport takes, what it says of a failure, and when a
 * signal counts, decided without a device. */
#include "test.h"

#include "../../plugins/transport/verbs/verbs.h"

enum { PORTS = 3 };

static const struct port ports[PORTS] = {
    {.device = "mlx5_0", .number = 1, .state = "DOWN", .link = LINK_ETHERNET},
    {.device = "mlx5_1", .number = 1, .state = "ACTIVE", .active = true, .link = LINK_INFINIBAND},
    {.device = "mlx5_1", .number = 2, .state = "ACTIVE", .active = true, .link = LINK_ETHERNET},
};

static const struct port *chosen(const char *device, uint32_t number)
{
    const struct port_wish wish = {.device = device, .number = number};
    const struct port *out = NULL;
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(choose_port(ports, PORTS, &wish, &out, &err), EPA_OK);
    return out;
}

static void says_no_port(uint32_t n, const char *device, uint32_t number, const char *text)
{
    const struct port_wish wish = {.device = device, .number = number};
    const struct port *out = NULL;
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(choose_port(ports, n, &wish, &out, &err), EPA_ERR_UNSUPPORTED);
    assert_words(err.text, text);
    assert_null(out);
}

TEST(the_first_active_port_that_fits_is_taken)
{
    assert_ptr_equal(chosen(NULL, 0), &ports[1]);
    assert_ptr_equal(chosen("mlx5_1", 0), &ports[1]);
    assert_ptr_equal(chosen("mlx5_1", 2), &ports[2]);
    assert_ptr_equal(chosen(NULL, 2), &ports[2]);
}

TEST(ports_that_there_are_are_named)
{
    says_no_port(0, NULL, 0, "no RDMA device .. `ibv_devices` .. ucx or shm");
    says_no_port(0, "mlx5_0", 1, "no RDMA device .. `ibv_devices` .. ucx or shm");
    says_no_port(2, "mlx4_0", 0,
                 "mlx4_0 .. mlx5_0 port 1 is DOWN (Ethernet), mlx5_1 port 1 is ACTIVE (Infini");
    says_no_port(3, "mlx5_0", 2,
                 "mlx5_0 port 2 .. mlx5_0 port 1 .. mlx5_1 port 1 .. mlx5_1 port 2 is ACTIVE (Eth");
    says_no_port(1, NULL, 0,
                 "active .. mlx5_0 port 1 is DOWN .. transport.device and transport.port");
    says_no_port(3, "mlx5_0", 1,
                 "active .. mlx5_0 port 1: mlx5_0 port 1 is DOWN .. `ibv_devinfo` and `rdma link`");
}

TEST(a_device_that_cannot_be_opened_says_why)
{
    const struct port port = {.device = "rxe0", .refused = "cannot be opened: no"};
    const struct port_wish wish = {.device = NULL};
    const struct port *out = NULL;
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(choose_port(&port, 1, &wish, &out, &err), EPA_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "rxe0 cannot be opened: no"));
}

/* ---- GIDs ---- */

static const struct gid gids[] = {
    {0, GID_ROCE_V1, {0xfe, 0x80, [15] = 1}},
    {1, GID_ROCE_V2, {0xfe, 0x80, [15] = 1}},
    {2, GID_ROCE_V1, {[10] = 0xff, 0xff, 10, 0, 0, 1}},
    {3, GID_ROCE_V2, {0x20, 0x01, [15] = 1}},
    {5, GID_ROCE_V2, {[10] = 0xff, 0xff, 10, 0, 0, 1}},
    {6, GID_ROCE_V2, {[10] = 0xff, 0xff, 10, 0, 0, 2}},
};
enum { GIDS = LENGTH(gids) };

static uint32_t chosen_gid(uint32_t n, const char *wish)
{
    struct epa_error err = {EPA_OK, ""};
    struct gid out = {.index = 99};

    assert_int_equal(choose_gid(gids, n, &ports[2], wish, &out, &err), EPA_OK);
    return out.index;
}

TEST(of_roce_the_best_gid_is_taken_whatever_its_number)
{
    assert_int_equal(chosen_gid(GIDS, NULL), 5);
    assert_int_equal(chosen_gid(GIDS, "auto"), 5);
    assert_int_equal(chosen_gid(4, "auto"), 3);
    assert_int_equal(chosen_gid(3, "auto"), 1);
    assert_int_equal(chosen_gid(1, "auto"), 0);
}

TEST(a_gid_can_be_asked_for_by_number_and_by_address)
{
    assert_int_equal(chosen_gid(GIDS, "0"), 0);
    assert_int_equal(chosen_gid(GIDS, "6"), 6);
    assert_int_equal(chosen_gid(GIDS, "::ffff:10.0.0.2"), 6);
    assert_int_equal(chosen_gid(GIDS, "10.0.0.1"), 5);
    assert_int_equal(chosen_gid(GIDS, "fe80::1"), 1);
}

TEST(of_infiniband_the_first_gid_is_taken)
{
    const struct gid table[] = {{0, GID_INFINIBAND, {0xfe, 0x80, [15] = 7}},
                                {1, GID_INFINIBAND, {0xfe, 0x80, [15] = 8}}};
    struct epa_error err = {EPA_OK, ""};
    struct gid out;

    assert_int_equal(choose_gid(table, 2, &ports[1], NULL, &out, &err), EPA_OK);
    assert_int_equal(out.index, 0);
    assert_int_equal(choose_gid(table, 2, &ports[1], "1", &out, &err), EPA_OK);
    assert_int_equal(out.index, 1);
}

static void says_no_gid(uint32_t n, const char *wish, enum epa_status status, const char *text)
{
    struct epa_error err = {EPA_OK, ""};
    struct gid out;

    assert_int_equal(choose_gid(gids, n, &ports[2], wish, &out, &err), status);
    assert_words(err.text, text);
}

TEST(a_gid_that_is_not_there_is_refused_with_those_that_are)
{
    says_no_gid(2, "7", EPA_ERR_CONFIG,
                "mlx5_1 port 2 .. '7' .. 0 is fe80::1 (RoCE v1), 1 is fe80::1 (RoCE v2)");
    says_no_gid(1, "10.0.0.1", EPA_ERR_CONFIG, "'10.0.0.1' .. 0 is fe80::1 (RoCE v1)");
    says_no_gid(1, "1x", EPA_ERR_CONFIG, "transport.gid '1x' .. auto .. `ibv_devinfo -v`");
    says_no_gid(0, NULL, EPA_ERR_UNSUPPORTED, "mlx5_1 port 2 .. GID .. `ip address add`");
}

TEST(a_global_header_goes_where_it_must)
{
    struct port p = {.link = LINK_INFINIBAND};
    const uint8_t mine[GID_BYTES] = {0xfe, 0x80, [15] = 1};
    const uint8_t near[GID_BYTES] = {0xfe, 0x80, [15] = 2};
    const uint8_t far[GID_BYTES] = {0xfe, 0x80, [7] = 1, [15] = 2};

    assert_false(needs_grh(&p, mine, 5, near));
    assert_true(needs_grh(&p, mine, 5, far));
    assert_true(needs_grh(&p, mine, 0, near));
    p.needs_grh = true;
    assert_true(needs_grh(&p, mine, 5, near));
    p = (struct port){.link = LINK_ETHERNET};
    assert_true(needs_grh(&p, mine, 5, near));
}

/* ---- P_Keys ---- */

TEST(a_partition_is_found_by_its_key)
{
    const uint16_t pkey[] = {0xffff, 0, 0x0001, 0x8002};
    struct epa_error err = {EPA_OK, ""};
    uint32_t index = 99;

    assert_int_equal(choose_pkey(pkey, 4, &ports[1], "auto", &index, &err), EPA_OK);
    assert_int_equal(index, 0);
    assert_int_equal(choose_pkey(pkey, 4, &ports[1], "0x8001", &index, &err), EPA_OK);
    assert_int_equal(index, 2);
    assert_int_equal(choose_pkey(pkey, 4, &ports[1], "0x0002", &index, &err), EPA_OK);
    assert_int_equal(index, 3);
    assert_int_equal(choose_pkey(pkey, 4, &ports[1], "0x8003", &index, &err), EPA_ERR_CONFIG);
    assert_words(err.text, "mlx5_1 .. 1 .. P_Key .. 0x8003 .. 0xffff .. 0x0001 .. 0x8002");
    err = (struct epa_error){EPA_OK, ""};
    assert_int_equal(choose_pkey(pkey, 4, &ports[1], "blue", &index, &err), EPA_ERR_CONFIG);
    assert_words(err.text, "transport.pkey .. 'blue' .. P_Key .. 0x8001");
}

/* ---- pinned memory ---- */

TEST(memory_that_may_not_be_pinned_is_refused_by_arithmetic)
{
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(check_memlock(65536, 65536, false, &err), EPA_OK);
    assert_int_equal(check_memlock((uint64_t)1 << 60, UINT64_MAX, false, &err), EPA_OK);
    assert_int_equal(check_memlock((uint64_t)1 << 60, 65536, true, &err), EPA_OK);
    assert_int_equal(check_memlock(65537, 65536, false, &err), EPA_ERR_UNSUPPORTED);
    assert_words(err.text,
                 "65 .. 64 .. RLIMIT_MEMLOCK .. `ulimit -l unlimited` .. 'memlock unlimited' .. "
                 "etc/security .. limits.conf .. LimitMEMLOCK=infinity .. --ulimit .. -1");
}

/* ---- words ---- */

static void says_of_request(const struct queue_failure *failure, const char *text)
{
    const struct request_words words = {.failure = failure,
                                        .port = "port 1 of rxe0 is ACTIVE",
                                        .rank = 2,
                                        .timeout = 14,
                                        .retries = 7};
    char out[480];

    request_in_words(&words, out, sizeof(out));
    assert_words(out, text);
}

TEST(a_failed_request_names_peer_operation_status_and_what_to_look_at)
{
    says_of_request(
        &(struct queue_failure){.failed = true,
                                .status = IBV_WC_RETRY_EXC_ERR,
                                .vendor = 0x81,
                                .peer = 5,
                                .opcode = IBV_WR_RDMA_WRITE,
                                .bytes = 7184},
        "rank 2: RDMA write of 7184 bytes to rank 5 .. status 12, vendor 0x81 .. 8 tries .. "
        "0.0671 s .. "
        "rank 5 .. port 1 of rxe0 is ACTIVE .. transport.timeout");
    says_of_request(
        &(struct queue_failure){.failed = true,
                                .status = IBV_WC_REM_ACCESS_ERR,
                                .peer = 1,
                                .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                .bytes = 8},
        "rank 2: fetch-and-add of 8 bytes to rank 1 .. status 10, vendor 0x0 .. rank 1");
    says_of_request(
        &(struct queue_failure){
            .failed = true, .posting = true, .error = 12, .peer = 1, .opcode = IBV_WR_RDMA_WRITE},
        "rank 2: .. RDMA write to rank 1 .. errno 12 .. port 1 of rxe0 is ACTIVE");
}

TEST(every_status_leads_to_some_advice_that_fits)
{
    for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_GENERAL_ERR; status++) {
        const struct queue_failure failure = {
            .failed = true, .status = (enum ibv_wc_status)status, .peer = 65535};
        const struct request_words words = {
            .failure = &failure,
            .port = "port 1 of a device with quite a long name_0 is ACTIVE",
            .timeout = 31};
        char out[480];

        request_in_words(&words, out, sizeof(out));
        assert_non_null(strstr(out, "to rank 65535 failed"));
        assert_true(strlen(out) < sizeof(out) - 1);
    }
}

/* ---- signals that are seen in the middle of a write ---- */

struct writer {
    uint64_t word, then; /* what the word is after the pause */
};

static void go_on_writing(const void *arg)
{
    struct writer *w = (struct writer *)(uintptr_t)arg;

    w->word = w->then;
}

static bool counts(uint64_t seen, uint64_t then, enum epa_compare compare, uint64_t want)
{
    struct writer w = {.word = seen, .then = then};

    return poll_settled(&w.word, compare, want, go_on_writing, &w);
}

TEST(a_signal_counts_once_two_looks_saw_the_same)
{
    assert_true(counts(7, 7, EPA_GE, 7));
    assert_true(counts(7, 7, EPA_EQ, 7));
    assert_false(counts(6, 7, EPA_GE, 7)); /* is there at the next look */
    assert_false(counts(8, 7, EPA_EQ, 7));
}

/* From 0xff to 0x100, the high byte first: larger than either. */
TEST(half_a_signal_that_looks_larger_does_not_count)
{
    assert_false(counts(0x1ff, 0x100, EPA_GE, 0x180));
    assert_false(counts(0x1ff, 0x100, EPA_GE, 0x100)); /* but at the next look */
    assert_true(counts(0x100, 0x100, EPA_GE, 0x100));
}

TEST(reading_waits_until_the_value_is_whole)
{
    struct writer w = {.word = 0x1ff, .then = 0x100};

    assert_int_equal(look_up(&w.word, go_on_writing, &w), 0x100);
}

TEST(first_packet_numbers_are_random_and_have_24_bits)
{
    uint32_t all = 0, first = choose_psn(), same = 0;

    for (int i = 0; i < 256; i++) {
        uint32_t psn = choose_psn();

        all |= psn;
        same += psn == first;
    }
    assert_int_equal(all, 0xffffff); /* each bit in some of them */
    assert_true(same <= 1);
}
