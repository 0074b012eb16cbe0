/* The direct way of a proxy (proxy.h): the transport between nodes uses the rank's region as its
 * heap. A put of a ring becomes a put of that transport, from memory to memory, without staging. A
 * signal becomes a fence and an aligned put of 8 bytes, whose source is the slot of the ring.
 *
 * The network reads slots of a ring, so a slot is free only when its operation is complete. Proxies
 * confirm completion by checkpoints. A checkpoint starts for quiet(), or when a quarter of a ring
 * waits for release: this rank sends a fence and a signal to each peer with puts since the last
 * checkpoint, and the peer's proxy answers with another signal. All descriptors that this rank read
 * before the checkpoint are then complete. One checkpoint is in flight at a time, and each has its own
 * number, so a signal is never set twice at a time.
 *
 * GPU memory: the answer of the peer's CPU means that the network has placed the data. direct_gpu()
 * has checked that the GPU sees data before the signal. */
#include "proxy.h"

#include <inttypes.h>
#include <stdlib.h>

enum { BURST = 64 }; /* maximum of descriptors of a ring per turn */

/* Signals of the network, one per sending rank. */
enum word { ASKS, ANSWERS, ARRIVES, WORDS };

struct direct_peer {
    bool started;           /* this rank has put data there since the last checkpoint */
    uint64_t wanted, asked; /* checkpoints of this rank */
    uint64_t answered;      /* checkpoints of the peer that this rank has answered */
};

struct direct {
    uint64_t read[MESSAGES_RINGS]; /* number of descriptors read; those before `taken` are done */
    uint64_t checkpoint;           /* number of the last checkpoint */
    bool pending;                  /* the last checkpoint is in flight */
    uint64_t mark[MESSAGES_RINGS], quiet; /* read[] and quiets at its start */
    struct direct_peer peer[];
};

static uint32_t word_of(const struct messages *m, enum word word, uint32_t from)
{
    return (uint32_t)word * m->size + from;
}

static enum epa_status signal_peer(struct messages *m, enum word word, uint64_t value,
                                   uint32_t peer)
{
    return m->net->ops->signal(m->net, word_of(m, word, m->rank), value, EPA_SIGNAL_SET, peer);
}

/* ---- descriptors of the rings ---- */

static enum epa_status put(struct messages *m, uint64_t at, const void *src, uint64_t bytes,
                           uint32_t peer)
{
    uint64_t begin = proxy_trace_now(&m->trace);
    enum epa_status status = m->net->ops->put(m->net, at, src, bytes, peer);

    if (status != EPA_OK)
        return status;
    m->direct->peer[peer].started = true;
    proxy_trace_slice(&m->trace, PROXY_SENDS, begin, peer, bytes, 0);
    return EPA_OK;
}

/* Starts the next operation of a descriptor; sets its op to 0 after the last. */
static enum epa_status carry_out(struct messages *m, struct reading *r, const uint64_t *value)
{
    const char *region = m->params->region.base;
    struct epa_descriptor *d = &r->now;
    bool *fence = &m->fence[d->peer];
    enum epa_status status = EPA_OK;

    if (*fence) {
        status = m->net->ops->fence(m->net, d->peer);
        *fence = status != EPA_OK;
        return status;
    }
    if (d->bytes > 0 && r->row < d->rows) {
        uint64_t at = r->row * d->stride;
        const char *src = (d->op & EPA_RING_INLINE) != 0 ? r->payload : (const char *)d->src + at;

        status = put(m, (uint64_t)(m->params->heap - region) + d->dst + at, src, d->bytes, d->peer);
        r->row += status == EPA_OK;
        return status;
    }
    if ((d->op & (EPA_RING_SET | PROXY_ARRIVE)) != 0 && r->at++ == 0) {
        *fence = true;
        return EPA_OK;
    }
    if ((d->op & EPA_RING_ADD) != 0)
        return epa_fail(&m->err, EPA_ERR_UNSUPPORTED,
                        "nvlink: rank %u was asked to add to signal %u of rank %u: direct puts "
                        "cannot",
                        m->rank, d->signal, d->peer);
    if ((d->op & EPA_RING_SET) != 0)
        status = put(m, (uint64_t)((const char *)(m->params->signal + d->signal) - region), value,
                     sizeof(*value), d->peer);
    else if ((d->op & PROXY_ARRIVE) != 0)
        status = signal_peer(m, ARRIVES, d->value, d->peer);
    d->op = status == EPA_OK ? 0 : d->op;
    return status;
}

