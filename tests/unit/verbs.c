/* Tests of the verbs transport without a device: choice of port, GID and P_Key, messages of
 * failures, the arrival of signals, and queues over a simulated device. The device accepts requests
 * and completes them when a test decides. tests/contract in tests/vm runs on a real device. */
#include "test.h"
#include <errno.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../plugins/transport/verbs/queue.h"
#include "../../plugins/transport/verbs/state.h"
#include "../../plugins/transport/verbs/waits.h"

enum { PORTS = 3 };

static const struct port ports[PORTS] = {
    {.device = "mlx5_0", .number = 1, .state = "DOWN", .link = LINK_ETHERNET},
    {.device = "mlx5_1", .number = 1, .state = "ACTIVE", .active = true, .link = LINK_INFINIBAND},
    {.device = "mlx5_1", .number = 2, .state = "ACTIVE", .active = true, .link = LINK_ETHERNET},
};

/* The first usable active port is chosen; otherwise the message lists the ports. */
TEST(a_port_is_chosen_or_the_ports_are_listed)
{
    static const struct {
        uint32_t n;
        const char *device;
        uint32_t number;
        int chosen; /* -1: none */
        const char *said;
    } c[] = {
        {3, NULL, 0, 1, ""},
        {3, "mlx5_1", 0, 1, ""},
        {3, "mlx5_1", 2, 2, ""},
        {3, NULL, 2, 2, ""},
        {0, NULL, 0, -1, "no RDMA device .. `ibv_devices` .. ucx or shm"},
        {0, "mlx5_0", 1, -1, "no RDMA device .. `ibv_devices` .. ucx or shm"},
        {2, "mlx4_0", 0, -1,
         "mlx4_0 .. mlx5_0 port 1 is DOWN (Ethernet), mlx5_1 port 1 is ACTIVE (Infini"},
        {3, "mlx5_0", 2, -1,
         "mlx5_0 port 2 .. mlx5_0 port 1 .. mlx5_1 port 1 .. mlx5_1 port 2 is ACTIVE (Eth"},
        {1, NULL, 0, -1, "active .. mlx5_0 port 1 is DOWN .. transport.device and transport.port"},
        {3, "mlx5_0", 1, -1,
         "active .. mlx5_0 port 1: mlx5_0 port 1 is DOWN .. `ibv_devinfo` and `rdma link`"},
    };
    const struct port refused = {.device = "rxe0", .refused = "cannot be opened: no"};
    const struct port *port = NULL;

    for (size_t i = 0; i < LENGTH(c); i++) {
        const struct port_wish wish = {.device = c[i].device, .number = c[i].number};

        port = NULL;
        assert_status(choose_port(ports, c[i].n, &wish, &port, test_error()),
                      c[i].chosen >= 0 ? EPA_OK : EPA_ERR_UNSUPPORTED, c[i].said);
        assert_ptr_equal(port, c[i].chosen >= 0 ? &ports[c[i].chosen] : NULL);
    }
    assert_status(choose_port(&refused, 1, &(struct port_wish){NULL}, &port, test_error()),
                  EPA_ERR_UNSUPPORTED, "rxe0 cannot be opened: no");
}

static const struct gid gids[] = {
    {0, GID_ROCE_V1, {0xfe, 0x80, [15] = 1}},
    {1, GID_ROCE_V2, {0xfe, 0x80, [15] = 1}},
    {2, GID_ROCE_V1, {[10] = 0xff, 0xff, 10, 0, 0, 1}},
    {3, GID_ROCE_V2, {0x20, 0x01, [15] = 1}},
    {5, GID_ROCE_V2, {[10] = 0xff, 0xff, 10, 0, 0, 1}},
    {6, GID_ROCE_V2, {[10] = 0xff, 0xff, 10, 0, 0, 2}},
};
enum { GIDS = LENGTH(gids) };

/* RoCE: the best GID is chosen regardless of its number. InfiniBand: the first one. A GID given by
 * number or address takes precedence. */
