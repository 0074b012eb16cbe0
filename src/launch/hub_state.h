/* What the two files of the hub share: hub.c has its life and its poll loop, hub_talk.c
 * what is said to it. */
#ifndef HUB_STATE_H
#define HUB_STATE_H

#include "launch/conn.h"
#include "launch/hub.h"

enum {
    STRANGERS = 32,
    STRANGER_S = 5, /* to greet and say hello; and for one refused to have read why */
    LINGER_S = 3,   /* after a failure, for ranks that are about to come */
};

enum hub_state { FREE, STRANGER, GREETED, JOINED, REFUSED };

struct hub_peer {
    struct conn conn;
    enum hub_state state;
    uint64_t since; /* connected, or refused */
    char address[64];
    struct wire_hello hello;           /* its spans are good in join() only */
    unsigned char mask[WIRE_MASK_MAX]; /* of cores */
    size_t mask_bytes;
    uint64_t gathered; /* pieces that it has sent */
    bool returned, done, lost;
};

struct hub_gather {
    uint64_t number;
    uint32_t n;   /* ranks whose piece is there */
    size_t bytes; /* of each piece */
    uint64_t first_ns;
    bool told_late;
    unsigned char *data[2];
    size_t room[2];
};

struct hub {
    struct hub_params params;
    uint32_t size, slots;
    struct hub_peer **slot;       /* [slots]; NULL: free */
    struct hub_peer **of_rank;    /* [size]; NULL: not there */
    uint32_t joined, turned_away; /* ranks; of those that are here for nothing */
    bool started, told;
    uint64_t created_ns, looked_ns, failed_ns, told_ns, last_end_ns;
    struct hub_gather gather;
    struct wire_word verdict;
    char refused[200]; /* of strangers, the last one: who and why */
};

EPA_PRINTF(4, 5)
void hub_fail(struct hub *, enum epa_status, uint32_t lost, const char *fmt, ...);

/* A rank's agent can be asked nothing more. It keeps its place: its words are still good. */
void hub_lose(struct hub *, struct hub_peer *, const char *how);

/* One message of a peer that is not free. */
void hub_hear(struct hub *, struct hub_peer *, const struct conn_message *);

#endif
