/* Fuzzes messages of other ranks with arbitrary bytes. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "boot/conn.h"
#include "launch/launcher.h"
#include "boot/net.h"
#include "launch/rendezvous.h"

#include "../../plugins/transport/ucx/lanes.h"

/* ---- messages of authenticated peers: the welcome of the rendezvous, and the cards of the ucx
 * transport. The messages to the rendezvous follow below. The input gives the kind, the number of
 * ranks, and the number of bytes by which a valid message is shortened; further bytes are applied
 * to the message by XOR and appended. Accepted messages must be safe to use, and valid ones must be
 * accepted. ---- */

enum kind { WELCOME, CARDS /* cards of ucx; not a message */, KINDS };
enum { RANKS = 8, HALF = 4 /* number of ranks in valid messages */ };

struct message {
    unsigned char data[4096];
    size_t bytes;
};

static void append(struct message *m, const void *data, size_t bytes)
{
    if (bytes > sizeof(m->data) - m->bytes)
        bytes = sizeof(m->data) - m->bytes;
    if (bytes > 0)
        memcpy(m->data + m->bytes, data, bytes);
    m->bytes += bytes;
}

static void make_right(enum kind kind, struct message *m)
{
    static const uint32_t node[HALF] = {0, 0, 1, 1};
    const struct conn_welcome welcome = {.pid = 47,
                                         .share = 1,
                                         .shares = 2,
                                         .local_cores = 8,
                                         .hosts = 2,
                                         .host = "h",
                                         .interface = "eth0"};

    m->bytes = 0;
    if (kind == WELCOME) {
        append(m, &welcome, sizeof(welcome));
        append(m, node, sizeof(node));
        return;
    }
    for (uint32_t r = 0; r < HALF; r++)
        append(m,
               &(struct card){.base = 0x7f0000000000 + r * 0x10000,
                              .heap_bytes = 0x8000,
                              .region_bytes = 0x9000,
                              .signals = 5,
                              .address_bytes = 77 + r,
                              .key_bytes = 30,
                              .version = {1, 13}},
               sizeof(struct card));
}

static void is_clean(const char *text, size_t room)
{
    size_t n = strnlen(text, room);

    demand(n < room);
    for (size_t i = 0; i < n; i++)
        demand(text[i] >= ' ' && text[i] <= '~');
}

static bool hear_welcome(const struct conn_message *m, uint32_t ranks)
{
    struct conn_welcome w;
    uint32_t node[RANKS];

    if (!conn_get_welcome(m, ranks, &w, node))
        return false;
    is_clean(w.host, sizeof(w.host));
    is_clean(w.interface, sizeof(w.interface));
    demand(w.share < w.shares && w.shares <= ranks && w.local_cores > 0 && w.hosts <= ranks);
    for (uint32_t r = 0, known = 0; r < ranks; r++) {
        demand(node[r] <= known && known < ranks);
        known += node[r] == known;
    }
    return true;
}

static bool look_at_cards(const struct conn_message *m, uint32_t ranks)
{
    struct card cards[RANKS];
    struct epa_error err = {EPA_OK, ""};

    memset(cards, 0, sizeof(cards));
    memcpy(cards, m->data, m->bytes < ranks * sizeof(*cards) ? m->bytes : ranks * sizeof(*cards));
    if (cards_check(cards, ranks, ranks - 1, &err) != EPA_OK) {
        is_clean(err.text, sizeof(err.text));
        return false;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        demand((size_t)cards[r].address_bytes + cards[r].key_bytes + cards[r].heap_key_bytes <=
               cards_stride(cards, ranks));
        demand(cards[r].base + cards[r].region_bytes >= cards[r].base);
        demand(cards[r].heap + cards[r].heap_bytes >= cards[r].heap);
    }
    /* An address, the key of the region, and the key of the heap. */
    demand(cards_stride(cards, ranks) <= CARD_ADDRESS_MOST + 2 * CARD_KEY_MOST);
    return true;
}

