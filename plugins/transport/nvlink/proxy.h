/* The proxy: a thread of each rank that carries out, over a transport between hosts, what kernels
 * and the host ask for of ranks of other nodes (epa2a/ring.h). README.md has the protocol. It knows
 * nothing of CUDA: what copies between the rank's memory and staging is handed to it. */
#ifndef PROXY_H
#define PROXY_H

#include "../../common/transport_wait.h"
#include "proxy_trace.h"

#include <epa2a/ring.h>
#include <epa2a/trace.h>

enum {
    PROXY_FACTS = 16,               /* that the transport between hosts says of itself, at most */
    PROXY_QUIET = EPA_RING_OWN,     /* when all before is in place, quiet reaches `value` */
    PROXY_ARRIVE = PROXY_QUIET * 2, /* the peer's arrived[] of this rank reaches `value` */
};

enum proxy_lane { PROXY_OUT, PROXY_IN, PROXY_LANES }; /* to staging, from staging */

/* Copies between the rank's memory and staging. The operations of a lane are done in the order in
 * which they were queued, as who looks from the CPU or from a kernel sees it, but for copies
 * between two others: these may be done in any order. One thread, the proxy's, calls them. */
struct proxy_copies {
    /* First and last: staging is where the proxy's copies go, to be pinned. leave() returns false
     * where copies may still be under way: staging must stay. */
    enum epa_status (*enter)(struct proxy_copies *, void *staging, size_t bytes);
    bool (*leave)(struct proxy_copies *);
    /* After enter(): copies of lane OUT go to this memory of another rank, too. False: they
     * cannot. */
    bool (*reach)(struct proxy_copies *, void *memory, size_t bytes);
    /* Each queues one operation, or none with EPA_AGAIN: a copy of `rows` rows, which are side by
     * side in staging and `stride` apart in the rank's memory; on lane IN a word of 8 bytes is
     * copied as one. set() and add(), of a signal, are on lane IN. */
    enum epa_status (*copy)(struct proxy_copies *, enum proxy_lane, void *to, const void *from,
                            size_t bytes, uint32_t rows, uint64_t stride);
    enum epa_status (*set)(struct proxy_copies *, uint64_t *word, uint64_t value);
    enum epa_status (*add)(struct proxy_copies *, uint64_t *word, uint64_t by);
    /* Notes for done() that what was queued before is done; a barrier between copies, too. */
    enum epa_status (*mark)(struct proxy_copies *, enum proxy_lane);
    /* How many operations of the lane were done when its last mark was reached, of all ever
     * queued. */
    enum epa_status (*done)(struct proxy_copies *, enum proxy_lane, uint64_t *out);
    void (*explain)(struct proxy_copies *, struct epa_error *);
    /* The proxy has failed: kernels that wait for it must leave. */
    void (*stop_kernels)(struct proxy_copies *, enum epa_status);
    uint64_t queued[PROXY_LANES]; /* operations so far, marks not counted */
};

/* Memory that the transport between hosts takes as its heap, so that data go straight. */
struct proxy_region {
    char *base; /* of signals and heap; NULL: data are staged */
    uint64_t bytes;
    enum epa_memory memory;
};

struct proxy_params {
    struct epa_bootstrap *boot; /* of all ranks; the proxy's own while proxy_start() runs */
    const struct epa_transport_plugin *net;
    const void *net_config;
    const bool *far; /* [size]: ranks that the proxy serves */
    struct proxy_copies *copies;
    char *heap; /* of this rank, with its signals: what peers put to */
    uint64_t *signal;
    uint64_t heap_bytes;
    uint32_t signals;
    struct epa_host_ring ring[2]; /* of kernels and of the host */
    struct proxy_region region;   /* on all ranks or on none */
    struct epa_trace *trace;      /* NULL: no profile */
    uint64_t hold_acks_ns;        /* 0: as long as is good here */
};

struct proxy;

/* Collective. Opens the transport between hosts, on the thread that will call it. */
enum epa_status proxy_start(const struct proxy_params *, struct proxy **out, struct epa_error *);
/* Waits, for a limited time and unless a rank has failed, until what was asked for is done, and
 * until the others have come here, too. Takes NULL. */
void proxy_stop(struct proxy *);

/* Not EPA_OK once it has failed: why says proxy_explain(). */
enum epa_status proxy_status(const struct proxy *);
void proxy_explain(const struct proxy *, struct epa_error *);
void proxy_describe(const struct proxy *,
                    void (*say)(void *arg, const char *key, const char *value), void *arg);
/* How many ranks' staging copies go to at once, as the transport between hosts has mapped it. */
uint32_t proxy_reaches(const struct proxy *);

/* What the proxy counts up: PROXY_QUIETs done, and arrivals of other ranks. *slow: the rank that
 * the last PROXY_QUIET waits for. */
const uint64_t *proxy_quiet(const struct proxy *, uint32_t *slow);
const uint64_t *proxy_arrived(const struct proxy *, uint32_t rank);

/* The messages of a proxy: from the rings to slots of staging, over the transport between hosts,
 * and from staging to their places. */

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
    struct direct *direct; /* where data are not staged */
    struct reading reading[MESSAGES_RINGS];
    bool fence[EPA_DEVICE_RANKS]; /* before what is next to that rank */
    uint64_t lane_done[PROXY_LANES], marked[PROXY_LANES];
    uint64_t quiets, quiet_wanted; /* done; under way if not the same */
    uint32_t slow;                 /* the rank that a quiet waits for */
    uint64_t *arrived;             /* [size] */
    uint32_t reached;              /* ranks whose staging copies write to at once */
    struct epa_error err;
    struct proxy_trace trace;
};

/* Staged by messages (messages.c), or straight (direct.c). */
struct proxy_way {
    bool (*init)(struct messages *); /* false: no memory */
    /* What the transport between hosts must have, and that it is open: m->net. */
    uint64_t (*heap_bytes)(const struct messages *);
    uint32_t (*signals)(const struct messages *);
    void (*connect)(struct messages *);
    /* Does what can be done at once. */
    enum epa_status (*turn)(struct messages *, bool *moved);
    /* What a turn in which nothing moved waits for. */
    enum proxy_slice (*wait_for)(const struct messages *);
    /* Whether all that this rank was asked for is done, and messages to it that have come. */
    bool (*are_done)(const struct messages *);
};

extern const struct proxy_way proxy_staged_way, proxy_direct_way;

/* ---- proxy.c, for both ways ---- */

/* A descriptor that was just read. What is no put and no signal is dealt with here. */
enum epa_status messages_begin(struct messages *, struct reading *);
/* Whether `signal`, of the network, has come to `value`; if so, what came before it can be read. */
enum epa_status messages_look(struct messages *, uint32_t signal, uint64_t value, bool *there);

/* What a call of the transport between hosts, or of copies, returned; a failure goes to `err`. */
enum epa_status messages_net_failed(struct messages *, enum epa_status);
enum epa_status messages_copies_failed(struct messages *, enum epa_status);

#endif
