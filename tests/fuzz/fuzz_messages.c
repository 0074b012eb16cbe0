/* Any bytes as what a peer says once it has proved that it knows the token: all messages of the
 * rendezvous and of launchers, and the cards of the ucx transport. A byte of kind, one of ranks,
 * then the message: what is accepted must be safe to use. */
#include <stdlib.h>
#include <string.h>

#include "launch/conn.h"

#include "../../plugins/transport/ucx/lanes.h"
#include "messages.h"

enum { RANKS = MESSAGES_RANKS, SLOT = MESSAGES_SLOT, BLOCK = MESSAGES_BLOCK_BYTES };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

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
    uint32_t node[RANKS];

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

    if (!conn_get_step(m, ranks, SLOT, &piece, &data))
        return 0;
    demand(piece.rank < ranks && data.bytes <= SLOT);
    return touch(data.data, data.bytes);
}

static unsigned hear_block(const struct conn_message *m)
{
    struct conn_message rest;
    struct conn_piece piece;

    if (!conn_get_block(m, BLOCK, &piece, &rest))
        return 0;
    demand(piece.number + rest.bytes <= BLOCK && piece.number <= BLOCK);
    return touch(rest.data, rest.bytes);
}

static unsigned look_at_cards(const struct conn_message *m, uint32_t ranks)
{
    struct card cards[RANKS];
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct conn_message m;
    struct conn_greet greet;
    struct conn_word word;
    uint32_t ranks, kind;
    volatile unsigned sum = 0;

    if (bytes < 2)
        return 0;
    kind = data[0] % MESSAGES_KINDS;
    ranks = data[1] % RANKS + 1;
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
    return 0;
}
