/* A connection that carries messages and never blocks. A message is a frame: 4 bytes of type, 4 of
 * length, 8 of its number, then its bytes and, once both sides have proved that they know the job's
 * token, a MAC over all of that. */
#ifndef CONN_H
#define CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launch/messages.h"

enum {
    MAC_BYTES = 32, /* HMAC-SHA-256 */
    CONN_TOKEN = 64,
    CONN_GREET_MAX = 256, /* the longest message of who has not proved anything */
};

struct conn {
    int fd; /* owned; -1: closed */
    unsigned char *in, *out;
    size_t in_from, in_bytes, in_room;
    size_t out_from, out_bytes, out_room;
    size_t limit;        /* bytes of a message that comes in, its head and MAC aside */
    bool sealed, forged; /* forged: what came had a wrong MAC; nothing more is taken */
    unsigned char key_in[MAC_BYTES], key_out[MAC_BYTES];
    uint64_t number_in, number_out;
    uint64_t heard_ns, said_ns; /* when bytes last came and went */
    char why[128];              /* why it is closed; "": it is not */
};

/* HMAC-SHA-256 by OpenSSL or, where the build found none, by the kernel (AF_ALG). False: there is
 * none here, or the key has more than 64 bytes. */
bool mac_of(const void *key, size_t key_bytes, const void *data, size_t bytes,
            unsigned char out[MAC_BYTES]);

/* Takes the descriptor. */
void conn_init(struct conn *out, int fd, size_t limit);
void conn_finish(struct conn *);

/* Closed for good; the first reason stays. Messages that have come can still be taken. */
EPA_PRINTF(2, 3) void conn_close(struct conn *, const char *fmt, ...);

/* From here on each message has a MAC, by keys of these nonces and that direction. */
void conn_seal(struct conn *, const char *token, const struct conn_greet *agent,
               const struct conn_greet *rendezvous, bool is_agent);

/* A greeting with a nonce of its own. */
void conn_make_greet(struct conn_greet *out);

/* What poll() is to look for; reading and writing what is possible without waiting. */
short conn_events(const struct conn *);
void conn_turn(struct conn *, short revents);

/* The next message that is all there. */
bool conn_take(struct conn *, struct conn_message *out);

void conn_discard(struct conn *); /* what has come */

/* Queues a message of two parts, either of which may be empty. */
void conn_put(struct conn *, uint32_t type, const void *head, size_t head_bytes, const void *tail,
              size_t tail_bytes);
void conn_say(struct conn *, uint32_t type); /* without bytes */
void conn_put_word(struct conn *, uint32_t type, const struct conn_word *);
void conn_put_piece(struct conn *, uint32_t type, uint64_t number, const void *data, size_t bytes);

bool conn_all_sent(const struct conn *);
bool conn_all_heard(const struct conn *); /* and the other host has it: closing loses nothing */

/* Whether nothing was heard for so long, by somebody who looked: where the caller itself was
 * away since `last_poll` (stopped, or its machine was), silence counts from now on. */
bool conn_is_silent(struct conn *, uint64_t now, uint64_t last_poll, uint64_t limit_ns);

/* ALIVE, if nothing was said for so long. */
void conn_keep_alive(struct conn *, uint64_t now, uint64_t every_ns);

#endif