TEST(a_gid_is_chosen_or_the_gids_are_listed)
{
    static const struct {
        uint32_t n;
        const char *wish;
        uint32_t index;
        enum epa_status status;
        const char *said;
    } c[] = {
        {GIDS, NULL, 5, EPA_OK, ""},
        {GIDS, "auto", 5, EPA_OK, ""},
        {4, "auto", 3, EPA_OK, ""},
        {3, "auto", 1, EPA_OK, ""},
        {1, "auto", 0, EPA_OK, ""},
        {GIDS, "6", 6, EPA_OK, ""},
        {GIDS, "::ffff:10.0.0.2", 6, EPA_OK, ""},
        {GIDS, "10.0.0.1", 5, EPA_OK, ""},
        {GIDS, "fe80::1", 1, EPA_OK, ""},
        {2, "7", 99, EPA_ERR_CONFIG,
         "mlx5_1 port 2 .. '7' .. 0 is fe80::1 (RoCE v1), 1 is fe80::1 (RoCE v2)"},
        {1, "10.0.0.1", 99, EPA_ERR_CONFIG, "'10.0.0.1' .. 0 is fe80::1 (RoCE v1)"},
        {1, "1x", 99, EPA_ERR_CONFIG, "transport.gid '1x' .. auto .. `ibv_devinfo -v`"},
        {0, NULL, 99, EPA_ERR_UNSUPPORTED, "mlx5_1 port 2 .. GID .. `ip address add`"},
    };
    const struct gid table[] = {{0, GID_INFINIBAND, {0xfe, 0x80, [15] = 7}},
                                {1, GID_INFINIBAND, {0xfe, 0x80, [15] = 8}}};
    struct gid out;

    for (size_t i = 0; i < LENGTH(c); i++) {
        out = (struct gid){.index = 99};
        assert_status(choose_gid(gids, c[i].n, &ports[2], c[i].wish, &out, test_error()),
                      c[i].status, c[i].said);
        assert_int_equal(out.index, c[i].index);
    }
    assert_int_equal(choose_gid(table, 2, &ports[1], NULL, &out, NULL), EPA_OK);
    assert_int_equal(out.index, 0);
    assert_int_equal(choose_gid(table, 2, &ports[1], "1", &out, NULL), EPA_OK);
    assert_int_equal(out.index, 1);
}

TEST(a_global_header_is_used_only_if_required)
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

TEST(a_partition_is_found_by_its_key)
{
    static const struct {
        const char *wish;
        uint32_t index;
        const char *said; /* expected message; "": found */
    } c[] = {{"auto", 0, ""},
             {"0x8001", 2, ""},
             {"0x0002", 3, ""},
             {"0x8003", 0, "mlx5_1 .. 1 .. P_Key .. 0x8003 .. 0xffff .. 0x0001 .. 0x8002"},
             {"blue", 0, "transport.pkey .. 'blue' .. P_Key .. 0x8001"}};
    const uint16_t pkey[] = {0xffff, 0, 0x0001, 0x8002};

    for (size_t i = 0; i < LENGTH(c); i++) {
        uint32_t index = 0;

        assert_status(choose_pkey(pkey, 4, &ports[1], c[i].wish, &index, test_error()),
                      c[i].said[0] == '\0' ? EPA_OK : EPA_ERR_CONFIG, c[i].said);
        assert_int_equal(index, c[i].index);
    }
}

TEST(memory_beyond_the_memlock_limit_is_refused)
{
    assert_int_equal(check_memlock(65536, 65536, false, NULL), EPA_OK);
    assert_int_equal(check_memlock((uint64_t)1 << 60, UINT64_MAX, false, NULL), EPA_OK);
    assert_int_equal(check_memlock((uint64_t)1 << 60, 65536, true, NULL), EPA_OK);
    assert_status(check_memlock(65537, 65536, false, test_error()), EPA_ERR_UNSUPPORTED,
                  "65 .. 64 .. RLIMIT_MEMLOCK .. `ulimit -l unlimited` .. 'memlock unlimited' .. "
                  "etc/security .. limits.conf .. LimitMEMLOCK=infinity .. --ulimit .. -1");
}

/* ---- messages ---- */

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

TEST(a_failed_request_names_peer_operation_status_and_remedy)
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

/* ---- signals read during a write ---- */