static enum epa_status read_ring(struct messages *m, uint32_t ring, bool *moved)
{
    struct epa_host_ring ahead = m->params->ring[ring];
    struct reading *r = &m->reading[ring];
    uint64_t begin = proxy_trace_now(&m->trace), *read = &m->direct->read[ring];
    enum epa_status status = EPA_OK;
    uint32_t n = 0;

    ahead.taken = read;
    for (; n < BURST && status == EPA_OK; n++) {
        const uint64_t *value = &ahead.slot[*read & (ahead.slots - 1)].value;

        if (r->now.op == 0) {
            if (m->quiet_wanted != m->quiets &&
                ring == 1) /* the host's ring has one quiet at a time */
                break;
            if (!epa_ring_peek(&ahead, &r->now, &r->payload))
                break;
            status = messages_begin(m, r);
            *moved = true;
            if (r->now.stride == r->now.bytes && r->now.op != 0) {
                r->now.bytes *= r->now.rows;
                r->now.rows = 1;
            }
        }
        while (status == EPA_OK && r->now.op != 0) {
            status = messages_net_failed(m, carry_out(m, r, value));
            *moved = *moved || status == EPA_OK;
        }
        if (status == EPA_OK)
            ++*read;
    }
    if (n > 0)
        proxy_trace_slice(&m->trace, PROXY_TAKES, begin, EPA_TRACE_NOBODY, 0, n);
    return status == EPA_AGAIN ? EPA_OK : status; /* EPA_AGAIN: the network has no room now */
}

/* ---- checkpoints ---- */

static bool is_wanted(const struct messages *m)
{
    bool wanted = m->quiet_wanted != m->quiets;

    for (uint32_t i = 0; i < MESSAGES_RINGS; i++) {
        const struct epa_host_ring *ring = &m->params->ring[i];
        uint64_t taken =
            __atomic_load_n(ring->taken, __ATOMIC_RELAXED); /* only this thread writes it */

        wanted = wanted || m->direct->read[i] - taken >= ring->slots / 4;
    }
    return wanted;
}

static void begin_checkpoint(struct messages *m)
{
    struct direct *d = m->direct;

    d->pending = true;
    d->checkpoint++;
    d->quiet = m->quiet_wanted;
    for (uint32_t i = 0; i < MESSAGES_RINGS; i++)
        d->mark[i] = d->read[i];
    for (uint32_t r = 0; r < m->size; r++) {
        if (d->peer[r].started)
            d->peer[r].wanted = d->checkpoint;
        d->peer[r].started = false;
    }
}

/* Frees the slots that were read before the checkpoint began. */
static void end_checkpoint(struct messages *m)
{
    struct direct *d = m->direct;

    d->pending = false;
    for (uint32_t i = 0; i < MESSAGES_RINGS; i++)
        /* Release: pairs with the acquire of writers. */
        __atomic_store_n(m->params->ring[i].taken, d->mark[i], __ATOMIC_RELEASE);
    /* Release: pairs with the acquire of the host's quiet(). */
    __atomic_store_n(&m->quiets, d->quiet, __ATOMIC_RELEASE);
}

static enum epa_status checkpoint(struct messages *m, bool *moved)
{
    struct direct *d = m->direct;