static bool accept_message(enum kind kind, const struct message *message, uint32_t ranks)
{
    struct conn_message m = {CONN_WELCOME, message->data, message->bytes};

    return kind == WELCOME ? hear_welcome(&m, ranks) : look_at_cards(&m, ranks);
}

void fuzz_messages(const uint8_t *data, size_t bytes)
{
    static bool begun;
    struct message m;
    enum kind kind;

    for (uint32_t i = 0; !begun && i < KINDS; i++) {
        make_right((enum kind)i, &m);
        demand(accept_message((enum kind)i, &m, HALF));
    }
    begun = true;
    if (bytes < 3)
        return;
    kind = (enum kind)(data[0] % KINDS);
    make_right(kind, &m);
    m.bytes -= data[2] < m.bytes ? data[2] : m.bytes;
    for (size_t i = 3; i < bytes && i - 3 < m.bytes; i++)
        m.data[i - 3] ^= data[i];
    if (bytes - 3 > m.bytes)
        append(&m, data + 3 + m.bytes, bytes - 3 - m.bytes);
    (void)accept_message(kind, &m, data[1] % RANKS + 1);
}

/* ---- messages of authenticated peers to a rendezvous of two ranks, over four connections. Input:
 * a byte for connection and mode, a type, a length, and the bytes. All connections but the last
 * authenticate before their first message. For any input the rendezvous continues, writes no block
 * beyond its end, and its messages are printable text. corpus/rendezvous/well contains a valid
 * dialogue. ---- */

enum { PARTIES = 2, BLOCK_ROOM = 100, CONNECTIONS = 4, POLLS = 128 };
enum {
    STRANGER = CONNECTIONS - 1, /* does not authenticate */
    RAW = 4,                    /* sends the bytes unchanged */
    /* A hello of the rank in `type`. Its bytes: length of the core mask, then mask and fingerprint.
     * No bytes: no mask and the valid fingerprint. The next flags change the hello: */
    SAYS_HELLO = 8,
    OTHER_ABI = 16,
    OTHER_SIZE = 32,
    NO_END = 64, /* names without a final NUL */
};

static void turn(struct rendezvous *rendezvous, struct conn *client)
{
    struct pollfd fds[POLLS];
    uint32_t n = rendezvous_poll_room(PARTIES);

    if (n > POLLS)
        abort();
    rendezvous_polls(rendezvous, fds);
    if (poll(fds, n, 0) < 0 && errno != EINTR)
        abort();
    rendezvous_turn(rendezvous, fds, false);
    for (uint32_t i = 0; i < CONNECTIONS; i++)
        conn_turn(&client[i], POLLIN);
}

static void prove(struct rendezvous *rendezvous, struct conn *all, struct conn *client)
{
    struct conn_greet mine, challenge;
    struct conn_message m, rest;

    conn_make_greet(&mine);
    conn_put(client, CONN_GREET, &mine, sizeof(mine), NULL, 0);
    for (uint32_t i = 0; i < 3; i++)
        turn(rendezvous, all);
    if (!conn_take(client, &m) || !conn_get(&m, &challenge, sizeof(challenge), &rest))
        return; /* the connection has sent another message before */
    conn_seal(client, "token", &mine, &challenge, true);
    conn_say(client, CONN_PROOF);
}

static void say_hello(struct conn *client, uint32_t how, uint32_t rank, const uint8_t *data,
                      size_t n)
{
    struct conn_hello hello = {
        .rank = rank, .size = PARTIES, .abi = EPA_ABI, .host = {.name = "h"}};

    hello.abi += (how & OTHER_ABI) != 0;
    hello.size += (how & OTHER_SIZE) != 0;
    if ((how & NO_END) != 0) {
        memset(hello.host.name, '\033', sizeof(hello.host.name));
        memset(hello.host.machine, 'm', sizeof(hello.host.machine));
        memset(hello.host.network, 'n', sizeof(hello.host.network));
        memset(hello.host.identity, 'i', sizeof(hello.host.identity));
    }
    if (n > 0)
        hello.mask_bytes = data[0];
    conn_put(client, CONN_HELLO, &hello, sizeof(hello), n > 0 ? (const void *)(data + 1) : "a: 1\n",
             n > 0 ? n - 1 : 5);
}