struct writer {
    uint64_t word, then; /* value of the word after the pause */
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

/* A write of 0x100 over 0xff that starts with the high byte shows 0x1ff for a moment, which is
 * larger than both. */
TEST(a_signal_counts_after_two_equal_reads)
{
    struct writer w = {.word = 0x1ff, .then = 0x100};

    assert_true(counts(7, 7, EPA_GE, 7));
    assert_true(counts(7, 7, EPA_EQ, 7));
    assert_false(counts(6, 7, EPA_GE, 7)); /* counts at the next read */
    assert_false(counts(8, 7, EPA_EQ, 7));
    assert_false(counts(0x1ff, 0x100, EPA_GE, 0x180));
    assert_false(counts(0x1ff, 0x100, EPA_GE, 0x100));
    assert_int_equal(look_up(&w.word, go_on_writing, &w), 0x100);
}

/* ---- queues ---- */

enum {
    SLOTS = 16,
    PEERS = 2,
    MOST = 4096,
    LOG = 4096,
    OWN_KEY = 7,
    PINNED_KEY = 9,
    LINES_KEY = 11,
    HEAP_KEY = 13,
};

struct request {
    uint64_t id, to, from, added;
    uint32_t flags, bytes, key, to_key;
    enum ibv_wr_opcode opcode;
};

/* All requests posted so far; the first `done` of them are complete. */
struct fake {
    struct ibv_context context;
    struct ibv_cq cq;
    struct ibv_qp qp[PEERS];
    struct request log[PEERS][LOG];
    uint64_t posted[PEERS], done[PEERS], posts;
    uint32_t deepest;
    struct ibv_wc wc[LOG]; /* completions to poll */
    uint32_t n_wc;
    int refuse; /* errno of the next post */
    struct queues queues;
    struct queue queue[PEERS];
    struct ibv_send_wr wr[PEERS][SLOTS];
    struct ibv_sge sge[PEERS][SLOTS];
    uint64_t value[PEERS][SLOTS], dump[PEERS];
    char heap[64 * MOST];
};

static struct fake *fake_of(struct ibv_context *context)
{
    return (struct fake *)context; /* the context is the first member */
}

static int post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct fake *f = fake_of(qp->context);
    uint32_t peer = (uint32_t)(qp - f->qp);

    f->posts++;
    if (f->refuse != 0) {
        *bad = wr;
        return f->refuse;
    }
    for (; wr != NULL; wr = wr->next) {
        struct request *r = &f->log[peer][f->posted[peer]++];
        bool adds = wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;

        *r = (struct request){.id = wr->wr_id, .flags = wr->send_flags, .opcode = wr->opcode};
        if (wr->num_sge == 1) {
            r->from = wr->sg_list->addr;
            r->bytes = wr->sg_list->length;
            r->key = wr->sg_list->lkey;
        }
        r->to = adds ? wr->wr.atomic.remote_addr : wr->wr.rdma.remote_addr;
        r->to_key = adds ? wr->wr.atomic.rkey : wr->wr.rdma.rkey;
        r->added = adds ? wr->wr.atomic.compare_add : 0;
        assert_true(r->bytes <= MOST);
        if (f->posted[peer] - f->done[peer] > f->deepest)
            f->deepest = (uint32_t)(f->posted[peer] - f->done[peer]);
    }
    return 0;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *out)
{
    struct fake *f = fake_of(cq->context);
    int n = f->n_wc < (uint32_t)most ? (int)f->n_wc : most;

    memcpy(out, f->wc, (size_t)n * sizeof(*out));
    f->n_wc -= (uint32_t)n;
    memmove(f->wc, f->wc + n, f->n_wc * sizeof(*out));
    return n;
}

/* Completes `n` requests to a peer. Only signalled requests and failures produce a completion. */
static void complete(struct fake *f, uint32_t peer, uint64_t n, enum ibv_wc_status status)
{
    for (uint64_t i = 0; i < n && f->done[peer] < f->posted[peer]; i++) {
        const struct request *r = &f->log[peer][f->done[peer]++];

        if ((r->flags & IBV_SEND_SIGNALED) != 0 || status != IBV_WC_SUCCESS)
            f->wc[f->n_wc++] =
                (struct ibv_wc){.wr_id = r->id, .status = status, .vendor_err = 0x51};
    }
}

