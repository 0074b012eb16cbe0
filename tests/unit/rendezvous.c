/* Tests of the rendezvous against simulated launchers that are silent, late or misbehave.
 * tests/faults runs it with real launchers and strangers. */
#include "test.h"
#include <errno.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "boot/conn.h"
#include "launch/launcher.h"
#include "boot/net.h"
#include "launch/rendezvous.h"

enum { MOST = 8, ROOM = 64 };

struct game {
    struct rendezvous *rendezvous;
    struct epa_launch asked;
    struct conn client[MOST];
    uint32_t n;
    char block[MOST][100];
};

static struct game *begin(uint32_t size)
{
    static struct game game;
    struct game *g = &game;
    static const struct contact contact = {.token = "token"};
    static const struct launcher_settings settings = {.start_ns = 10000000000,
                                                      .heartbeat_ns = 10000000000};

    memset(g, 0, sizeof(*g));
    g->asked = (struct epa_launch){.ranks = size,
                                   .fingerprint = "a: 1\n",
                                   .timeout_ns = 100000000,
                                   .block = g->block[0],
                                   .block_bytes = sizeof(g->block[0])};
    assert_int_equal(rendezvous_create(&g->asked, &settings, &contact, -1, &g->rendezvous, NULL),
                     EPA_OK);
    return g;
}

static void finish(struct game *g)
{
    for (uint32_t i = 0; i < g->n; i++)
        conn_finish(&g->client[i]);
    rendezvous_destroy(g->rendezvous);
}

static struct conn *connect_one(struct game *g)
{
    int ends[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    rendezvous_adopt(g->rendezvous, ends[0]);
    conn_init(&g->client[g->n], ends[1], 1 << 22);
    return &g->client[g->n++];
}

/* Runs one turn of the rendezvous and of all simulated launchers. */
static void turn(struct game *g)
{
    struct pollfd fds[ROOM];
    uint32_t n = rendezvous_poll_room(g->asked.ranks);

    assert_true(n <= ROOM);
    rendezvous_polls(g->rendezvous, fds);
    (void)poll(fds, n, 1);
    rendezvous_turn(g->rendezvous, fds, false);
    for (uint32_t i = 0; i < g->n; i++)
        conn_turn(&g->client[i], POLLIN);
}

/* Waits for a message of one type; CONN_ALIVE and CONN_ABORT may arrive before it. */
static struct conn_message expect(struct game *g, struct conn *client, uint32_t type)
{
    uint64_t end = epa_now_ns() + 10000000000u;
    struct conn_message m = {0};

    while (epa_now_ns() < end) {
        while (conn_take(client, &m)) {
            if (m.type == type)
                return m;
            assert_true(m.type == CONN_ALIVE || m.type == CONN_ABORT);
        }
        if (client->fd < 0)
            fail_msg("for message %u: %s", type, client->why);
        turn(g);
    }
    fail_msg("message %u has not come", type);
    return m;
}

static struct conn_word expect_word(struct game *g, struct conn *client, uint32_t type)
{
    struct conn_message m = expect(g, client, type);
    struct conn_word word;

    assert_true(conn_get_word(&m, &word));
    return word;
}

/* Runs the handshake up to the proof and expects `want` as the reply. */
static void prove(struct game *g, struct conn *client, const char *token, uint32_t want)
{
    struct conn_greet mine, challenge;
    struct conn_message m, rest;

    conn_make_greet(&mine);
    conn_put(client, CONN_GREET, &mine, sizeof(mine), NULL, 0);
    m = expect(g, client, CONN_CHALLENGE);
    assert_true(conn_get(&m, &challenge, sizeof(challenge), &rest));
    conn_seal(client, token, &mine, &challenge, true);
    conn_say(client, CONN_PROOF);
    expect(g, client, want);
}

static void hello_as(struct conn *client, uint32_t rank, uint32_t size, uint32_t abi,
                     const char *fingerprint)
{
    struct conn_hello hello = {
        .rank = rank, .size = size, .pid = 1000 + rank, .abi = abi, .host = {"h", "m", "i"}};

    conn_put(client, CONN_HELLO, &hello, sizeof(hello), fingerprint, strlen(fingerprint));
}

static struct conn *join(struct game *g, uint32_t rank)
{
    struct conn *client = connect_one(g);

