/* Records work and waits of a proxy in the trace of its rank, on side lanes (epa2a/trace.h). Lane
 * `proxy` holds slices `busy` with their actions, and slices of waits between them. Counter `ring`
 * shows descriptors that are written and not taken; counter `messages` shows messages in flight.
 * Arrows lead from `send` to the peer's `land`. Two more lanes show the busy times of the copy
 * engines. Without a profile each function costs one branch. */
#ifndef PROXY_TRACE_H
#define PROXY_TRACE_H

#include <epa2a/ring.h>
#include <epa2a/trace.h>

#include <stdbool.h>

/* Slices of the proxy's thread: actions, then reasons of waits. */
enum proxy_slice {
    PROXY_TAKES,     /* turns descriptors of a ring into records */
    PROXY_SENDS,     /* passes a message to the network */
    PROXY_LANDS,     /* queues copies and signals of a message that arrived */
    PROXY_DELIVERS,  /* acknowledges a message whose data and signals are in place */
    PROXY_COMPLETES, /* receives the acknowledgement of a message of this rank */
    PROXY_BUSY,
    PROXY_WAITS_COPIES, /* copies to or from staging */
    PROXY_WAITS_SLOTS,  /* all slots to a peer are in use, so the ring does not advance */
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
    enum proxy_slice state; /* state since state_ns; 0: unknown */
    uint64_t state_ns;
    uint64_t copies_end_ns[2]; /* end of the last slice of copies to and from staging */
    uint64_t ring, messages;   /* last recorded values of the counters */
};

/* Called on the rank's own thread. `trace` NULL: no profile. */
void proxy_trace_init(struct proxy_trace *, struct epa_trace *trace);

static inline uint64_t proxy_trace_now(const struct proxy_trace *t)
{
    return t->to == NULL ? 0 : epa_now_ns();
}

/* Records a slice from begin_ns until now; `descriptors` 0: unknown. */
void proxy_trace_slice(struct proxy_trace *, enum proxy_slice, uint64_t begin_ns, uint32_t peer,
                       uint64_t bytes, uint32_t descriptors);
/* Records the copies of a message, queued at begin_ns and now complete. Copies run one after the
 * other: the slice starts at the end of the previous message's copies. */
void proxy_trace_copies(struct proxy_trace *, bool out, uint64_t begin_ns, uint32_t peer,
                        uint64_t bytes);
/* Records that this rank sent message `number` to `peer`, or received it from `peer`, within the
 * slice that begins at begin_ns. */
void proxy_trace_sent(struct proxy_trace *, uint64_t begin_ns, uint32_t peer, uint64_t number);
void proxy_trace_landed(struct proxy_trace *, uint64_t begin_ns, uint32_t peer, uint64_t number);
/* Ends the previous state at begin_ns, the start of a turn, and begins this state. */
void proxy_trace_state(struct proxy_trace *, enum proxy_slice, uint64_t begin_ns);
void proxy_trace_count(struct proxy_trace *, const struct epa_host_ring *ring, uint32_t rings,
                       uint64_t messages);

#endif
