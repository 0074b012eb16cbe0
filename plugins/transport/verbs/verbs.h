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

/* ---- dmabuf.c: memory of GPUs, which the driver exports to the device ---- */

/* What is called of libcuda, and of libibverbs where it is new enough. */
struct dmabuf {
    int (*init)(unsigned flags);
    int (*error_string)(int error, const char **out);
    int (*count)(int *out);
    int (*device_attribute)(int *out, int attribute, int device);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*pointer_attributes)(unsigned n, int *attribute, void **value, unsigned long long at);
    int (*export_range)(void *out, unsigned long long at, size_t bytes, int kind,
                        unsigned long long flags);
    struct ibv_mr *(*reg)(struct ibv_pd *, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                          int access);
};

/* An allocation. One that goes and another that comes at its place have different ids; 0: it has
 * none, as memory of which CUDA knows nothing. */
struct dmabuf_range {
    uint64_t start, bytes, id;
    bool on_gpu; /* else of the host */
    int device;
};

enum epa_status dmabuf_init(struct dmabuf *out, struct epa_error *);
enum epa_status dmabuf_check(const struct device *, struct epa_error *);
void dmabuf_find(const struct dmabuf *, const void *at, struct dmabuf_range *out);
/* Of memory of a GPU. */
enum epa_status dmabuf_register(const struct dmabuf *, const struct device *,
                                const struct dmabuf_range *, int access, struct ibv_mr **out,
                                struct epa_error *);

/* ---- sources.c: registrations of what puts read outside of the heap ---- */

enum { SOURCES_MOST = 64 };

struct source {
    struct ibv_mr *mr; /* NULL: there is none */
    struct dmabuf_range range;
    uint64_t used;  /* sources.uses, when it last was */
    uint64_t *last; /* [queues.n] requests built to each peer after the last put from it */
};

struct sources {
    const struct device *device;
    const struct dmabuf *dmabuf; /* NULL: all memory is the host's */
    struct queues *queues;
    uint64_t uses, *last; /* last: of all entries */
    struct source entry[SOURCES_MOST];
};

enum epa_status sources_init(struct sources *out, const struct device *, const struct dmabuf *,
                             struct queues *, struct epa_error *);
/* Once no queue pair is left; also of what was never begun. */
void sources_finish(struct sources *);

/* What a put of `bytes` to `peer` from there is for the device; *entry: for sources_note(), or
 * NULL. EPA_AGAIN: all registrations are of puts under way. */
enum epa_status sources_find(struct sources *, const void *at, uint64_t bytes, uint32_t peer,
                             struct queue_source *out, struct source **entry, struct epa_error *);
/* The put is built. */
void sources_note(struct sources *, struct source *, uint32_t peer);

/* ---- connect.c: queue pairs between all ranks: made, exchanged, connected ---- */

/* Of the queue pair to one rank. */
struct card_pair {
    uint32_t number, first_psn; /* first_psn: of the first packet that it sends */
};

/* The card that a rank sends to all others. */
struct card {
    uint64_t base, heap; /* addresses of its segment and its heap */
    uint32_t key, heap_key;
    uint32_t lid, mtu, link, reads; /* reads: additions in flight that it takes */
    uint8_t gid[GID_BYTES];
    struct card_pair to[]; /* each rank */
};

struct connect_params {
    struct epa_bootstrap *boot;
    const struct config *config;
    const struct device *device;
    uint64_t base, heap; /* of the own segment and heap */
    uint32_t key, heap_key, slots;
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
    FAILED_REQUEST = FAILED_OTHER, /* see queues.failure */
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
    bool given;                    /* the heap is the caller's, and apart from the segment */
    bool on_gpu;                   /* and in memory of a GPU */
    struct ibv_mr *mr, *pinned_mr; /* the own segment; what signals carry */
    struct ibv_mr *heap_mr;        /* of a heap that is given */
    uint32_t heap_key;             /* of the own heap, for puts from it */
    struct dmabuf dmabuf;
    struct sources sources;
    struct epa_error source_err; /* why the last source was not taken */
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

/* Memory that loads and stores reach; always one's own, unless the heap is given: then data and
 * signals both go by the device, which keeps their order. */
static inline bool is_direct(const struct verbs *v, uint32_t peer)
{
    return v->peer_heap[peer] != NULL && !v->given;
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
enum epa_status verbs_go_on(struct verbs *, struct epa_wait *, struct failure *);
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