    prove(g, client, "token", CONN_PROOF);
    hello_as(client, rank, g->asked.ranks, EPA_ABI, "a: 1\n");
    return client;
}

static void join_all(struct game *g)
{
    for (uint32_t r = 0; r < g->asked.ranks; r++)
        join(g, r);
    for (uint32_t r = 0; r < g->asked.ranks; r++)
        expect(g, &g->client[r], CONN_WELCOME);
    if (g->asked.ranks > 1)
        expect(g, &g->client[1], CONN_BLOCKS);
}

static void send_word(struct conn *client, enum epa_status status)
{
    struct conn_word word = {.status = status, .rank = UINT32_MAX};

    conn_put_word(client, CONN_WORD, &word);
}

static void assert_verdict(struct game *g, struct conn *client, enum epa_status status,
                           const char *text)
{
    struct conn_word word = expect_word(g, client, CONN_VERDICT);

    assert_int_equal(word.status, status);
    assert_words(word.text, text);
}

/* Leaves after CONN_ABORT as a launcher does, and expects the verdict. */
static void assert_end(struct game *g, struct conn *client, enum epa_status status,
                       const char *text)
{
    expect(g, client, CONN_ABORT);
    conn_say(client, CONN_DONE);
    assert_verdict(g, client, status, text);
}

static void step_to(struct game *g, uint32_t rank, uint64_t number, const void *data, size_t bytes)
{
    conn_put_piece(&g->client[rank], CONN_STEP, rank, number, data, bytes);
}

#define TEST_OF_GAME(name, size) TEST_OF(name, struct game, g, begin(size), finish)

static void assert_refusal(struct conn *client, struct game *g, const char *text)
{
    struct conn_word word = expect_word(g, client, CONN_REFUSED);

    assert_int_equal(word.status, EPA_ERR_CONFIG);
    assert_words(word.text, text);
}

/* An attacker between a launcher and the rendezvous may change a message or repeat it. */
TEST(forged_and_repeated_messages_are_rejected)
{
    for (uint32_t repeated = 0; repeated < 2; repeated++) {
        struct game *g = begin(2);
        struct conn *victim = &g->client[1];
        unsigned char frame[1024];
        size_t bytes;

        join_all(g);
        send_word(victim, EPA_OK);
        bytes = victim->out_bytes;
        memcpy(frame, victim->out, bytes);
        frame[20] ^= repeated == 0;
        if (repeated != 0)
            conn_turn(victim, 0);
        assert_int_equal(write(victim->fd, frame, bytes), (ssize_t)bytes);
        assert_end(g, &g->client[0], EPA_ERR_DIED, "message authentication failed");
        finish(g);
    }
}

static struct conn_word death(uint32_t rank, uint32_t signal, uint64_t died_ns)
{
    struct conn_word word = conn_word_of(EPA_ERR_DIED, "rank %u by signal %u", rank, signal);

    word.rank = rank;
    word.signal = signal;
    word.died_ns = died_ns;
    return word;
}

static struct conn_word interrupt(uint32_t signal)
{
    struct conn_word word = conn_word_of(EPA_ERR_INTERRUPTED, "interrupted");

