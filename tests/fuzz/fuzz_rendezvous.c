/* What somebody who has the token may say to a rendezvous of two ranks, over four connections: a
 * byte that says which and how, a type, a length, and these bytes. Connections prove the token
 * before their first message, but for the last. Whatever comes, the rendezvous goes on, and no
 * block is written beyond its end. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/conn.h"
#include "launch/rendezvous.h"
#include "messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { CONNECTIONS = RENDEZVOUS_CONNECTIONS, RANKS = RENDEZVOUS_RANKS, BLOCK = RENDEZVOUS_BLOCK };
enum { POLLS = 128 };

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
    struct conn_hello hello = {.rank = rank, .size = RANKS, .abi = EPA_ABI, .host = "h"};

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct epa_launch asked = {.ranks = RANKS,
                               .fingerprint = "a: 1\n",
                               .timeout_ns = 1000000000,
                               .block = malloc(RANKS * BLOCK),
                               .block_bytes = BLOCK};
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
    return 0;
}