    if (!d->pending) {
        if (!is_wanted(m))
            return EPA_OK;
        begin_checkpoint(m);
    }
    for (uint32_t r = 0; r < m->size; r++) {
        struct direct_peer *peer = &d->peer[r];
        enum epa_status status;

        if (peer->asked == peer->wanted)
            continue;
        status = m->net->ops->fence(m->net, r);
        if (status == EPA_OK)
            status = signal_peer(m, ASKS, peer->wanted, r);
        if (status == EPA_AGAIN)
            continue;
        if (status != EPA_OK)
            return messages_net_failed(m, status);
        peer->asked = peer->wanted;
        *moved = true;
    }
    for (uint32_t r = 0; r < m->size; r++) {
        bool there;
        enum epa_status status;

        if (d->peer[r].wanted == 0)
            continue;
        status = messages_look(m, word_of(m, ANSWERS, r), d->peer[r].wanted, &there);
        if (status == EPA_OK && !there)
            __atomic_store_n(&m->slow, r, __ATOMIC_RELAXED);
        if (status != EPA_OK || !there)
            return status;
    }
    end_checkpoint(m);
    *moved = true;
    return EPA_OK;
}

/* ---- signals of peers ---- */

/* Reads a signal that may have changed from `last`. Data before the signal is visible. */
static enum epa_status hear(struct messages *m, enum word word, uint32_t peer, uint64_t last,
                            uint64_t *value)
{
    uint32_t signal = word_of(m, word, peer);
    bool there;

    *value = m->net->ops->read(m->net, signal);
    return *value == last ? EPA_OK : messages_look(m, signal, *value, &there);
}

static enum epa_status answer(struct messages *m, uint32_t peer, bool *moved)
{
    uint64_t *answered = &m->direct->peer[peer].answered, *arrived = &m->arrived[peer], value;
    enum epa_status status = hear(m, ARRIVES, peer, *arrived, &value);

    if (status != EPA_OK)
        return status;
    *moved = *moved || value != *arrived;
    /* Release: pairs with the acquire in the host's barrier. */
    __atomic_store_n(arrived, value, __ATOMIC_RELEASE);
    status = hear(m, ASKS, peer, *answered, &value);
    if (status != EPA_OK || value == *answered)
        return status;
    status = signal_peer(m, ANSWERS, value, peer);
    if (status != EPA_OK)
        return status == EPA_AGAIN ? EPA_OK : messages_net_failed(m, status);
    *answered = value;
    *moved = true;
    return EPA_OK;
}

/* ---- the way ---- */

static enum epa_status turn(struct messages *m, bool *moved)
{
    enum epa_status status = messages_net_failed(m, m->net->ops->progress(m->net));

    for (uint32_t i = 0; i < MESSAGES_RINGS && status == EPA_OK; i++)
        status = read_ring(m, i, moved);
    if (status == EPA_OK)
        status = checkpoint(m, moved);
    for (uint32_t r = 0; r < m->size && status == EPA_OK; r++)
        if (m->params->far[r])
            status = answer(m, r, moved);
    if (m->trace.to != NULL && *moved)
        proxy_trace_count(&m->trace, m->params->ring, MESSAGES_RINGS, m->direct->pending);
    return status;
}

static enum proxy_slice wait_for(const struct messages *m)
{
    for (uint32_t i = 0; i < MESSAGES_RINGS; i++)
        if (m->reading[i].now.op != 0)
            return PROXY_WAITS_SLOTS;
    return m->direct->pending ? PROXY_WAITS_NETWORK : PROXY_IDLE;
}

/* A checkpoint that only frees slots need not end: the final barrier includes a quiet. */
static bool are_done(const struct messages *m)
{
    return m->reading[0].now.op == 0 && m->reading[1].now.op == 0 && m->quiet_wanted == m->quiets;
}

static bool init(struct messages *m)
{
    m->direct = calloc(1, sizeof(*m->direct) + m->size * sizeof(m->direct->peer[0]));
    return m->direct != NULL;
}

static void connect(struct messages *m)
{
    (void)m;
}

static uint64_t heap_bytes(const struct messages *m)
{
    return m->params->region.bytes;
}

static uint32_t count_signals(const struct messages *m)
{
    return WORDS * m->size;
}

const struct proxy_way proxy_direct_way = {
    .init = init,
    .heap_bytes = heap_bytes,
    .signals = count_signals,
    .connect = connect,
    .turn = turn,
    .wait_for = wait_for,
    .are_done = are_done,
};
