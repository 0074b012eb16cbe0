/* Work requests of one rank: a queue pair to each rank, one completion queue for all.
 *
 * A queue is a ring of `slots` requests. A request is built, posted to the device in a list, and
 * done. built - done never exceeds `slots`, so the device's queue cannot overflow; some devices free
 * a slot only after its completion was polled. Every few requests, one asks for a completion, which
 * covers all earlier requests, since a queue pair completes in order. One slot is reserved for an
 * empty request that asks for a completion if the last built request did not. */
#ifndef QUEUE_H
#define QUEUE_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#include <epa2a/status.h>

struct queue {
    struct ibv_qp *qp;
    uint32_t peer, slots;
    uint32_t inline_bytes;        /* inline size of the queue pair */
    uint64_t built, posted, done; /* numbers of requests so far */
    uint64_t asked;               /* value of `built` at the last request for a completion */
    uint64_t atomics;             /* value of `built` after the last addition */
    struct ibv_send_wr *wr;       /* [slots] */
    struct ibv_sge *sge;          /* [slots] */
    uint64_t *value;              /* [slots] in pinned memory: values of signals */
    uint64_t *dump;               /* in pinned memory: old values that additions return */
    uint64_t remote, heap;        /* addresses of the peer's segment and heap */
    uint32_t remote_key, heap_key;
};

/* The source of a write. */
struct queue_source {
    const void *at;
    uint32_t key;  /* local key; ignored if all data is inline */
    bool readable; /* the CPU can read it, as inline data requires */
};

/* The first failed request. Later requests are flushed and carry no information. */
struct queue_failure {
    bool failed, posting;
    int error;                 /* errno of a failed post */
    enum ibv_wc_status status; /* status of a failed completion */
    uint32_t vendor, peer;
    enum ibv_wr_opcode opcode;
    uint64_t bytes;
};

struct queues {
    struct ibv_cq *cq;
    struct queue *queue; /* [n], by rank */
    uint32_t n;
    uint32_t pinned_key; /* key of the memory of `value` and `dump` */
    uint32_t ask_every;  /* number of requests per completion */
    uint32_t batch;      /* number of puts that are posted together */
    uint64_t most_bytes; /* maximum length of a request */
    uint32_t held;       /* number of queues with built requests that are not posted */
    struct queue_failure failure;
};

/* Number of requests of a write of `bytes`. */
uint64_t queue_pieces(const struct queues *, uint64_t bytes);
/* Returns true if `n` more requests can be built now. */
bool queue_has_room(const struct queue *, uint64_t n);
/* Returns true if the first `mark` requests are done. */
bool queue_is_done(const struct queue *, uint64_t mark);

/* The caller checks the room for the following functions. queue_post() posts the requests; a full
 * batch posts itself. queues->failure stores a failure. */
/* Writes into the peer's heap. */
void queue_write(struct queues *, struct queue *, struct queue_source, uint64_t bytes, uint64_t to);
/* Writes `value` into a line of the peer's segment. */
void queue_set(struct queues *, struct queue *, uint64_t value, uint64_t to, bool ask);
void queue_add(struct queues *, struct queue *, uint64_t value, uint64_t to);
void queue_post(struct queues *, struct queue *);
void queues_post(struct queues *);

/* Requests a completion that covers all built requests. */
void queue_ask(struct queues *, struct queue *);

/* Polls all completions. After EPA_ERR_DIED or EPA_ERR_SYSTEM queues->failure has the reason. */
enum epa_status queues_poll(struct queues *);

#endif
