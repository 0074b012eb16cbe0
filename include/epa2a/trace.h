/* Host-side tracing: worker threads record time slices, signal flows and counters while an
 * iteration runs. A rank has one lane for each worker thread, lane 0 for its main thread. Each lane
 * has one writer. Memory is allocated in advance, so these functions neither allocate nor lock;
 * events beyond the capacity are counted. Without profiling the trace is NULL, and each call is one
 * branch.
 *
 *     uint64_t begin = epa_trace_now(t);
 *     ... work ...
 *     begin = epa_trace_slice(t, worker, name, begin, EPA_TRACE_NOBODY, bytes, tokens);
 *     ... the next slice begins where the last ended ...
 *
 * Slices of a lane nest. The caller of an algorithm records stages, experts, checks and the
 * barriers between stages; an algorithm records its phases and waits.
 *
 * Activity outside the rank's iterations, such as a transport's own thread, is recorded in side
 * lanes (struct epa_trace_beside). The latest events are kept. An event belongs to the iteration in
 * which it began. */
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
    /* begin_ns: just before this rank sends `value` to word `signal` of `peer`. */
    EPA_TRACE_FLOW_BEGIN,
    EPA_TRACE_FLOW_END, /* the wait for this value, from begin_ns to end_ns */
    EPA_TRACE_COUNT,    /* begin_ns: time at which `name` becomes `value` */
};

struct epa_trace_event {
    uint64_t begin_ns, end_ns; /* times of epa_now_ns() */
    uint64_t bytes, value;     /* bytes 0: unknown; for a kernel: uncertainty of its times in ns */
    uint32_t tokens, peer;     /* tokens 0: unknown */
    uint32_t signal;
    uint16_t name, kind; /* number from epa_trace_name(); enum epa_trace_kind */
};

/* One lane in one iteration. Each lane has its own cache line, since cores write lanes
 * concurrently. */
struct epa_trace_lane {
    uint32_t used; /* release: earlier events are complete, even if this process is killed */
    uint32_t dropped;
    uint32_t pad[14];
};

struct epa_trace_names {
    uint32_t n;
    char name[EPA_TRACE_NAMES][EPA_TRACE_NAME_BYTES];
};

/* Writers outside the rank's workers, one thread each; and their lanes. */
enum epa_trace_beside_kind { EPA_TRACE_PROXY, EPA_TRACE_KERNELS, EPA_TRACE_BESIDES };
enum epa_trace_proxy_lane {
    EPA_TRACE_LANE_PROXY,
    EPA_TRACE_LANE_COPIES_OUT, /* copies by copy engines, to staging */
    EPA_TRACE_LANE_COPIES_IN,  /* copies by copy engines, from staging */
    EPA_TRACE_PROXY_LANES,
};

/* First signal number of flows that are messages of proxies; no algorithm has so many signals. */
#define EPA_TRACE_MESSAGES (1u << 31)
/* First signal number of flows that are flags in the heap instead of signals. */
#define EPA_TRACE_FLAGS (1u << 30)

struct epa_trace_beside {
    uint64_t *noted;               /* release: earlier events; the last `room` of them are kept */
    struct epa_trace_event *event; /* [room]; `signal` is the lane for slices and counters */
    uint64_t room;                 /* 0: no events are kept */
};

struct epa_trace {
    uint32_t lanes, room;          /* room: events of a lane in one iteration */
    struct epa_trace_lane *lane;   /* [lanes], of the current iteration */
    struct epa_trace_event *event; /* [lanes][room] */
    struct epa_trace_names *names;
    struct epa_trace_beside beside[EPA_TRACE_BESIDES];
};

/* Returns the number of a name, for the calls below. Call it on the rank's main thread, preferably
 * during set-up. If the table is full, returns the number of the first name. */
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
        for (uint32_t at = 0; at < EPA_TRACE_NAME_BYTES - 1 && name[at] != '\0'; at++)
            t->names->name[i][at] = name[at];
        t->names->n++;
    }
    return (uint16_t)i;
}

static inline uint64_t epa_trace_now(const struct epa_trace *t)
{
    return t == NULL ? 0 : epa_now_ns();
}

/* Adds an event to a lane; for the calls below. t must not be NULL. */
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

/* Adds one end of a flow; for the two functions below. */
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

/* Records the begin of a flow: within a slice, just before this rank sends the value that `peer`
 * waits for. The combination of ranks, word and value must be unique in a run; a word that counts
 * up ensures this. */
static inline void epa_trace_flow_begin(struct epa_trace *t, uint32_t lane, uint32_t peer,
                                        uint32_t signal, uint64_t value)
{
    uint64_t now = epa_trace_now(t);

    if (t != NULL)
        epa_trace_flow(t, lane, EPA_TRACE_FLOW_BEGIN, now, now, peer, signal, value);
}

/* Records the end of a flow: the slice from begin_ns to end_ns waited for `peer`. */
static inline void epa_trace_flow_end(struct epa_trace *t, uint32_t lane, uint64_t begin_ns,
                                      uint64_t end_ns, uint32_t peer, uint32_t signal,
                                      uint64_t value)
{
    if (t != NULL)
        epa_trace_flow(t, lane, EPA_TRACE_FLOW_END, begin_ns, end_ns, peer, signal, value);
}

/* Adds an event to a side lane. */
static inline void epa_trace_add_beside(const struct epa_trace_beside *b,
                                        const struct epa_trace_event *event)
{
    uint64_t noted;

    if (b->room == 0)
        return;
    noted = *b->noted; /* only this thread writes it */
    b->event[noted % b->room] = *event;
    __atomic_store_n(b->noted, noted + 1, __ATOMIC_RELEASE);
}

/* Records a counter: `name` has `value` from now on. */
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
