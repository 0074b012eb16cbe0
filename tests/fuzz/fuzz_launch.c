/* Any bytes as what other ranks say. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "launch/conn.h"
#include "launch/rendezvous.h"

#include "../../plugins/transport/ucx/lanes.h"
#include "messages.h"

/* ---- what a peer says once it has proved that it knows the token: all messages of the
 * rendezvous and of launchers, and the cards of the ucx transport. A byte of kind, one of ranks,
 * then the message: what is accepted must be safe to use. */

static void is_clean(const char *text, size_t room)
{
    size_t n = strnlen(text, room);

    demand(n < room);
    for (size_t i = 0; i < n; i++)
        demand(text[i] >= ' ' && text[i] <= '~');
}

/* Reads all that a message claims to have, so that a sanitizer sees where it is not. */
static unsigned touch(const unsigned char *data, size_t bytes)
{
    unsigned sum = 0;

    for (size_t i = 0; i < bytes; i++)
        sum += data[i];
    return sum;
}

static unsigned hear_welcome(const struct conn_message *m, uint32_t ranks)
{
    struct conn_welcome w;
    uint32_t node[MESSAGES_RANKS];

    if (!conn_get_welcome(m, ranks, &w, node))
        return 0;
    is_clean(w.host, sizeof(w.host));
    is_clean(w.interface, sizeof(w.interface));
    demand(w.share < w.shares && w.shares <= ranks && w.local_cores > 0 && w.hosts <= ranks);
    for (uint32_t r = 0, known = 0; r < ranks; r++) {
        demand(node[r] <= known && known < ranks);
        known += node[r] == known;
    }
    return 1;
}

static unsigned hear_hello(const struct conn_message *m)
{
    struct conn_message rest;
    struct conn_hello hello;

    if (!conn_get_hello(m, &hello, &rest))
        return 0;
    is_clean(hello.host, sizeof(hello.host));
    is_clean(hello.machine, sizeof(hello.machine));
    is_clean(hello.identity, sizeof(hello.identity));
    demand(hello.mask_bytes <= rest.bytes && hello.mask_bytes <= CONN_MASK_MAX);
    return touch(rest.data, rest.bytes);
}

static unsigned hear_step(const struct conn_message *m, uint32_t ranks)
{
    struct conn_message data;
    struct conn_piece piece;

    if (!conn_get_step(m, ranks, MESSAGES_SLOT, &piece, &data))
        return 0;
    demand(piece.rank < ranks && data.bytes <= MESSAGES_SLOT);
    return touch(data.data, data.bytes);
}

static unsigned hear_block(const struct conn_message *m)
{
    struct conn_message rest;
    struct conn_piece piece;

    if (!conn_get_block(m, MESSAGES_BLOCK_BYTES, &piece, &rest))
        return 0;
    demand(piece.number + rest.bytes <= MESSAGES_BLOCK_BYTES &&
           piece.number <= MESSAGES_BLOCK_BYTES);
    return touch(rest.data, rest.bytes);
}

static unsigned look_at_cards(const struct conn_message *m, uint32_t ranks)
{
    struct card cards[MESSAGES_RANKS];
    struct epa_error err = {EPA_OK, ""};

    memset(cards, 0, sizeof(cards));
    memcpy(cards, m->data, m->bytes < ranks * sizeof(*cards) ? m->bytes : ranks * sizeof(*cards));
    if (cards_check(cards, ranks, ranks - 1, &err) != EPA_OK) {
        is_clean(err.text, sizeof(err.text));
        return 0;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        demand((size_t)cards[r].address_bytes + cards[r].key_bytes <= cards_stride(cards, ranks));
        demand(cards[r].base + cards[r].region_bytes >= cards[r].base);
    }
    demand(cards_stride(cards, ranks) <= CARD_ADDRESS_MOST + CARD_KEY_MOST);
    return 1;
}

void fuzz_messages(const uint8_t *data, size_t bytes)
{
    struct conn_message m;
    struct conn_greet greet;
    struct conn_word word;
    uint32_t ranks, kind;
    volatile unsigned sum = 0;

    if (bytes < 2)
        return;
    kind = data[0] % MESSAGES_KINDS;
    ranks = data[1] % MESSAGES_RANKS + 1;
    m = (struct conn_message){messages_type[kind], data + 2, bytes - 2};
    switch (kind) {
    case MESSAGES_GREET:
        sum = conn_get_greet(&m, &greet);
        break;
    case MESSAGES_HELLO:
        sum = hear_hello(&m);
        break;
    case MESSAGES_WELCOME:
        sum = hear_welcome(&m, ranks);
        break;
    case MESSAGES_WORD:
        if (conn_get_word(&m, &word)) {
            is_clean(word.text, sizeof(word.text));
            demand(word.status <= 0 && word.status >= EPA_ERR_INTERRUPTED && word.signal < 65);
        }
        break;
    case MESSAGES_STEP:
        sum = hear_step(&m, ranks);
        break;
    case MESSAGES_BLOCK:
        sum = hear_block(&m);
        break;
    default:
        sum = look_at_cards(&m, ranks);
        break;
    }
    (void)sum;
}

