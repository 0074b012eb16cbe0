/* What a proxy does and what it waits for, in the trace of its rank, on lanes beside those of the
 * rank's workers (epa2a/trace.h). Lane `proxy`: slices `busy`, with what was done in them, and
 * between them what the proxy waited for; `ring`, descriptors that are written and not taken, and
 * `messages`, those that the network or the peer has, are counters; arrows go from `send` to `land`
 * of the peer. Two more lanes say when the copy engines had something to do. Without a profile each
 * function is one branch. */
#ifndef PROXY_TRACE_H
#define PROXY_TRACE_H

#include <epa2a/ring.h>
#include <epa2a/trace.h>

#include <stdbool.h>

/* Of the proxy's thread: what it did, and, from WAITS on, what it waited for. */
enum proxy_slice {
    PROXY_TAKES,     /* descriptors from a ring, which become records */
    PROXY_SENDS,     /* a message, handed to the network */
    PROXY_LANDS,     /* a message that arrived: copies and signals are queued */
    PROXY_DELIVERS,  /* data and signals of a message are in place, which its sender is told */
    PROXY_COMPLETES, /* the peer has told it of a message of this rank */
    PROXY_BUSY,
    PROXY_WAITS_COPIES, /* to or from staging */
    PROXY_WAITS_SLOTS,  /* the ring stands: as many messages as can be are under way to a peer */
    PROXY_WAITS_NETWORK,
    PROXY_IDLE,
    PROXY_COPIES_OUT,
    PROXY_COPIES_IN,
    PROXY_COUNTS_RING,
    PROXY_COUNTS_MESSAGES,
    PROXY_NAMES,
};

struct proxy_trace {
    const struct epa_trace_beside *to; /* NULL: no profile */
    uint16_t name[PROXY_NAMES];
    enum proxy_slice state; /* since state_ns; 0: not known yet */
    uint64_t state_ns;
    uint64_t copies_end_ns[2]; /* of the slice before, to and from staging */
    uint64_t ring, messages;   /* counters as they were noted last */
};

/* On the rank's own thread. `trace`: NULL: no profile. */
void proxy_trace_init(struct proxy_trace *, struct epa_trace *trace);

static inline uint64_t proxy_trace_now(const struct proxy_trace *t)
{
    return t->to == NULL ? 0 : epa_now_ns();
}

/* A slice from begin_ns until now, of the proxy's thread; `descriptors` 0: not given. */
void proxy_trace_slice(struct proxy_trace *, enum proxy_slice, uint64_t begin_ns, uint32_t peer,
                       uint64_t bytes, uint32_t descriptors);
/* Copies of a message, queued at begin_ns, are done. One after the other: those of a message begin
 * where those of the one before ended. */
void proxy_trace_copies(struct proxy_trace *, bool out, uint64_t begin_ns, uint32_t peer,
                        uint64_t bytes);
/* Message `number` between this rank and `peer`, within a slice that begins at begin_ns: its
 * sender, its receiver. */
void proxy_trace_sent(struct proxy_trace *, uint64_t begin_ns, uint32_t peer, uint64_t number);
void proxy_trace_landed(struct proxy_trace *, uint64_t begin_ns, uint32_t peer, uint64_t number);
/* A turn began at begin_ns: until then the proxy was in the state before, now it is in this one. */
void proxy_trace_state(struct proxy_trace *, enum proxy_slice, uint64_t begin_ns);
void proxy_trace_count(struct proxy_trace *, const struct epa_host_ring *ring, uint32_t rings,
                       uint64_t messages);

#endif