static struct fake *make_fake(uint32_t batch)
{
    struct fake *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->context.ops.post_send = post;
    f->context.ops.poll_cq = poll_cq;
    f->cq.context = &f->context;
    f->queues = (struct queues){.cq = &f->cq,
                                .queue = f->queue,
                                .n = PEERS,
                                .pinned_key = PINNED_KEY,
                                .ask_every = SLOTS / 4,
                                .batch = batch,
                                .most_bytes = MOST};
    for (uint32_t p = 0; p < PEERS; p++) {
        f->qp[p].context = &f->context;
        f->queue[p] = (struct queue){.qp = &f->qp[p],
                                     .peer = p,
                                     .slots = SLOTS,
                                     .inline_bytes = 8,
                                     .wr = f->wr[p],
                                     .sge = f->sge[p],
                                     .value = f->value[p],
                                     .dump = &f->dump[p],
                                     .remote_key = LINES_KEY,
                                     .heap_key = HEAP_KEY};
    }
    return f;
}

static struct queue_source heap_of(const struct fake *f)
{
    return (struct queue_source){.at = f->heap, .key = OWN_KEY, .readable = true};
}

#define TEST_OF_QUEUES(name, begin) TEST_OF(name, struct fake, f, begin, free)

/* All pieces are posted as one list, and the signal follows them. */
TEST_OF_QUEUES(a_put_is_split_at_the_message_limit_of_the_port, make_fake(16))
{
    const struct request *r = f->log[1];
    uint64_t bytes = 2 * MOST + 100, value = 0;

    assert_int_equal(queue_pieces(&f->queues, 0), 0);
    assert_int_equal(queue_pieces(&f->queues, MOST), 1);
    assert_int_equal(queue_pieces(&f->queues, MOST + 1), 2);
    assert_int_equal(queue_pieces(&f->queues, bytes), 3);
    queue_write(&f->queues, &f->queue[1], heap_of(f), bytes, 1 << 20);
    queue_set(&f->queues, &f->queue[1], 0x123456789a, 128, false);
    queue_post(&f->queues, &f->queue[1]);
    assert_int_equal(f->posted[1], 4);
    assert_int_equal(f->posts, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r[i].opcode, IBV_WR_RDMA_WRITE);
        assert_int_equal(r[i].to, (1 << 20) + i * MOST);
        assert_int_equal(r[i].from, (uintptr_t)f->heap + (uintptr_t)i * MOST);
        assert_int_equal(r[i].bytes, i < 2 ? MOST : 100);
        assert_int_equal(r[i].key, OWN_KEY);
        assert_false(r[i].flags & IBV_SEND_INLINE);
    }
    assert_int_equal(r[3].to, 128);
    assert_int_equal(r[3].bytes, 8);
    assert_int_equal(r[3].key, PINNED_KEY);
    assert_true(r[3].flags & IBV_SEND_INLINE);
    memcpy(&value, (const void *)(uintptr_t)r[3].from, sizeof(value));
    assert_true(value == 0x123456789a);
}

/* Without inline data the device reads the value later, so that each value keeps its own slot until
 * its request is complete. */
TEST_OF_QUEUES(values_stay_until_their_requests_complete, make_fake(1))
{
    uint64_t n = 0, value = 0;

    f->queue[0].inline_bytes = 0;
    while (queue_has_room(&f->queue[0], 1)) {
        queue_set(&f->queues, &f->queue[0], 100 + n++, 0, false);
        queue_post(&f->queues, &f->queue[0]);
    }
    assert_int_equal(n, SLOTS - 1);
    for (uint64_t i = 0; i < n; i++) {
        memcpy(&value, (const void *)(uintptr_t)f->log[0][i].from, sizeof(value));
        assert_int_equal(value, 100 + i);
        assert_false(f->log[0][i].flags & IBV_SEND_INLINE);
    }
}

/* Random puts and signals over a device that completes at random. The queue never holds more
 * requests than its capacity, and all requests complete. */
