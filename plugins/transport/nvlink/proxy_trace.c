/* See proxy_trace.h. */
#include "proxy_trace.h"

/* Names of slices. `epa2a trace summary` adds up the slices of waits. */
static const char *const names[PROXY_NAMES] = {
    [PROXY_TAKES] = "take",
    [PROXY_SENDS] = "send",
    [PROXY_LANDS] = "land",
    [PROXY_DELIVERS] = "deliver",
    [PROXY_COMPLETES] = "complete",
    [PROXY_BUSY] = "busy",
    [PROXY_WAITS_COPIES] = "waits for copies",
    [PROXY_WAITS_SLOTS] = "waits for slots",
    [PROXY_WAITS_NETWORK] = "waits for network",
    [PROXY_IDLE] = "idle",
    [PROXY_COPIES_OUT] = "copy to staging",
    [PROXY_COPIES_IN] = "copy from staging",
    [PROXY_COUNTS_RING] = "ring",
    [PROXY_COUNTS_MESSAGES] = "messages",
};

void proxy_trace_init(struct proxy_trace *t, struct epa_trace *trace)
{
    *t = (struct proxy_trace){0};
    if (trace == NULL || trace->beside[EPA_TRACE_PROXY].room == 0)
        return;
    t->to = &trace->beside[EPA_TRACE_PROXY];
    for (uint32_t i = 0; i < PROXY_NAMES; i++)
        t->name[i] = epa_trace_name(trace, names[i]);
}

static void add_slice(struct proxy_trace *t, enum epa_trace_proxy_lane lane, enum proxy_slice name,
                      uint64_t begin_ns, uint64_t end_ns, uint32_t peer, uint64_t bytes,
                      uint32_t descriptors)
{
    epa_trace_add_beside(t->to, &(struct epa_trace_event){.begin_ns = begin_ns,
                                                          .end_ns = end_ns,
                                                          .bytes = bytes,
                                                          .tokens = descriptors,
                                                          .peer = peer,
                                                          .signal = lane,
                                                          .name = t->name[name],
                                                          .kind = EPA_TRACE_SLICE});
}

void proxy_trace_slice(struct proxy_trace *t, enum proxy_slice name, uint64_t begin_ns,
                       uint32_t peer, uint64_t bytes, uint32_t descriptors)
{
    if (t->to != NULL)
        add_slice(t, EPA_TRACE_LANE_PROXY, name, begin_ns, epa_now_ns(), peer, bytes, descriptors);
}

void proxy_trace_copies(struct proxy_trace *t, bool out, uint64_t begin_ns, uint32_t peer,
                        uint64_t bytes)
{
    uint64_t *before = &t->copies_end_ns[out], now;

    if (t->to == NULL)
        return;
    now = epa_now_ns();
    add_slice(t, out ? EPA_TRACE_LANE_COPIES_OUT : EPA_TRACE_LANE_COPIES_IN,
              out ? PROXY_COPIES_OUT : PROXY_COPIES_IN, begin_ns < *before ? *before : begin_ns,
              now, peer, bytes, 0);
    *before = now;
}

static void add_flow(struct proxy_trace *t, enum epa_trace_kind kind, uint64_t begin_ns,
                     uint64_t end_ns, uint32_t peer, uint64_t number)
{
    epa_trace_add_beside(t->to, &(struct epa_trace_event){.begin_ns = begin_ns,
                                                          .end_ns = end_ns,
                                                          .value = number,
                                                          .peer = peer,
                                                          .signal = EPA_TRACE_MESSAGES,
                                                          .kind = (uint16_t)kind});
}

void proxy_trace_sent(struct proxy_trace *t, uint64_t begin_ns, uint32_t peer, uint64_t number)
{
    if (t->to != NULL)
        add_flow(t, EPA_TRACE_FLOW_BEGIN, begin_ns, begin_ns, peer, number);
}

void proxy_trace_landed(struct proxy_trace *t, uint64_t begin_ns, uint32_t peer, uint64_t number)
{
    if (t->to != NULL)
        add_flow(t, EPA_TRACE_FLOW_END, begin_ns, epa_now_ns(), peer, number);
}

void proxy_trace_state(struct proxy_trace *t, enum proxy_slice state, uint64_t begin_ns)
{
    if (t->to == NULL || state == t->state)
        return;
    if (t->state_ns != 0)
        add_slice(t, EPA_TRACE_LANE_PROXY, t->state, t->state_ns, begin_ns, EPA_TRACE_NOBODY, 0, 0);
    t->state = state;
    t->state_ns = begin_ns;
}

static void add_count(struct proxy_trace *t, enum proxy_slice name, uint64_t *noted, uint64_t value)
{
    uint64_t now = epa_now_ns();

    if (*noted == value)
        return;
    *noted = value;
    epa_trace_add_beside(t->to, &(struct epa_trace_event){.begin_ns = now,
                                                          .end_ns = now,
                                                          .value = value,
                                                          .peer = EPA_TRACE_NOBODY,
                                                          .signal = EPA_TRACE_LANE_PROXY,
                                                          .name = t->name[name],
                                                          .kind = EPA_TRACE_COUNT});
}

/* Finds the number of written descriptors by bisection: writers fill a ring in order, apart from
 * concurrent writes. */
static uint64_t written(const struct epa_host_ring *r)
{
    uint64_t taken = *r->taken, low = 0, high = r->slots;

    while (low < high) {
        uint64_t n = (low + high + 1) / 2, ticket = taken + n - 1;
        const uint64_t *turn = &r->slot[ticket & (r->slots - 1)].turn;

        if (__atomic_load_n(turn, __ATOMIC_RELAXED) == ticket + 1)
            low = n;
        else
            high = n - 1;
    }
    return low;
}

void proxy_trace_count(struct proxy_trace *t, const struct epa_host_ring *ring, uint32_t rings,
                       uint64_t messages)
{
    uint64_t n = 0;

    if (t->to == NULL)
        return;
    for (uint32_t i = 0; i < rings; i++)
        n += written(&ring[i]);
    add_count(t, PROXY_COUNTS_RING, &t->ring, n);
    add_count(t, PROXY_COUNTS_MESSAGES, &t->messages, messages);
}
