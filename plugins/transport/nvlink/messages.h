/* The messages of a proxy: from the rings to slots of staging, over the transport between hosts,
 * and from staging to their places. */
#ifndef MESSAGES_H
#define MESSAGES_H

#include "proxy.h"
#include "proxy_trace.h"

enum {
    MESSAGES_SLOTS = 8, /* messages under way from one rank to another, at most */
    MESSAGES_RINGS = 2,
};

struct reading {
    struct epa_descriptor now; /* op 0: none */
    const char *payload;       /* of an inline put */
    uint32_t row;              /* that is in messages up to here, */
    uint64_t at;               /* and bytes of this one */
};

struct messages {
    const struct proxy_params *params;
    struct epa_transport *net;
    uint32_t rank, size;
    uint64_t piece; /* bytes of records in a message, at most */
    struct channel_out *out;
    struct channel_in *in;
    struct reading reading[MESSAGES_RINGS];
    uint64_t lane_done[PROXY_LANES], marked[PROXY_LANES];
    uint64_t quiets, quiet_wanted; /* done; under way if not the same */
    uint32_t slow;                 /* the rank that a quiet waits for */
    uint64_t *arrived;             /* [size] */
    struct epa_error err;
    struct proxy_trace trace;
};

/* False: no memory. */
bool messages_init(struct messages *, const struct proxy_params *);
void messages_finish(struct messages *);

/* What the transport between hosts must have, and that it is open. */
uint64_t messages_staging_bytes(const struct messages *);
uint32_t messages_signals(const struct messages *);
void messages_connect(struct messages *, struct epa_transport *net);

/* Does what can be done at once. */
enum epa_status messages_turn(struct messages *, bool *moved);
/* What a turn in which nothing moved waits for. */
enum proxy_slice messages_wait_for(const struct messages *);
/* Whether all messages of this rank are done, and those to it that have come. */
bool messages_are_done(const struct messages *);
/* How many ranks' staging this rank's GPU writes to. */
uint32_t messages_direct(const struct messages *);

/* What a call of the transport between hosts, or of copies, returned; a failure goes to `err`. */
enum epa_status messages_net_failed(struct messages *, enum epa_status);
enum epa_status messages_copies_failed(struct messages *, enum epa_status);

#endif