/* ---- what somebody who has the token may say to a rendezvous of two ranks, over four connections: a
 * byte that says which and how, a type, a length, and these bytes. Connections prove the token
 * before their first message, but for the last. Whatever comes, the rendezvous goes on, and no
 * block is written beyond its end. */

enum { CONNECTIONS = RENDEZVOUS_CONNECTIONS, POLLS = 128 };

static void turn(struct rendezvous *rendezvous, struct conn *client)
{
    struct pollfd fds[POLLS];
    uint32_t n = rendezvous_polls(rendezvous, fds);

    if (n > POLLS || (poll(fds, n, 0) < 0 && errno != EINTR))
        abort();
    rendezvous_turn(rendezvous, fds, n);
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
        return; /* it has sent something else before */
    conn_seal(client, "token", &mine, &challenge, true);
    conn_say(client, CONN_PROOF);
}

static void say_hello(struct conn *client, uint32_t how, uint32_t rank, const uint8_t *data,
                      size_t n)
{
    struct conn_hello hello = {.rank = rank, .size = RENDEZVOUS_RANKS, .abi = EPA_ABI, .host = "h"};

    hello.abi += (how & RENDEZVOUS_ABI) != 0;
    hello.size += (how & RENDEZVOUS_SIZE) != 0;
    if ((how & RENDEZVOUS_NAMES) != 0) {
        memset(hello.host, '\033', sizeof(hello.host));
        memset(hello.machine, 'm', sizeof(hello.machine));
        memset(hello.identity, 'i', sizeof(hello.identity));
    }
    if (n > 0)
        hello.mask_bytes = data[0];
    conn_put(client, CONN_HELLO, &hello, sizeof(hello), n > 0 ? (const void *)(data + 1) : "a: 1\n",
             n > 0 ? n - 1 : 5);
}

/* It is longer than what a byte can count. */
static void say_word(struct conn *client, const uint8_t *data, size_t n)
{
    struct conn_word word = {.status = -(int32_t)data[0], .rank = data[1], .signal = data[2]};

    memcpy(word.text, data + 3, n - 3);
    conn_put_word(client, CONN_WORD, &word);
}

void fuzz_rendezvous(const uint8_t *data, size_t bytes)
{
    struct epa_launch asked = {.ranks = RENDEZVOUS_RANKS,
                               .fingerprint = "a: 1\n",
                               .timeout_ns = 1000000000,
                               .block = malloc(RENDEZVOUS_RANKS * RENDEZVOUS_BLOCK),
                               .block_bytes = RENDEZVOUS_BLOCK};
    struct rendezvous_params params = {.asked = &asked,
                                       .token = "token",
                                       .listener = -1,
                                       .start_ns = 1000000000,
                                       .heartbeat_ns = 1000000000};
    struct conn client[CONNECTIONS];
    struct rendezvous *rendezvous;
    int ends[2];

    if (asked.block == NULL || rendezvous_create(&params, &rendezvous, NULL) != EPA_OK)
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
        bool stranger = from == &client[RENDEZVOUS_STRANGER];
        struct conn_message m;

        if (!stranger && !from->sealed && (data[0] & RENDEZVOUS_RAW) == 0)
            prove(rendezvous, client, from);
        if ((data[0] & RENDEZVOUS_RAW) != 0 && n > 0 && from->fd >= 0)
            (void)!send(from->fd, data + 3, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        else if ((data[0] & RENDEZVOUS_HELLO) != 0)
            say_hello(from, data[0], data[1], data + 3, n);
        else if (data[1] == CONN_WORD && n > 3)
            say_word(from, data + 3, n);
        else
            conn_put(from, data[1], data + 3, n, NULL, 0);
        data += 3 + n;
        bytes -= 3 + n;
        turn(rendezvous, client);
        for (uint32_t i = 0; i < CONNECTIONS; i++)
            while (conn_take(&client[i], &m))
                continue;
    }
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        conn_finish(&client[i]);
        turn(rendezvous, client);
    }
    rendezvous_destroy(rendezvous);
    free(asked.block);
}