    word.signal = signal;
    return word;
}

/* Libraries abort or crash after a peer has gone, and report that they lost a peer. An interrupt explains
 * such an abort, but no kill and no death before the SIGTERM of a scheduler. */
TEST(the_rank_that_died_first_is_blamed)
{
    const struct conn_word cases[][3] = {
        /* in order of arrival, then the expected cause */
        {death(1, SIGABRT, 10), death(2, SIGSEGV, 20), death(1, SIGABRT, 10)},
        {death(1, SIGSEGV, 20), death(2, SIGABRT, 10), death(2, SIGABRT, 10)},
        {death(1, SIGABRT, 20), death(2, SIGKILL, 10), death(2, SIGKILL, 10)},
        {death(1, SIGABRT, 10), death(2, SIGKILL, 20), death(2, SIGKILL, 20)},
        {death(1, SIGABRT, 10), death(2, 0, 0), death(2, 0, 0)},
        {death(1, SIGABRT, 10), death(UINT32_MAX, 0, 0), death(1, SIGABRT, 10)},
        {death(UINT32_MAX, 0, 0), death(2, SIGABRT, 10), death(2, SIGABRT, 10)},
        {death(1, SIGABRT, 10), interrupt(SIGINT), interrupt(SIGINT)},
        {death(UINT32_MAX, 0, 0), interrupt(SIGINT), interrupt(SIGINT)},
        {interrupt(SIGINT), death(2, SIGABRT, 10), interrupt(SIGINT)},
        {death(1, SIGKILL, 10), interrupt(SIGINT), death(1, SIGKILL, 10)},
        {death(1, SIGABRT, 10), interrupt(SIGTERM), death(1, SIGABRT, 10)},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct game *g = begin(3);

        join_all(g);
        for (uint32_t r = 1; r < 3; r++) {
            conn_put_word(&g->client[r], CONN_WORD, &cases[i][r - 1]);
            conn_say(&g->client[r], CONN_DONE);
        }
        assert_end(g, &g->client[0], (enum epa_status)cases[i][2].status, cases[i][2].text);
        finish(g);
    }
}

/* UCX crashes when it unpacks the key of a dead peer. On a machine with busy cores, launchers
 * report deaths late and in any order. */
TEST_OF_GAME(all_ranks_that_crashed_are_named, 4)
{
    const struct conn_word dead[] = {death(1, SIGABRT, 30), death(2, SIGSEGV, 20), death(3, 0, 40)};

    join_all(g);
    for (uint32_t i = 0; i < LENGTH(dead); i++) {
        conn_put_word(&g->client[i + 1], CONN_WORD, &dead[i]);
        conn_say(&g->client[i + 1], CONN_DONE);
    }
    assert_end(g, &g->client[0], EPA_ERR_DIED,
               "rank 2 by signal 11; rank 1 by signal 6; rank 3 by signal 0");
}

/* A rank that leaves a step may already enter the next one. */
TEST_OF_GAME(a_step_after_a_failure_blames_no_other_rank, 2)
{
    join_all(g);
    send_word(&g->client[1], EPA_ERR_TIMEOUT);
    conn_say(&g->client[1], CONN_DONE);
    expect(g, &g->client[0], CONN_ABORT);
    step_to(g, 0, 2, "a", 1);
    conn_say(&g->client[0], CONN_DONE);
    assert_verdict(g, &g->client[0], EPA_ERR_TIMEOUT, "");
}

TEST(a_launcher_of_another_job_is_refused_and_ends_the_launch)
{
    static const struct {
        uint32_t rank, size, abi;
        const char *fingerprint, *want;
    } cases[] = {
        {1, 2, EPA_ABI + 1, "a: 1\n", "runs an epa2a with another plugin ABI"},
        {1, 2, EPA_ABI, "a: 2\n", "was started with another experiment: a: 2 there, 1 here"},
        {1, 3, EPA_ABI, "a: 1\n", "is rank 1 of 3 there, but this job has 2 ranks"},
        {2, 2, EPA_ABI, "a: 1\n", "is rank 2 of 2 there"},
        {0, 2, EPA_ABI, "a: 1\n",
         "rank 0 (host h, pid 1000) connected twice: the first connection is rank 0"},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct game *g = begin(2);
        struct conn *client, *other;

        client = join(g, 0);
        other = connect_one(g);
        prove(g, other, "token", CONN_PROOF);
        hello_as(other, cases[i].rank, cases[i].size, cases[i].abi, cases[i].fingerprint);
        assert_refusal(other, g, cases[i].want);
        assert_end(g, client, EPA_ERR_CONFIG, cases[i].want);
        finish(g);
    }
}

TEST_OF_GAME(a_late_rank_receives_the_earlier_failure, 3)
{
    struct conn *late;

    join(g, 0);
    send_word(&g->client[0], EPA_ERR_NOMEM);
    conn_say(&g->client[0], CONN_DONE);
    join(g, 1);
    expect(g, &g->client[1], CONN_ABORT);
    conn_say(&g->client[1], CONN_DONE);
    late = join(g, 2);
    expect(g, late, CONN_ABORT);
    conn_say(late, CONN_DONE);
    for (uint32_t r = 0; r < 3; r++)
        assert_verdict(g, &g->client[r], EPA_ERR_NOMEM, "");
}

/* Example: UCX reports "rank 0 has lost rank 1". */
TEST(a_death_replaces_errors_of_peers_that_follow_from_it)
{
    static const enum epa_status seen[][2] = {{EPA_ERR_ABORTED, EPA_ERR_SYSTEM},
                                              {EPA_ERR_DIED, EPA_ERR_DIED}};

    for (uint32_t i = 0; i < 2; i++) {
        struct game *g = begin(3);

        join_all(g);
        send_word(&g->client[0], seen[i][0]);
        send_word(&g->client[0], seen[i][1]);
        expect(g, &g->client[0], CONN_ABORT);
        conn_finish(&g->client[1]);
        conn_say(&g->client[0], CONN_DONE);
        conn_say(&g->client[2], CONN_DONE);
        assert_verdict(g, &g->client[2], EPA_ERR_DIED, "its connection was closed");
        finish(g);
    }
}

TEST_OF_GAME(a_finished_rank_can_still_be_interrupted, 2)
{
    struct conn_word word = {.status = EPA_ERR_INTERRUPTED, .rank = UINT32_MAX, .signal = SIGINT};

    join_all(g);
    send_word(&g->client[0], EPA_OK);
    conn_say(&g->client[0], CONN_DONE);
    conn_put_word(&g->client[0], CONN_WORD, &word);
    expect(g, &g->client[1], CONN_ABORT);
    conn_say(&g->client[1], CONN_DONE);
    for (uint32_t r = 0; r < 2; r++)
        assert_verdict(g, &g->client[r], EPA_ERR_INTERRUPTED, "");
}

/* No launcher sends these messages. The rendezvous closes the connection and writes nothing. */
TEST(invalid_messages_close_the_connection)
{
    static const unsigned char much[1 << 18];

    for (uint32_t lie = 0; lie < 8; lie++) {
        struct game *g = begin(2);
        struct conn *liar = &g->client[1];

        join_all(g);
        if (lie == 0)
            step_to(g, 1, 7, "x", 1);
        else if (lie == 1)
            step_to(g, 1, 1, much, 16385);
        else if (lie == 2)
            step_to(g, 1, 1, much, sizeof(much));
        else if (lie == 6)
            conn_put_piece(liar, CONN_STEP, 0, 1, "x", 1); /* piece of another rank */
        else if (lie == 7)                                 /* longer than the block */
            conn_put_piece(liar, CONN_BLOCK, 1, 91, "0123456789", 10);
        else if (lie == 3)
            conn_say(liar, CONN_VERDICT);
        else if (lie == 4)
            conn_say(liar, CONN_WORD);
        else {
            conn_say(liar, CONN_DONE);
            send_word(liar, EPA_OK);
        }
        assert_end(g, &g->client[0], EPA_ERR_DIED, "rank 1 (host h, pid 1001) is gone: it");
        assert_int_equal(g->block[2][0], 0);
        finish(g);
    }
}

static void flood(struct game *g, uint32_t connections)
{
    int ends[2];

    for (uint32_t i = 0; i < connections; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
        rendezvous_adopt(g->rendezvous, ends[0]);
        close(ends[1]);
    }
}

/* The proof of a distant rank arrives a round trip after a flood has displaced strangers. */
/* The peer sends the reason and closes the connection, while this side sends. */
TEST(the_last_message_of_a_peer_arrives_although_sending_fails)
{
    struct conn_message message;
    struct conn mine, peer;
    int ends[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    conn_init(&mine, ends[0], 1 << 10);
    conn_init(&peer, ends[1], 1 << 10);
    conn_say(&peer, CONN_ABORT);
    conn_turn(&peer, 0);
    conn_finish(&peer);
    conn_say(&mine, CONN_ALIVE);
    conn_turn(&mine, 0);
    assert_true(mine.fd < 0);
    assert_true(conn_take(&mine, &message));
    assert_int_equal(message.type, CONN_ABORT);
    conn_finish(&mine);
}

TEST_OF_GAME(strangers_do_not_displace_a_greeted_launcher, 2)
{
    struct conn *client = connect_one(g);
    struct conn_greet mine, challenge;
    struct conn_message m, rest;

    conn_make_greet(&mine);
    conn_put(client, CONN_GREET, &mine, sizeof(mine), NULL, 0);
    m = expect(g, client, CONN_CHALLENGE);
    assert_true(conn_get(&m, &challenge, sizeof(challenge), &rest));
    flood(g, 1000);
    conn_seal(client, "token", &mine, &challenge, true);
    conn_say(client, CONN_PROOF);
    expect(g, client, CONN_PROOF);
    hello_as(client, 0, 2, EPA_ABI, "a: 1\n");
    join(g, 1);
    for (uint32_t r = 0; r < 2; r++)
        expect(g, &g->client[r], CONN_WELCOME);
}

/* Otherwise the launcher would report that rank 0 is gone, and would not connect again. */
TEST_OF_GAME(strangers_do_not_displace_an_authenticated_launcher, 2)
{
    prove(g, connect_one(g), "token", CONN_PROOF);
    flood(g, 100);
    hello_as(&g->client[0], 0, 2, EPA_ABI, "a: 1\n");
    join(g, 1);
    for (uint32_t r = 0; r < 2; r++)
        expect(g, &g->client[r], CONN_WELCOME);
}

TEST_OF_GAME(pieces_of_other_lengths_end_the_launch, 2)
{
    join_all(g);
    step_to(g, 0, 1, "abc", 3);
    step_to(g, 1, 1, "abcd", 4);
    conn_say(&g->client[0], CONN_DONE);
    conn_say(&g->client[1], CONN_DONE);
    assert_verdict(g, &g->client[0], EPA_ERR_SYSTEM, "bytes, but another rank gathers");
}

static bool no_random; /* as in a sandbox that forbids the call */

ssize_t getrandom(void *out, size_t bytes, unsigned int flags)
{
    errno = ENOSYS;
    return no_random ? -1 : (ssize_t)syscall(SYS_getrandom, out, bytes, flags);
}

TEST(missing_random_numbers_are_reported)
{
    static const struct contact contact = {.token = "token", .address = {"127.0.0.1"}};
    struct net_dial dial;
    struct conn conn;
    int ends[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    alarm(60); /* limits an endless loop */
    no_random = true;
    net_dial_init(&dial, &contact, ends[0]);
    no_random = false;
    alarm(0);
    assert_int_equal(net_dial_turn(&dial, 0, epa_now_ns(), &conn), NET_TRYING);
    assert_words(dial.why, "getrandom: Function not implemented");
    net_dial_finish(&dial);
    close(ends[1]);
}

/* RFC 4231, test case 2. */
TEST(hmac_sha_256_matches_the_rfc)
{
    static const unsigned char want[MAC_BYTES] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e,
                                                  0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7,
                                                  0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83,
                                                  0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
    unsigned char mac[MAC_BYTES];

    assert_true(mac_of("Jefe", 4, "what do ya want for nothing?", 28, mac));
    assert_memory_equal(mac, want, sizeof(want));
}
