/* Any bytes as each message: refused, or read so that what is written from it reads back as
 * the same. The first byte chooses the message. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launch/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { ROOM = WIRE_HELLO_MAX + 4096, RANKS = 4 };

static void must(bool holds)
{
    if (!holds)
        abort();
}

static bool same(struct wire_span a, struct wire_span b)
{
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

static void greet(const uint8_t *data, size_t bytes, unsigned char *out)
{
    struct wire_greet a, b;

    if (!wire_get_greet(data, bytes, &a))
        return;
    must(wire_get_greet(out, wire_put_greet(out, ROOM, &a), &b));
    must(a.protocol == b.protocol && wire_token_is(a.token, b.token));
}

static void hello(const uint8_t *data, size_t bytes, unsigned char *out)
{
    struct wire_hello a, b;
    char text[300];

    if (!wire_get_hello(data, bytes, &a))
        return;
    must(wire_get_hello(out, wire_put_hello(out, ROOM, &a), &b));
    must(a.rank == b.rank && a.size == b.size && a.pid == b.pid && a.abi == b.abi);
    must(strcmp(a.version, b.version) == 0 && strcmp(a.host, b.host) == 0);
    must(strcmp(a.machine, b.machine) == 0 && strcmp(a.identity, b.identity) == 0);
    must(same(a.mask, b.mask) && same(a.fingerprint, b.fingerprint));
    if (wire_difference(a.fingerprint, "moe:\n  hidden: 1\n  topk: 2\nseed: 1\n", text, sizeof(text)))
        for (const char *c = text; *c != 0; c++)
            must((unsigned char)*c >= ' ' && *c != 127);
}

static void welcome(const uint8_t *data, size_t bytes, unsigned char *out)
{
    struct wire_welcome a, b;

    if (!wire_get_welcome(data, bytes, RANKS, &a))
        return;
    must(wire_get_welcome(out, wire_put_welcome(out, ROOM, &a), RANKS, &b));
    must(a.share == b.share && a.shares == b.shares && same(a.node, b.node));
}

static void word(const uint8_t *data, size_t bytes, unsigned char *out)
{
    struct wire_word a, b;

    if (!wire_get_word(data, bytes, &a))
        return;
    must(wire_get_word(out, wire_put_word(out, ROOM, &a), &b));
    must(a.status == b.status && a.rank == b.rank && a.signal == b.signal);
    must(strcmp(a.text, b.text) == 0);
}

static void piece(const uint8_t *data, size_t bytes, unsigned char *out)
{
    struct wire_piece a, b;

    if (bytes > ROOM || !wire_get_piece(data, bytes, &a))
        return;
    must(wire_get_piece(out, wire_put_piece(out, ROOM, &a), &b));
    must(a.number == b.number && same(a.data, b.data));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static void (*const read[])(const uint8_t *, size_t, unsigned char *) = {greet, hello, welcome,
                                                                             word, piece};
    unsigned char *out, *own;

    if (bytes == 0)
        return 0;
    out = malloc(ROOM);
    own = malloc(bytes); /* of the very size, so that a byte too far is seen */
    if (out == NULL || own == NULL)
        abort();
    memcpy(own, data + 1, bytes - 1);
    read[data[0] % 5](own, bytes - 1, out);
    free(own);
    free(out);
    return 0;
}