/* The message is longer than the length byte permits. */
static void say_word(struct conn *client, const uint8_t *data, size_t n)
{
    struct conn_word word = {.status = -(int32_t)data[0], .rank = data[1], .signal = data[2]};

    memcpy(word.text, data + 3, n - 3);
    conn_put_word(client, CONN_WORD, &word);
}

static void say_greet(struct conn *client, uint32_t later)
{
    struct conn_greet greet;

    conn_make_greet(&greet);
    greet.protocol += later;
    conn_put(client, CONN_GREET, &greet, sizeof(greet), NULL, 0);
}

static void hear_verdict(const struct conn_message *m)
{
    struct conn_message rest;
    struct conn_word word;

    if ((m->type == CONN_REFUSED || m->type == CONN_VERDICT) &&
        conn_get(m, &word, sizeof(word), &rest)) {
        is_clean(word.text, sizeof(word.text));
        demand(word.status <= 0 && word.status >= EPA_ERR_INTERRUPTED && word.signal < 65);
    }
}

void fuzz_rendezvous(const uint8_t *data, size_t bytes)
{
    struct epa_launch asked = {.ranks = PARTIES,
                               .fingerprint = "a: 1\n",
                               .timeout_ns = 1000000000,
                               .block = malloc(PARTIES * BLOCK_ROOM),
                               .block_bytes = BLOCK_ROOM};
    static const struct contact contact = {.token = "token"};
    static const struct launcher_settings settings = {.start_ns = 1000000000,
                                                      .heartbeat_ns = 1000000000};
    struct conn client[CONNECTIONS];
    struct rendezvous *rendezvous;
    int ends[2];

    if (asked.block == NULL ||
        rendezvous_create(&asked, &settings, &contact, -1, &rendezvous, NULL) != EPA_OK)
        abort();
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0)
            abort();
        rendezvous_adopt(rendezvous, ends[0]);
        conn_init(&client[i], ends[1], 1 << 20);
    }
    while (bytes >= 3) {
        size_t n = data[2] < bytes - 3 ? data[2] : bytes - 3;
        struct conn *from = &client[data[0] % CONNECTIONS];
        bool stranger = from == &client[STRANGER];
        struct conn_message m;

        if (!stranger && !from->sealed && (data[0] & RAW) == 0)
            prove(rendezvous, client, from);
        if ((data[0] & RAW) != 0 && n > 0 && from->fd >= 0)
            (void)!send(from->fd, data + 3, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        else if ((data[0] & SAYS_HELLO) != 0)
            say_hello(from, data[0], data[1], data + 3, n);
        else if (data[1] == CONN_WORD && n > 3)
            say_word(from, data + 3, n);
        else if ((data[1] == CONN_STEP || data[1] == CONN_BLOCK) && n > 2)
            conn_put_piece(from, data[1], data[3], data[4], data + 5, n - 2);
        else if (data[1] == CONN_GREET && n == 1)
            say_greet(from, data[3]);
        else
            conn_put(from, data[1], data + 3, n, NULL, 0);
        data += 3 + n;
        bytes -= 3 + n;
        turn(rendezvous, client);
        for (uint32_t i = 0; i < CONNECTIONS; i++)
            while (conn_take(&client[i], &m))
                hear_verdict(&m);
    }
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        conn_finish(&client[i]);
        turn(rendezvous, client);
    }
    rendezvous_destroy(rendezvous);
    free(asked.block);
}
