/* Data of the verbs transport. */
#ifndef VERBS_STATE_H
#define VERBS_STATE_H

#include <infiniband/verbs.h>

#include <epa2a/transport.h>

#include "../../common/segments.h"
#include "../../common/transport_wait.h"
#include "choose.h"
#include "queue.h"

/* ---- device.c: the RDMA device of a rank, found, opened, closed ---- */

/* The options of the plugin. */
struct config {
    const char *device, *gid, *pkey; /* NULL: automatic */
    uint32_t port;                   /* 0: the first active port */
    int mtu;                         /* bytes; 0: the MTU of the port */
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
    bool software; /* the CPU executes the device's work (soft-RoCE) */
};

/* ---- dmabuf.c: GPU memory, which the driver exports to the device ---- */

/* Functions of libcuda, and of libibverbs if its version has them. */
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

/* An allocation. Its id differs from the id of an earlier allocation at the same address; 0: memory
 * that CUDA does not know. */
struct dmabuf_range {
    uint64_t start, bytes, id;
    bool on_gpu; /* false: host memory */
    int device;
};

/* ---- sources.c: registrations of sources of puts outside the heap ---- */

enum { SOURCES_MOST = 64 };

struct source {
    struct ibv_mr *mr; /* NULL: the entry is free */
    struct dmabuf_range range;
    uint64_t used;  /* value of sources.uses at the last use */
    uint64_t *last; /* [queues.n]: requests built to each peer up to the last put from it */
};

struct sources {
    const struct device *device;
    const struct dmabuf *dmabuf; /* NULL: no GPU memory */
    struct queues *queues;
    uint64_t uses, *last; /* last: storage of source.last of all entries */
    struct source entry[SOURCES_MOST];
};

/* ---- connect.c: creates, exchanges and connects the queue pairs between all ranks ---- */

/* The queue pair to one rank. */
struct card_pair {
    uint32_t number, first_psn; /* first_psn: sequence number of its first packet */
};

/* Message of a rank to all others. */
struct card {
    uint64_t base, heap; /* addresses of its segment and its heap */
    uint32_t key, heap_key;
    uint32_t lid, mtu, link, reads; /* reads: maximum of additions in flight to this rank */
    uint8_t gid[GID_BYTES];
    struct card_pair to[]; /* [size] */
};

struct connect_params {
    struct epa_bootstrap *boot;
    const struct config *config;
    const struct device *device;
    uint64_t base, heap; /* addresses of the own segment and heap */
    uint32_t key, heap_key, slots;
};

/* ---- the transport ---- */

enum verbs_failed_at {
    FAILED_REQUEST = FAILED_OTHER, /* see queues.failure */
    FAILED_SOURCE,
};

struct verbs {
    struct epa_transport base; /* first member: verbs_of() casts the pointer back */
    struct epa_bootstrap *boot;
    struct config config;
    struct device device;
    struct segments segments;
    struct peer *peer; /* segments.peer */
    char **peer_heap;
    bool given;                    /* the caller allocated the heap, outside the segment */
    bool on_gpu;                   /* the caller's heap is GPU memory */
    struct ibv_mr *mr, *pinned_mr; /* the own segment; values of signals */
    struct ibv_mr *heap_mr;        /* a heap of the caller */
    uint32_t heap_key;             /* local key of the own heap, for puts from it */
    struct dmabuf dmabuf;
    struct sources sources;
    struct epa_error source_err; /* reason why the last source could not be registered */
    void *pinned;
    uint64_t pinned_bytes;
    struct queues queues;
    uint64_t *ordered; /* [size]: requests that must be done before the next put or set */
    uint32_t mtu;      /* smallest MTU of all peers */
    bool connected;    /* all queue pairs of all ranks are connected */
    struct epa_wait_config wait;
    uint64_t settle_ns; /* time between the two reads of a signal */
    uint64_t barriers;  /* number of barriers that this rank has entered */
    struct failure failure;
};

/* Lines of the transport itself, behind the signals. */
static inline uint32_t line_arrived(const struct verbs *v, uint32_t from)
{
    return v->segments.params.signals + from;
}

/* Returns true if loads and stores reach the peer's memory. The own memory is always direct, except
 * with a heap of the caller: the device then carries data and signals and keeps their order. */
static inline bool is_direct(const struct verbs *v, uint32_t peer)
{
    return v->peer_heap[peer] != NULL && !v->given;
}

static inline uint64_t *word_at(const struct verbs *v, uint32_t line, uint32_t peer)
{
    return &v->peer[peer].segment->signal[line].word;
}

/* Address of a line for the peer's device. */
static inline uint64_t remote_line(const struct queue *q, uint32_t line)
{
    return q->remote + offsetof(struct segment, signal) + (uint64_t)line * LINE;
}

#endif
