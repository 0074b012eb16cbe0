/* Host-side tracing: worker threads record time slices, signal flows and counters while an
 * iteration runs. A rank has one lane for each worker thread, lane 0 for its own, and each lane
 * has one writer. Memory is allocated in advance, so nothing here allocates or locks; events
 * that do not fit are counted. Without profiling the trace is NULL, and each call is one branch.
 *
 *     uint64_t begin = epa_trace_now(t);
 *     ... work ...
 *     begin = epa_trace_slice(t, worker, name, begin, EPA_TRACE_NOBODY, bytes, tokens);
 *     ... the next, which begins where the last ended ...
 *
 * Slices of a lane nest. The caller of an algorithm records stages, experts, checks and the
 * barriers between stages; an algorithm records its phases and waits.
 *
 * What does not run in step with the rank's iterations, such as a transport's own thread, has lanes
 * beside them (struct epa_trace_beside): the latest events are kept, and belong to the iteration
 * that the rank was in when they began. */
#ifndef EPA2A_TRACE_H
#define EPA2A_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <epa2a/wait.h>

enum { EPA_TRACE_NAMES = 64, EPA_TRACE_NAME_BYTES = 32 };

#define EPA_TRACE_NOBODY UINT32_MAX /* a slice without a peer */

enum epa_trace_kind {
    EPA_TRACE_SLICE,
    EPA_TRACE_FLOW_BEGIN, /* begin_ns: just before `value` is sent to word `signal` of `peer` */
    EPA_TRACE_FLOW_END,   /* the wait for it, from begin_ns to end_ns */
    EPA_TRACE_COUNT,      /* begin_ns: time from which `name` is `value` */
};

struct epa_trace_event {
    uint64_t begin_ns, end_ns; /* of epa_now_ns() */
    uint64_t bytes, value; /* bytes 0: not given; of a kernel: how far its times may be off, ns */
    uint32_t tokens, peer; /* tokens 0: not given */
    uint32_t signal;
    uint16_t name, kind; /* as epa_trace_name() gave it; enum epa_trace_kind */
};

/* One lane in one iteration; on a cache line of its own, as cores write lanes concurrently. */
struct epa_trace_lane {
    uint32_t used; /* release: the events before it are whole, should this process be killed */
    uint32_t dropped;
    uint32_t pad[14];
};

struct epa_trace_names {
    uint32_t n;
    char name[EPA_TRACE_NAMES][EPA_TRACE_NAME_BYTES];
};

/* Who writes beside the rank's workers, one thread each; and their lanes. */
enum epa_trace_beside_kind { EPA_TRACE_PROXY, EPA_TRACE_KERNELS, EPA_TRACE_BESIDES };
enum epa_trace_proxy_lane {
    EPA_TRACE_LANE_PROXY,
    EPA_TRACE_LANE_COPIES_OUT, /* of copy engines, to staging */
    EPA_TRACE_LANE_COPIES_IN,  /* from staging */
    EPA_TRACE_PROXY_LANES,
};

/* Signals of flows that are messages of proxies: no algorithm has so many. */
#define EPA_TRACE_MESSAGES (1u << 31)
/* And from here on, of flows that are no signals: flags in the heap. */
#define EPA_TRACE_FLAGS (1u << 30)

struct epa_trace_beside {
    uint64_t *noted; /* release: the events before it; the last `room` of them are there */
    struct epa_trace_event *event; /* [room]; of slices and counters `signal` is the lane */
    uint64_t room;                 /* 0: nothing is kept */
};

struct epa_trace {
    uint32_t lanes, room;          /* room: events of a lane in an iteration */
    struct epa_trace_lane *lane;   /* [lanes], of the iteration that runs */
    struct epa_trace_event *event; /* [lanes][room] */
    struct epa_trace_names *names;
    struct epa_trace_beside beside[EPA_TRACE_BESIDES];
};

/* The number of a name, for the calls below; call it on the rank's own thread, best in set-up.
 * If there is no room for more names it is that of the first. */
static inline uint16_t epa_trace_name(struct epa_trace *t, const char *name)
{
    uint32_t i = 0;

    if (t == NULL)
        return 0;
    while (i < t->names->n && strncmp(t->names->name[i], name, EPA_TRACE_NAME_BYTES - 1) != 0)
        i++;
    if (i == t->names->n) {
        if (i == EPA_TRACE_NAMES)
            return 0;
        strncpy(t->names->name[i], name, EPA_TRACE_NAME_BYTES - 1);
        t->names->n++;
    }
    return (uint16_t)i;
}

