/* What the two files of the hub share: rendezvous.c has its life and its poll loop, rendezvous_talk.c
 * what is said to it. */
#ifndef RENDEZVOUS_STATE_H
#define RENDEZVOUS_STATE_H

#include "launch/conn.h"
#include "launch/rendezvous.h"

enum {
    STRANGERS = 32,
    STRANGER_S = 5, /* to greet and say hello; and for one refused to have read why */
    LINGER_S = 3,   /* after a failure, for ranks that are about to come */
};

enum rendezvous_state { FREE, STRANGER, GREETED, JOINED, REFUSED };

struct rendezvous_peer {
    struct conn conn;
    enum rendezvous_state state;
    uint64_t since; /* connected, or refused */
    char address[64];
    struct wire_hello hello;           /* its spans are good in join() only */
    unsigned char mask[WIRE_MASK_MAX]; /* of cores */
    size_t mask_bytes;
    uint64_t gathered; /* pieces that it has sent */
    bool returned, done, failed_rank;
};

struct rendezvous_gather {
    uint64_t number;
    uint32_t n;   /* ranks whose piece is there */
    size_t bytes; /* of each piece */
    uint64_t first_ns;
    bool reported_late;
    unsigned char *data[2];
    size_t room[2];
};

struct rendezvous {
    struct rendezvous_params params;
    uint32_t size, slots;
    struct rendezvous_peer **slot;    /* [slots]; NULL: free */
    struct rendezvous_peer **of_rank; /* [size]; NULL: not there */
    uint32_t joined, turned_away;     /* ranks; of those that are here for nothing */
    bool started, reported;
    uint64_t created_ns, looked_ns, failed_ns, reported_ns, last_end_ns;
    struct rendezvous_gather gather;
    struct wire_word verdict;
    char refused[200]; /* of strangers, the last one: who and why */
};

EPA_PRINTF(4, 5)
void rendezvous_fail(struct rendezvous *, enum epa_status, uint32_t failed_rank, const char *fmt,
                     ...);

/* A rank's agent can be asked nothing more. It keeps its place: its words are still good. */
void rendezvous_lose(struct rendezvous *, struct rendezvous_peer *, const char *how);

/* One message of a peer that is not free. */
void rendezvous_hear(struct rendezvous *, struct rendezvous_peer *, const struct conn_message *);

#endif