TEST_OF_QUEUES(a_queue_never_exceeds_its_capacity, make_fake(5))
{
    struct queue *q = &f->queue[0];
    uint64_t begun = 0;

    srand(1);
    while (f->posted[0] < LOG - 2 * SLOTS) {
        uint64_t bytes = (uint64_t)(rand() % (3 * MOST)), n;

        n = queue_pieces(&f->queues, bytes) + 1;
        if (queue_has_room(q, n)) {
            queue_write(&f->queues, q, heap_of(f), bytes, 0);
            queue_set(&f->queues, q, ++begun, 0, false);
            if (rand() % 2 == 0)
                queue_post(&f->queues, q);
        } else {
            queue_ask(&f->queues, q);
            queue_post(&f->queues, q);
            complete(f, 0, 1 + (uint64_t)(rand() % SLOTS), IBV_WC_SUCCESS);
            assert_int_equal(queues_poll(&f->queues), EPA_OK);
        }
        assert_true(q->built - q->done <= SLOTS);
    }
    queue_ask(&f->queues, q);
    queues_post(&f->queues);
    complete(f, 0, LOG, IBV_WC_SUCCESS);
    assert_int_equal(queues_poll(&f->queues), EPA_OK);
    assert_true(queue_is_done(q, q->built));
    assert_int_equal(f->done[0], f->posted[0]);
    assert_true(f->deepest > SLOTS / 2 && f->deepest <= SLOTS);
}

TEST_OF_QUEUES(unsignalled_requests_can_be_waited_for, make_fake(16))
{
    struct queue *q = &f->queue[0];

    queue_write(&f->queues, q, heap_of(f), 64, 0);
    queue_ask(&f->queues, q); /* not posted yet: the request itself becomes signalled */
    queues_post(&f->queues);
    assert_int_equal(f->posted[0], 1);
    assert_true(f->log[0][0].flags & IBV_SEND_SIGNALED);
    queue_write(&f->queues, q, heap_of(f), 64, 0);
    queues_post(&f->queues);
    queue_ask(&f->queues, q); /* already posted: a request of zero bytes asks for the completion */
    queue_ask(&f->queues, q);
    queues_post(&f->queues);
    assert_int_equal(f->posted[0], 3);
    assert_int_equal(f->log[0][2].bytes, 0);
    assert_true(f->log[0][2].flags & IBV_SEND_SIGNALED);
    complete(f, 0, 3, IBV_WC_SUCCESS);
    assert_int_equal(queues_poll(&f->queues), EPA_OK);
    assert_true(queue_is_done(q, q->built));
    queue_ask(&f->queues, q); /* no requests outstanding */
    queues_post(&f->queues);
    assert_int_equal(f->posted[0], 3);
}

TEST_OF_QUEUES(an_addition_completes_by_its_count, make_fake(1))
{
    struct queue *q = &f->queue[0];
    const struct request *r = f->log[0];
    uint64_t mark;

    queue_write(&f->queues, q, heap_of(f), 64, 0);
    assert_true(queue_is_done(q, q->atomics)); /* no additions so far */
    queue_add(&f->queues, q, 3, 640);
    mark = q->atomics;
    queue_write(&f->queues, q, heap_of(f), 64, 0);
    assert_int_equal(r[1].opcode, IBV_WR_ATOMIC_FETCH_AND_ADD);
    assert_int_equal(r[1].added, 3);
    assert_int_equal(r[1].to, 640);
    assert_int_equal(r[1].bytes, 8);
    assert_int_equal(r[1].from, (uintptr_t)&f->dump[0]);
    assert_int_equal(r[1].key, PINNED_KEY);
    assert_false(queue_is_done(q, mark));
    queue_ask(&f->queues, q);
    queue_post(&f->queues, q);
    complete(f, 0, 1, IBV_WC_SUCCESS);
    assert_int_equal(queues_poll(&f->queues), EPA_OK);
    assert_false(queue_is_done(q, mark));
    complete(f, 0, SLOTS, IBV_WC_SUCCESS);
    assert_int_equal(queues_poll(&f->queues), EPA_OK);
    assert_true(queue_is_done(q, mark));
}

