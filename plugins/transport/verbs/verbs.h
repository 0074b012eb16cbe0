/* What the parts of the verbs transport share. */
#ifndef VERBS_H
#define VERBS_H

#include <infiniband/verbs.h>

#include <epa2a/transport.h>

#include "../../common/segments.h"
#include "../../common/transport_wait.h"
#include "choose.h"
#include "queue.h"

/* ---- device.c: the RDMA device of a rank, found, opened, closed ---- */

/* The options of the plugin. */
struct config {
    const char *device, *gid, *pkey; /* NULL: chosen here */
    uint32_t port;                   /* 0: the first that is active */
    int mtu;                         /* bytes; 0: the port's */
    uint32_t service_level, traffic_class, timeout, retries;
    uint32_t depth, batch, inline_bytes;
    bool direct;
    int wait; /* enum wait_kind */
};

struct device {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_device_attr attr;
    struct port port;
    struct gid gid;
    uint32_t pkey;
    bool software; /* needs this machine's cores to do its work */
};

/* Whether there is a port to use, without a trace. */
enum epa_status device_check(const struct config *, struct epa_error *);

/* On failure `out` is closed already. */
enum epa_status device_open(const struct config *, struct device *out, struct epa_error *);
void device_close(struct device *);

/* Of that port, now: "port 1 of mlx5_0 is ACTIVE". */
void device_state(const struct device *, char *out, size_t room);

/* Pins and registers memory; a refusal names `in_all`, the bytes that this rank pins in total. */
enum epa_status device_register(const struct device *, void *at, uint64_t bytes, int access,
                                uint64_t in_all, struct ibv_mr **out, struct epa_error *);

/* Before anything is made: whether `bytes` can be pinned. */
enum epa_status device_may_pin(uint64_t bytes, struct epa_error *);

/* ---- connect.c: queue pairs between all ranks: made, exchanged, connected ---- */

/* Of the queue pair to one rank. */
struct card_pair {
    uint32_t number, first_psn; /* first_psn: of the first packet that it sends */
};

/* The card that a rank sends to all others. */
struct card {
    uint64_t base; /* address of its segment */
    uint32_t key;
    uint32_t lid, mtu, link, reads; /* reads: additions in flight that it takes */
    uint8_t gid[GID_BYTES];
    struct card_pair to[]; /* each rank */
};

struct connect_params {
    struct epa_bootstrap *boot;
    const struct config *config;
    const struct device *device;
    uint64_t base; /* of the own segment */
    uint32_t key, slots;
};

/* A queue pair for each rank, this one included, and the completion queue. What there is of
 * them when it fails, disconnect_all() takes. */
enum epa_status connect_create(const struct connect_params *, struct queues *, struct epa_error *);

/* Collective. `mtu` is what the pair of ranks with the least of it has. */
enum epa_status connect_all(const struct connect_params *, struct queues *, uint32_t *mtu,
                            struct epa_error *);
void disconnect_all(struct queues *);

/* ---- the transport ---- */

enum verbs_failed_at {
    FAILED_QUIET = FAILED_OTHER,
    FAILED_REQUEST, /* see queues.failure */
    FAILED_SOURCE,
};

struct verbs {
    struct epa_transport base; /* first: a pointer to it is one to all of this */
    struct epa_bootstrap *boot;
    struct config config;
    struct device device;
    struct segments segments;
    struct peer *peer; /* segments.peer */
    char **peer_heap;
    struct ibv_mr *mr, *pinned_mr; /* the own segment; what signals carry */
    void *pinned;
    uint64_t pinned_bytes;
    struct queues queues;
    uint64_t *ordered; /* [size] requests that the next put or set there waits for */
    uint32_t mtu;      /* the least of all peers */
    bool connected;    /* all can reach all */
    struct epa_wait_config wait;
    uint64_t settle_ns; /* between the two looks at a signal */
    uint64_t barriers;  /* begun by this rank */
    struct failure failure;
};

/* Lines behind the signals that are the transport's own. */
static inline uint32_t line_arrived(const struct verbs *v, uint32_t from)
{
    return v->segments.params.signals + from;
}

/* Memory that loads and stores reach; always one's own. */
static inline bool is_direct(const struct verbs *v, uint32_t peer)
{
    return v->peer_heap[peer] != NULL;
}

static inline uint64_t *word_at(const struct verbs *v, uint32_t line, uint32_t peer)
{
    return &v->peer[peer].segment->signal[line].word;
}

/* Where a line is for the peer's device. */
static inline uint64_t remote_line(const struct queue *q, uint32_t line)
{
    return q->remote + offsetof(struct segment, signal) + (uint64_t)line * LINE;
}

/* ---- waits.c ---- */

/* Whether `word` is what is wanted, in two looks that saw the same, with `pause` in between:
 * what was seen in the middle of a write does not count. */
bool poll_settled(const uint64_t *word, enum epa_compare, uint64_t want,
                  void (*pause)(const void *arg), const void *arg);
/* A value that two consecutive loads agree on. */
uint64_t look_up(const uint64_t *word, void (*pause)(const void *arg), const void *arg);

uint64_t verbs_read(const struct verbs *, uint32_t line);

/* Polls completions; v->failure explains an error. */
enum epa_status verbs_poll(struct verbs *);
/* One turn of a wait: completions, `aborted`, the clock. EPA_OK: go on waiting. */
enum epa_status verbs_go_on(struct verbs *, struct epa_wait *, struct epa_wait_state *);
/* Until this rank's own `signal` is what is wanted. */
enum epa_status verbs_wait(struct verbs *, uint32_t signal, enum epa_compare, uint64_t want,
                           uint64_t timeout_ns);
/* Until all that this rank has started is in place. */
enum epa_status verbs_drain(struct verbs *, uint64_t timeout_ns);
enum epa_status verbs_barrier(struct epa_transport *, uint64_t timeout_ns); /* for the table */

/* ---- verbs.c, open.c ---- */

extern const struct epa_transport_ops verbs_ops;
void verbs_close(struct epa_transport *);

/* ---- waits.c ---- */

void verbs_explain(struct epa_transport *, struct epa_error *);
void verbs_describe(struct epa_transport *,
                    void (*say)(void *arg, const char *key, const char *value), void *arg);

/* Whether, and where, a failed request says more than its status: what to look at. */
struct request_words {
    const struct queue_failure *failure;
    const char *port; /* "port 1 of mlx5_0 is ACTIVE" */
    uint32_t rank, timeout, retries;
};
void request_in_words(const struct request_words *, char *out, size_t room);

#endif
