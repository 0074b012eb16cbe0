/* The proxy: a thread of each rank that executes the puts and signals of kernels and host for ranks of
 * other nodes (epa2a/ring.h) over a transport between hosts. README.md describes the protocol. The
 * proxy does not call CUDA: the caller passes functions that copy between memory and staging. */
#ifndef PROXY_H
#define PROXY_H

#include "../../common/transport_wait.h"
#include "proxy_trace.h"

#include <epa2a/ring.h>
#include <epa2a/trace.h>

enum {
    PROXY_FACTS = 16,               /* maximum of facts of the transport between hosts */
    PROXY_QUIET = EPA_RING_OWN,     /* sets quiet to `value` after all earlier operations */
    PROXY_ARRIVE = PROXY_QUIET * 2, /* sets the peer's arrived[] of this rank to `value` */
};

enum proxy_lane { PROXY_OUT, PROXY_IN, PROXY_LANES }; /* to staging, from staging */

/* Copies between the rank's memory and staging. CPU and kernels see the operations of a lane in the
 * order of queueing, except that adjacent copies may complete in any order. Only the proxy's thread
 * calls these functions. */
struct proxy_copies {
    /* enter() is the first call and pins staging; leave() is the last call. leave() returns false if
     * copies may still be in flight: staging must then stay allocated. */
    enum epa_status (*enter)(struct proxy_copies *, void *staging, size_t bytes);
    bool (*leave)(struct proxy_copies *);
    /* After enter(): pins memory of another rank as a target of lane OUT. Returns false if
     * impossible. */
    bool (*reach)(struct proxy_copies *, void *memory, size_t bytes);
    /* Each function queues one operation, or returns EPA_AGAIN and queues none. copy() copies `rows`
     * rows, which are adjacent in staging and `stride` bytes apart in the rank's memory; lane IN
     * copies an aligned word of 8 bytes atomically. set() and add() change a signal on lane IN. */
    enum epa_status (*copy)(struct proxy_copies *, enum proxy_lane, void *to, const void *from,
                            size_t bytes, uint32_t rows, uint64_t stride);
    enum epa_status (*set)(struct proxy_copies *, uint64_t *word, uint64_t value);
    enum epa_status (*add)(struct proxy_copies *, uint64_t *word, uint64_t by);
    /* Queues a mark for done(); the mark also orders copies before and after it. */
    enum epa_status (*mark)(struct proxy_copies *, enum proxy_lane);
    /* Returns the number of operations of the lane, since enter(), that its last completed mark
     * covers. */
    enum epa_status (*done)(struct proxy_copies *, enum proxy_lane, uint64_t *out);
    void (*explain)(struct proxy_copies *, struct epa_error *);
    /* Stops kernels that wait for the proxy, after its failure. */
    void (*stop_kernels)(struct proxy_copies *, enum epa_status);
    uint64_t queued[PROXY_LANES]; /* number of operations so far, without marks */
};

/* Memory that the transport between hosts uses as its heap for the direct way. */
struct proxy_region {
    char *base; /* signals and heap; NULL: data is staged */
    uint64_t bytes;
    enum epa_memory memory;
};

struct proxy_params {
    struct epa_bootstrap
        *boot; /* bootstrap of all ranks; only the proxy uses it in proxy_start() */
    const struct epa_transport_plugin *net;
    const void *net_config;
    const bool *far; /* [size]: ranks that the proxy serves */
    struct proxy_copies *copies;
    char *heap; /* heap of this rank */
    uint64_t *signal;
    uint64_t heap_bytes;
    uint32_t signals;
    struct epa_host_ring ring[2]; /* the ring of kernels and the ring of the host */
    struct proxy_region region;   /* set on all ranks or on none */
    struct epa_trace *trace;      /* NULL: no profile */
    uint64_t hold_acks_ns;        /* delay of acknowledgements; 0: automatic */
};

struct proxy;