TEST_OF_QUEUES(the_first_failure_is_reported_with_its_peer_and_request, make_fake(1))
{
    queue_write(&f->queues, &f->queue[0], heap_of(f), 64, 0);
    queue_write(&f->queues, &f->queue[1], heap_of(f), 333, 0);
    queue_write(&f->queues, &f->queue[1], heap_of(f), 444, 0);
    complete(f, 0, 1, IBV_WC_WR_FLUSH_ERR); /* flushed request of another queue, polled first */
    complete(f, 1, 1, IBV_WC_RETRY_EXC_ERR);
    complete(f, 1, 1, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(queues_poll(&f->queues), EPA_ERR_DIED);
    assert_int_equal(f->queues.failure.status, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(f->queues.failure.peer, 1);
    assert_int_equal(f->queues.failure.bytes, 333);
    assert_int_equal(f->queues.failure.vendor, 0x51);
    assert_int_equal(f->queues.failure.opcode, IBV_WR_RDMA_WRITE);
    assert_int_equal(queues_poll(&f->queues), EPA_ERR_DIED); /* the failure is permanent */
}

TEST_OF_QUEUES(a_device_that_rejects_posts_is_a_failure, make_fake(1))
{
    f->refuse = EINVAL;
    queue_write(&f->queues, &f->queue[1], heap_of(f), 64, 0);
    assert_int_equal(queues_poll(&f->queues), EPA_ERR_SYSTEM);
    assert_true(f->queues.failure.posting);
    assert_int_equal(f->queues.failure.error, EINVAL);
    assert_int_equal(f->queues.failure.peer, 1);
    assert_int_equal(f->queues.held, 0);
}

/* The CPU reads inline data, but some memory is readable for the device only. Heap and signal lines
 * have separate registrations. */
TEST_OF_QUEUES(memory_unreadable_for_the_cpu_is_not_inline, make_fake(1))
{
    const struct request *r = f->log[1];
    struct queue_source from = heap_of(f);

    queue_write(&f->queues, &f->queue[1], from, 8, 64);
    from.readable = false;
    queue_write(&f->queues, &f->queue[1], from, 8, 64);
    queue_set(&f->queues, &f->queue[1], 1, 128, false);
    queue_add(&f->queues, &f->queue[1], 1, 128);
    queue_post(&f->queues, &f->queue[1]);
    assert_true(r[0].flags & IBV_SEND_INLINE);
    assert_false(r[1].flags & IBV_SEND_INLINE);
    assert_true(r[2].flags & IBV_SEND_INLINE);
    assert_int_equal(r[0].to_key, HEAP_KEY);
    assert_int_equal(r[1].to_key, HEAP_KEY);
    assert_int_equal(r[2].to_key, LINES_KEY);
    assert_int_equal(r[3].to_key, LINES_KEY);
}

/* A completion carries the low half of the count. */
TEST_OF_QUEUES(counts_continue_beyond_32_bits, make_fake(1))
{
    struct queue *q = &f->queue[1];

    q->built = q->posted = q->done = q->asked = 0xfffffffd;
    for (int i = 0; i < 8; i++)
        queue_write(&f->queues, q, heap_of(f), 64, 0);
    complete(f, 1, 8, IBV_WC_SUCCESS);
    assert_int_equal(queues_poll(&f->queues), EPA_OK);
    assert_true(q->done == 0x100000005);
    assert_true(queue_is_done(q, q->built));
}

static bool no_random; /* as in a sandbox that forbids the call */

ssize_t getrandom(void *out, size_t bytes, unsigned int flags)
{
    errno = ENOSYS;
    return no_random ? -1 : (ssize_t)syscall(SYS_getrandom, out, bytes, flags);
}

TEST(missing_random_numbers_fail_the_packet_number)
{
    struct epa_error err = {EPA_OK, ""};
    uint32_t psn = UINT32_MAX;

    assert_int_equal(choose_psn(&psn, &err), EPA_OK);
    assert_true(psn <= 0xffffff);
    alarm(60); /* limits an endless loop */
    no_random = true;
    assert_int_equal(choose_psn(&psn, &err), EPA_ERR_SYSTEM);
    no_random = false;
    alarm(0);
    assert_words(err.text, "getrandom: Function not implemented");
}
