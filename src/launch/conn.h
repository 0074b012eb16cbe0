/* A connection that carries messages and never blocks. One thread uses it. */
#ifndef CONN_H
#define CONN_H

#include "launch/wire.h"

struct conn {
    int fd; /* owned; -1: closed */
    unsigned char *in, *out;
    size_t in_from, in_bytes, in_room;
    size_t out_from, out_bytes, out_room;
    size_t limit; /* bytes of a message that comes in, its head aside */
    /* Sent behind the bytes of `out` before out + bulk_at; not owned, stays until sent. */
    const unsigned char *bulk;
    size_t bulk_from, bulk_bytes, bulk_at;
    uint64_t heard_ns, said_ns; /* when bytes last came and went */
    char why[128];              /* why it is closed; "": it is not */
};

struct conn_message {
    uint32_t type;
    const unsigned char *data; /* until the connection is read again */
    size_t bytes;
};

/* Takes the descriptor. */
void conn_init(struct conn *out, int fd, size_t limit);
void conn_finish(struct conn *);

/* Closed for good; the first reason stays. Messages that have come can still be taken. */
EPA_PRINTF(2, 3) void conn_close(struct conn *, const char *fmt, ...);

/* What poll() is to look for; reading and writing what is possible without waiting. */
short conn_events(const struct conn *);
void conn_turn(struct conn *, short revents);

/* The next message that is all there. */
bool conn_take(struct conn *, struct conn_message *out);

void conn_discard(struct conn *); /* what has come */

/* Queues a message: room for its bytes, or NULL where there is no memory, which closes the
 * connection; then how many there are. */
unsigned char *conn_begin(struct conn *, uint32_t type, size_t room);
void conn_end(struct conn *, size_t bytes);

void conn_put(struct conn *, uint32_t type); /* without bytes */
void conn_put_word(struct conn *, uint32_t type, const struct wire_word *);
void conn_put_piece(struct conn *, uint32_t type, const struct wire_piece *);
/* The data of the piece is not copied: it must stay until conn_bulk_gone(). */
void conn_put_bulk(struct conn *, uint32_t type, const struct wire_piece *);
bool conn_bulk_gone(const struct conn *);
bool conn_all_sent(const struct conn *);
bool conn_all_heard(const struct conn *); /* and the other host has it: closing loses nothing */

/* Whether nothing was heard for so long, by somebody who looked: where the caller itself was
 * away since `last_poll` (stopped, or its machine was), silence counts from now on. */
bool conn_is_silent(struct conn *, uint64_t now, uint64_t last_poll, uint64_t limit_ns);

/* ALIVE, if nothing was said for so long. */
void conn_keep_alive(struct conn *, uint64_t now, uint64_t every_ns);

#endif