static inline uint64_t epa_trace_now(const struct epa_trace *t)
{
    return t == NULL ? 0 : epa_now_ns();
}

/* For the calls below, and only where t is not NULL. */
static inline void epa_trace_add(struct epa_trace *t, uint32_t lane,
                                 const struct epa_trace_event *event)
{
    struct epa_trace_lane *to = &t->lane[lane];

    if (to->used == t->room) {
        to->dropped++;
        return;
    }
    t->event[(size_t)lane * t->room + to->used] = *event;
    __atomic_store_n(&to->used, to->used + 1, __ATOMIC_RELEASE);
}

/* Records a slice from begin_ns until now and returns now. lane < t->lanes, here and below. */
static inline uint64_t epa_trace_slice(struct epa_trace *t, uint32_t lane, uint16_t name,
                                       uint64_t begin_ns, uint32_t peer, uint64_t bytes,
                                       uint32_t tokens)
{
    struct epa_trace_event event;

    if (t == NULL)
        return 0;
    event.begin_ns = begin_ns;
    event.end_ns = epa_trace_now(t);
    event.bytes = bytes;
    event.value = 0;
    event.tokens = tokens;
    event.peer = peer;
    event.signal = 0;
    event.name = name;
    event.kind = EPA_TRACE_SLICE;
    epa_trace_add(t, lane, &event);
    return event.end_ns;
}

/* One end of a flow; for the two below. */
static inline void epa_trace_flow(struct epa_trace *t, uint32_t lane, enum epa_trace_kind kind,
                                  uint64_t begin_ns, uint64_t end_ns, uint32_t peer,
                                  uint32_t signal, uint64_t value)
{
    struct epa_trace_event event;

    event.begin_ns = begin_ns;
    event.end_ns = end_ns;
    event.bytes = 0;
    event.value = value;
    event.tokens = 0;
    event.peer = peer;
    event.signal = signal;
    event.name = 0;
    event.kind = (uint16_t)kind;
    epa_trace_add(t, lane, &event);
}

/* Records a flow's begin: within a slice, just before the value that `peer` waits for is sent.
 * Ranks, word and value must be unique in a run, such as a word that counts up. */
static inline void epa_trace_flow_begin(struct epa_trace *t, uint32_t lane, uint32_t peer,
                                        uint32_t signal, uint64_t value)
{
    uint64_t now = epa_trace_now(t);

    if (t != NULL)
        epa_trace_flow(t, lane, EPA_TRACE_FLOW_BEGIN, now, now, peer, signal, value);
}

/* Records a flow's end: the slice from begin_ns to end_ns waited for `peer`. */
static inline void epa_trace_flow_end(struct epa_trace *t, uint32_t lane, uint64_t begin_ns,
                                      uint64_t end_ns, uint32_t peer, uint32_t signal,
                                      uint64_t value)
{
    if (t != NULL)
        epa_trace_flow(t, lane, EPA_TRACE_FLOW_END, begin_ns, end_ns, peer, signal, value);
}

/* Adds an event beside the iterations. */
static inline void epa_trace_add_beside(const struct epa_trace_beside *b,
                                        const struct epa_trace_event *event)
{
    uint64_t noted;

    if (b->room == 0)
        return;
    noted = *b->noted; /* its writer's own */
    b->event[noted % b->room] = *event;
    __atomic_store_n(b->noted, noted + 1, __ATOMIC_RELEASE);
}

/* Records a counter: from now on `name` is `value`. */
static inline void epa_trace_count(struct epa_trace *t, uint32_t lane, uint16_t name,
                                   uint64_t value)
{
    struct epa_trace_event event;

    if (t == NULL)
        return;
    event.begin_ns = event.end_ns = epa_trace_now(t);
    event.bytes = 0;
    event.value = value;
    event.tokens = 0;
    event.peer = EPA_TRACE_NOBODY;
    event.signal = 0;
    event.name = name;
    event.kind = EPA_TRACE_COUNT;
    epa_trace_add(t, lane, &event);
}

#endif
