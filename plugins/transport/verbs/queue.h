/* Work requests of one rank: a queue pair to each rank, one completion queue for all.
 *
 * A queue is a ring of `slots` requests. They are built, then handed to the device in lists
 * (posted), then done. built - done never passes `slots`, so the device's queue cannot
 * overflow whatever it would take: some free a slot only once its completion was polled.
 * Every few requests one asks for a completion, which stands for all before it: a queue pair
 * completes in order. One slot is kept for the request that asks for it when others have to
 * be waited for and the last of them did not. */
#ifndef QUEUE_H
#define QUEUE_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#include <epa2a/status.h>

struct queue {
    struct ibv_qp *qp;
    uint32_t peer, slots;
    uint32_t inline_bytes;        /* as the device gave it */
    uint64_t built, posted, done; /* requests so far */
    uint64_t asked;               /* built, when a completion was last asked for */
    uint64_t atomics;             /* built, after the last addition */
    struct ibv_send_wr *wr;       /* [slots] */
    struct ibv_sge *sge;          /* [slots] */
    uint64_t *value;              /* [slots] in pinned memory: what signals carry */
    uint64_t *dump;               /* in pinned memory: what additions bring back */
    uint64_t remote, heap;        /* addresses of the peer's segment and heap */
    uint32_t remote_key, heap_key;
};

/* What a write reads. */
struct queue_source {
    const void *at;
    uint32_t key;  /* as registered; no matter where all of it is inline */
    bool readable; /* by the CPU, which inline data is read by */
};

/* The first request that failed; those behind it are flushed and say nothing. */
struct queue_failure {
    bool failed, posting;
    int error;                 /* posting: errno */
    enum ibv_wc_status status; /* else */
    uint32_t vendor, peer;
    enum ibv_wr_opcode opcode;
    uint64_t bytes;
};

struct queues {
    struct ibv_cq *cq;
    struct queue *queue; /* [n], by rank */
    uint32_t n;
    uint32_t pinned_key; /* of what `value` and `dump` are in */
    uint32_t ask_every;  /* requests from one completion to the next */
    uint32_t batch;      /* puts held back before they are posted together */
    uint64_t most_bytes; /* of one request */
    uint32_t held;       /* queues with requests that are built and not posted */
    struct queue_failure failure;
};

/* Requests that a write of `bytes` takes. */
uint64_t queue_pieces(const struct queues *, uint64_t bytes);
/* Whether `n` more requests can be built now. */
bool queue_has_room(const struct queue *, uint64_t n);
/* Whether the first `mark` requests are done. */
bool queue_is_done(const struct queue *, uint64_t mark);

/* Each needs room for what it builds. Requests are posted by queue_post() or, once there are
 * enough of them, by themselves; a failure is kept in queues->failure. */
/* Into the peer's heap. */
void queue_write(struct queues *, struct queue *, struct queue_source, uint64_t bytes, uint64_t to);
/* Into the lines of its segment. */
void queue_set(struct queues *, struct queue *, uint64_t value, uint64_t to, bool ask);
void queue_add(struct queues *, struct queue *, uint64_t value, uint64_t to);
void queue_post(struct queues *, struct queue *);
void queues_post(struct queues *);

/* Sees to it that a completion will come for all that has been built. */
void queue_ask(struct queues *, struct queue *);

/* Takes what completions there are; EPA_ERR_DIED, EPA_ERR_SYSTEM: see queues->failure. */
enum epa_status queues_poll(struct queues *);

#endif