/* Collective. Opens the transport between hosts on the proxy's thread. */
enum epa_status proxy_start(const struct proxy_params *, struct proxy **out, struct epa_error *);
/* Waits for the proxy's operations and for the proxy_stop() of the other ranks, within a time limit
 * and unless a rank has failed. Accepts NULL. */
void proxy_stop(struct proxy *);

/* Returns the failure of the proxy or EPA_OK; proxy_explain() gives the reason. */
enum epa_status proxy_status(const struct proxy *);
void proxy_explain(const struct proxy *, struct epa_error *);
void proxy_describe(const struct proxy *,
                    void (*say)(void *arg, const char *key, const char *value), void *arg);
/* Number of ranks whose staging copies write directly, through a mapping of the transport. */
uint32_t proxy_reaches(const struct proxy *);

/* Counters of the proxy: completed PROXY_QUIETs, and arrivals of other ranks. *slow: the rank that
 * the pending PROXY_QUIET waits for. */
const uint64_t *proxy_quiet(const struct proxy *, uint32_t *slow);
const uint64_t *proxy_arrived(const struct proxy *, uint32_t rank);

/* The messages of a proxy: from the rings to slots of staging, over the transport between hosts, and
 * from the peer's staging to the peer's memory. */

enum {
    MESSAGES_SLOTS = 8, /* maximum of messages in flight from one rank to another */
    MESSAGES_RINGS = 2,
};

struct reading {
    struct epa_descriptor now; /* op 0: none */
    const char *payload;       /* payload of an inline put */
    uint32_t row;              /* number of complete rows in messages */
    uint64_t at;               /* bytes of the next row in messages */
};

struct messages {
    const struct proxy_params *params;
    struct epa_transport *net;
    uint32_t rank, size;
    uint64_t piece; /* maximum bytes of records in a message */
    struct channel_out *out;
    struct channel_in *in;
    struct direct *direct; /* state of the direct way, or NULL */
    struct reading reading[MESSAGES_RINGS];
    bool fence[EPA_DEVICE_RANKS]; /* a fence precedes the next operation for that rank */
    uint64_t lane_done[PROXY_LANES], marked[PROXY_LANES];
    uint64_t quiets, quiet_wanted; /* last completed quiet; pending quiet if different */
    uint32_t slow;                 /* the rank that the pending quiet waits for */
    uint64_t *arrived;             /* [size] */
    uint32_t reached;              /* number of ranks whose staging copies write directly */
    struct epa_error err;
    struct proxy_trace trace;
};

/* A way of carrying data: staged messages (messages.c) or direct puts (direct.c). */
struct proxy_way {
    bool (*init)(struct messages *); /* false: no memory */
    /* Heap and signals that the transport between hosts needs; connect() follows its open(). */
    uint64_t (*heap_bytes)(const struct messages *);
    uint32_t (*signals)(const struct messages *);
    void (*connect)(struct messages *);
    /* Performs all operations that need no wait. */
    enum epa_status (*turn)(struct messages *, bool *moved);
    /* Returns the reason why a turn moved nothing. */
    enum proxy_slice (*wait_for)(const struct messages *);
    /* Returns true if all operations of this rank and all received messages are done. */
    bool (*are_done)(const struct messages *);
};

extern const struct proxy_way proxy_staged_way, proxy_direct_way;

/* ---- proxy.c: functions for both ways ---- */

/* Begins a descriptor; completes it at once unless it is a put or a signal. */
enum epa_status messages_begin(struct messages *, struct reading *);
/* Sets *there if the network signal has reached `value`. Data before the signal is then visible. */
enum epa_status messages_look(struct messages *, uint32_t signal, uint64_t value, bool *there);

/* Stores a failure of the transport between hosts or of copies in `err`; returns the status. */
enum epa_status messages_net_failed(struct messages *, enum epa_status);
enum epa_status messages_copies_failed(struct messages *, enum epa_status);

#endif
