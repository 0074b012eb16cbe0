/* The staged way of a proxy (proxy.h). A message is a sequence of records, each a header and data,
 * from a slot of this rank's staging to the same slot of the peer's staging. If the transport between
 * hosts has mapped the peer's staging, copies write there directly. One message per peer carries all
 * operations that the rings hold in one turn, as far as it has room.
 *
 * Message s of a rank to a peer uses slot s % SLOTS. A signal of the network transport per slot
 * announces its arrival (value s). The receiver acknowledges a message once its data is in place:
 * with the next message in the other direction if one follows soon, else with another signal of the
 * slot. A slot is reused only after the acknowledgement, so a signal is never set twice at a time.
 * The protocol requires of the network only that a signal arrives after its own payload.
 *
 * Ordering. Data and signals of a message are queued on lane IN in the order of the records, and a
 * signal is visible after all earlier operations of the lane. The proxy needs no wait between data
 * and signal. */
#include "proxy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOTS = MESSAGES_SLOTS,
    HEADER = 64,
    ALIGN = 64,              /* alignment of records */
    PIECE_MOST = 512 << 10,  /* maximum bytes of records in a message */
    STAGING_MOST = 32 << 20, /* maximum bytes of all slots in one direction, unless */
    PIECE_LEAST = 64 << 10,  /* the minimum per slot requires more */
    PART_LEAST = 16 << 10,   /* minimum part of a row that does not fit into a message */
    LONG = 64 << 10,         /* bytes from which a message has its own mark */
    BURST = 64,              /* maximum of descriptors of a ring per turn */
    HELD_MOST = 2,           /* maximum of acknowledgements that wait for a message */
};

/* Header at the start of a slot. */
struct message {
    uint64_t bytes; /* total of its records */
    uint32_t records;
    uint32_t acks; /* number of acknowledged messages of the other direction, up to `acked` */
    uint64_t acked;
};

struct record {
    uint64_t dst, bytes, stride, value;
    uint64_t size;             /* bytes of header and data */
    uint32_t rows, signal, op; /* op: enum epa_ring_op; FENCE: after all earlier records */
};

_Static_assert(sizeof(struct record) <= HEADER && sizeof(struct message) <= HEADER,
               "records and messages begin with their headers");

/* Messages to a rank. acked <= sent <= closed <= begun <= closed + 1. */
struct channel_out {
    uint64_t begun, closed, sent, acked;
    uint64_t copied[SLOTS]; /* number of operations of lane OUT that must be done before sending */
    uint64_t bytes[SLOTS];  /* bytes to send */
    uint64_t begun_ns[SLOTS]; /* with a profile: time at which the first copy was queued */
    bool done[SLOTS];         /* sent and acknowledged by a message, but not counted in `acked` */
    struct message open;      /* the message that is begun and not closed */
    char *direct;             /* this rank's slots at the peer; NULL: slots are in own staging */
    uint64_t quiet;           /* value of `acked` that completes the pending PROXY_QUIET */
};

/* Messages of a rank. acked <= done <= begun. */
struct channel_in {
    uint64_t begun, done, acked;
    uint64_t held_since_ns; /* time of the first message that is done and not acknowledged */
    struct message now;     /* message begun + 1 after its arrival: remaining records */
    uint64_t queued[SLOTS]; /* number of operations of lane IN that must be done first */
    uint64_t arrive[SLOTS]; /* value of PROXY_ARRIVE; 0: none */
    uint64_t bytes[SLOTS], begun_ns[SLOTS]; /* with a profile: time of landing */
};

/* ---- addresses of slots ---- */

static uint64_t in_offset(const struct messages *m, uint32_t source, uint64_t message)
{
    return ((uint64_t)source * SLOTS + message % SLOTS) * (HEADER + m->piece);
}

static uint64_t out_offset(const struct messages *m, uint32_t peer, uint64_t message)
{
    return in_offset(m, m->size, 0) + in_offset(m, peer, message);
}

static uint32_t arrived_signal(uint32_t source, uint64_t message)
{
    return source * SLOTS + (uint32_t)(message % SLOTS);
}

static uint32_t done_signal(const struct messages *m, uint32_t peer, uint64_t message)
{
    return m->size * SLOTS + arrived_signal(peer, message);
}

static char *out_slot(const struct messages *m, uint32_t peer, uint64_t message)
{
    const struct channel_out *c = &m->out[peer];

    return c->direct != NULL ? c->direct + message % SLOTS * (HEADER + m->piece)
                             : m->net->heap + out_offset(m, peer, message);
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Queues one mark for all operations since the last mark; retries later if the lane has no room. */
static enum epa_status mark_lane(struct messages *m, enum proxy_lane lane)
{
    struct proxy_copies *copies = m->params->copies;
    enum epa_status status;

    if (copies->queued[lane] == m->marked[lane])
        return EPA_OK;
    status = copies->mark(copies, lane);
    if (status == EPA_OK)
        m->marked[lane] = copies->queued[lane];
    return status == EPA_AGAIN ? EPA_OK : messages_copies_failed(m, status);
}

/* ---- out: descriptors become records of messages ---- */

/* Selects the part of a descriptor that fits into `room` bytes: rows, or a part of one row. Returns
 * false if the part would be too small. */
static bool next_part(const struct reading *r, uint64_t room, struct record *out)
{
    const struct epa_descriptor *d = &r->now;
    uint64_t left = d->bytes - r->at, rows = d->rows - r->row;

    *out = (struct record){
        .dst = d->dst + r->row * d->stride + r->at, .bytes = left, .stride = d->stride, .rows = 1};
    if (room < HEADER)
        return false;
    room -= HEADER;
    if (d->bytes == 0)
        out->rows = (uint32_t)rows;
    else if (r->at == 0 && d->bytes <= room)
        out->rows = (uint32_t)(room / d->bytes < rows ? room / d->bytes : rows);
    else if (left > room && room < PART_LEAST)
        return false;
    else if (left > room)
        out->bytes = room;
    return true;
}

/* Closes a message with its own mark, so that the network sends it during copies of the next one. */
static enum epa_status close_message(struct messages *m, uint32_t peer)
{
    struct channel_out *c = &m->out[peer];
    struct channel_in *in = &m->in[peer];

    if (c->closed == c->begun)
        return EPA_OK;
    c->open.acks = (uint32_t)(in->done - in->acked);
    c->open.acked = in->acked = in->done;
    memcpy(out_slot(m, peer, c->begun), &c->open, sizeof(c->open));
    c->bytes[c->begun % SLOTS] = HEADER + c->open.bytes;
    c->closed = c->begun;
    return mark_lane(m, PROXY_OUT);
}

static bool open_message(struct channel_out *c)
{
    if (c->begun - c->acked == SLOTS)
        return false;
    c->begun++;
    c->open = (struct message){0};
    c->copied[c->begun % SLOTS] = 0;
    return true;
}

/* Appends the next record of a descriptor; sets its op to 0 after the last. */
static enum epa_status add_record(struct messages *m, struct reading *r)
{
    struct epa_descriptor *d = &r->now;
    struct channel_out *c = &m->out[d->peer];
    struct proxy_copies *copies = m->params->copies;
    struct record record;
    enum epa_status status = EPA_OK;
    char *to;

    if (c->closed < c->begun && !next_part(r, m->piece - c->open.bytes, &record))
        status = close_message(m, d->peer);
    if (status != EPA_OK)
        return status;
    if (c->closed == c->begun) {
        if (!open_message(c))
            return EPA_AGAIN;
        (void)next_part(r, m->piece, &record);
    }
    to = out_slot(m, d->peer, c->begun) + HEADER + c->open.bytes;
    if (record.bytes > 0 && (d->op & EPA_RING_INLINE) != 0) {
        memcpy(to + HEADER, r->payload + r->at, record.bytes);
    } else if (record.bytes > 0) {
        if (c->copied[c->begun % SLOTS] == 0)
            c->begun_ns[c->begun % SLOTS] = proxy_trace_now(&m->trace);
        status = copies->copy(copies, PROXY_OUT, to + HEADER,
                              (const char *)d->src + r->row * d->stride + r->at, record.bytes,
                              record.rows, d->stride);
        if (status != EPA_OK)
            return messages_copies_failed(m, status);
        c->copied[c->begun % SLOTS] = copies->queued[PROXY_OUT];
    }
    r->at += record.bytes;
    if (r->at == d->bytes) {
        r->row += record.rows;
        r->at = 0;
    }
    record.op = m->fence[d->peer] ? EPA_RING_FENCE : 0;
    if (r->row == d->rows) { /* the last record */
        record.op |= d->op & ~(uint32_t)(EPA_RING_PUT | EPA_RING_INLINE);
        record.value = d->value;
        record.signal = d->signal;
        d->op = 0;
    }
    record.size = HEADER + round_up(record.bytes * record.rows);
    memcpy(to, &record, sizeof(record));
    m->fence[d->peer] = false;
    c->open.records++;
    c->open.bytes += record.size;
    return EPA_OK;
}

static enum epa_status take_burst(struct messages *m, uint32_t ring, uint32_t *taken, bool *moved)
{
    const struct epa_host_ring *from = &m->params->ring[ring];
    struct reading *r = &m->reading[ring];

    for (; *taken < BURST; ++*taken) {
        enum epa_status status = EPA_OK;

        if (r->now.op == 0) {
            if (m->quiet_wanted != m->quiets &&
                ring == 1) /* the host's ring has one quiet at a time */
                return EPA_OK;
            if (!epa_ring_peek(from, &r->now, &r->payload))
                return EPA_OK;
            for (uint32_t i = 0; i < m->size && r->now.op == PROXY_QUIET; i++)
                m->out[i].quiet = m->out[i].begun;
            status = messages_begin(m, r);
            *moved = true;
        }
        while (status == EPA_OK && r->now.op != 0) {
            const struct channel_out *c = &m->out[r->now.peer];
            uint64_t closed = c->closed;

            status = add_record(m, r);
            *moved = *moved || status == EPA_OK;
            if (status == EPA_OK && r->now.op != 0 && c->closed != closed)
                return EPA_OK; /* the message is full; the caller sends it first */
        }
        if (status != EPA_OK) /* EPA_AGAIN: all slots to the peer are in use */
            return status == EPA_AGAIN ? EPA_OK : status;
        epa_ring_take(from);
    }
    return EPA_OK;
}

static enum epa_status read_ring(struct messages *m, uint32_t ring, bool *moved)
{
    uint64_t begin = proxy_trace_now(&m->trace);
    uint32_t taken = 0;
    enum epa_status status = take_burst(m, ring, &taken, moved);

    if (taken > 0)
        proxy_trace_slice(&m->trace, PROXY_TAKES, begin, EPA_TRACE_NOBODY, 0, taken);
    return status;
}

static void note_sent(struct messages *m, uint32_t peer, uint64_t message, uint64_t begin)
{
    const struct channel_out *c = &m->out[peer];
    uint32_t slot = message % SLOTS;

    proxy_trace_sent(&m->trace, begin, peer, message);
    proxy_trace_slice(&m->trace, PROXY_SENDS, begin, peer, c->bytes[slot], 0);
    if (c->copied[slot] != 0)
        proxy_trace_copies(&m->trace, true, c->begun_ns[slot], peer, c->bytes[slot]);
}

static enum epa_status send_messages(struct messages *m, uint32_t peer, bool *moved)
{
    struct channel_out *c = &m->out[peer];

    while (c->sent < c->closed) {
        uint64_t next = c->sent + 1, from = out_offset(m, peer, next);
        uint32_t signal = arrived_signal(m->rank, next);
        enum epa_status status;
        uint64_t begin;

        if (m->lane_done[PROXY_OUT] < c->copied[next % SLOTS])
            return EPA_OK;
        begin = proxy_trace_now(&m->trace);
        /* Direct: the slot is complete: marks confirmed the copies, and this thread stored the rest. */
        status = c->direct != NULL
                     ? m->net->ops->signal(m->net, signal, next, EPA_SIGNAL_SET, peer)
                     : epa_put_signal(m->net, in_offset(m, m->rank, next), m->net->heap + from,
                                      c->bytes[next % SLOTS], signal, next, peer);
        if (status != EPA_OK)
            return status == EPA_AGAIN ? EPA_OK : messages_net_failed(m, status);
        c->sent = next;
        *moved = true;
        note_sent(m, peer, next, begin);
    }
    return EPA_OK;
}

static enum epa_status count_acks(struct messages *m, uint32_t peer, bool *moved)
{
    struct channel_out *c = &m->out[peer];
    uint64_t begin = proxy_trace_now(&m->trace);
    bool there = true;

    while (c->acked < c->sent) {
        uint64_t next = c->acked + 1;
        enum epa_status status = c->done[next % SLOTS]
                                     ? EPA_OK
                                     : messages_look(m, done_signal(m, peer, next), next, &there);

        if (status != EPA_OK || !there)
            return status;
        c->done[next % SLOTS] = false;
        c->acked = next;
        *moved = true;
        proxy_trace_slice(&m->trace, PROXY_COMPLETES, begin, peer, c->bytes[c->acked % SLOTS], 0);
        begin = proxy_trace_now(&m->trace);
    }
    return EPA_OK;
}

static void count_quiets(struct messages *m, bool *moved)
{
    if (m->quiet_wanted == m->quiets)
        return;
    for (uint32_t i = 0; i < m->size; i++) {
        if (m->out[i].acked >= m->out[i].quiet)
            continue;
        __atomic_store_n(&m->slow, i, __ATOMIC_RELAXED);
        return;
    }
    /* Release: pairs with the acquire of the host's quiet(). */
    __atomic_store_n(&m->quiets, m->quiet_wanted, __ATOMIC_RELEASE);
    *moved = true; /* the ring may hold further descriptors */
}

/* ---- in: copies of the records' data, then their signals ---- */

/* Removes the queued part from the record, so that a call after EPA_AGAIN continues. */
static enum epa_status queue_record(struct messages *m, struct record *record, char *data)
{
    struct proxy_copies *copies = m->params->copies;
    uint64_t *word = m->params->signal + record->signal;
    enum epa_status status = EPA_OK;

    if ((record->op & EPA_RING_FENCE) != 0) {
        status = copies->mark(copies, PROXY_IN);
        record->op &= status == EPA_OK ? ~(uint32_t)EPA_RING_FENCE : UINT32_MAX;
    }
    if (status == EPA_OK && record->bytes > 0) {
        status = copies->copy(copies, PROXY_IN, m->params->heap + record->dst, data, record->bytes,
                              record->rows, record->stride);
        record->bytes = status == EPA_OK ? 0 : record->bytes;
    }
    if (status == EPA_OK && (record->op & EPA_RING_SET) != 0)
        status = copies->set(copies, word, record->value);
    else if (status == EPA_OK && (record->op & EPA_RING_ADD) != 0)
        status = copies->add(copies, word, record->value);
    return messages_copies_failed(m, status);
}

static enum epa_status land(struct messages *m, uint32_t source, bool *moved)
{
    struct channel_in *c = &m->in[source];

    while (c->begun - c->done < SLOTS) {
        uint64_t next = c->begun + 1;
        char *slot = m->net->heap + in_offset(m, source, next);
        uint64_t begin = proxy_trace_now(&m->trace);
        enum epa_status status = EPA_OK;

        if (c->now.records == 0) {
            bool there;

            status = messages_look(m, arrived_signal(source, next), next, &there);
            if (status != EPA_OK || !there)
                return status;
            memcpy(&c->now, slot, sizeof(c->now));
            for (uint32_t i = 0; i < c->now.acks && i < SLOTS; i++)
                m->out[source].done[(c->now.acked - i) % SLOTS] = true;
            c->now.bytes = HEADER; /* from here on: offset of the next record */
            c->arrive[next % SLOTS] = 0;
        }
        while (c->now.records > 0) {
            char *at = slot + c->now.bytes;
            struct record record;

            memcpy(&record, at, sizeof(record));
            status = queue_record(m, &record, at + HEADER);
            if (status != EPA_OK) {
                memcpy(at, &record, sizeof(record));
                return status == EPA_AGAIN ? EPA_OK : status;
            }
            if ((record.op & PROXY_ARRIVE) != 0)
                c->arrive[next % SLOTS] = record.value;
            c->now.bytes += record.size;
            c->now.records--;
        }
        c->queued[next % SLOTS] = m->params->copies->queued[PROXY_IN];
        c->begun = next;
        *moved = true;
        c->bytes[next % SLOTS] = c->now.bytes;
        c->begun_ns[next % SLOTS] = begin;
        proxy_trace_landed(&m->trace, begin, source, next);
        proxy_trace_slice(&m->trace, PROXY_LANDS, begin, source, c->now.bytes, 0);
        if (c->now.bytes >= LONG)
            status = mark_lane(m, PROXY_IN);
        if (status != EPA_OK)
            return status;
    }
    return EPA_OK;
}

/* Counts the messages whose data is in place. */
static void count_landed(struct messages *m, uint32_t source, bool *moved)
{
    struct channel_in *c = &m->in[source];

    while (c->done < c->begun) {
        uint64_t next = c->done + 1;

        if (m->lane_done[PROXY_IN] < c->queued[next % SLOTS])
            return;
        if (c->arrive[next % SLOTS] != 0)
            /* Release: pairs with the acquire in the host's barrier. */
            __atomic_store_n(&m->arrived[source], c->arrive[next % SLOTS], __ATOMIC_RELEASE);
        if (c->acked == c->done)
            c->held_since_ns = epa_now_ns();
        c->done = next;
        *moved = true;
        proxy_trace_copies(&m->trace, false, c->begun_ns[next % SLOTS], source,
                           c->bytes[next % SLOTS]);
    }
}

/* Decides whether acknowledgements wait for a message in the other direction. A signalled kernel
 * often puts data in return, and an acknowledgement by a signal costs a system call over TCP, which
 * delays that put. In mapped memory a signal is a store, so acknowledgements do not wait. */
static bool holds_acks(const struct messages *m, uint32_t source)
{
    const struct channel_in *c = &m->in[source];

    return m->out[source].direct == NULL && c->done - c->acked <= HELD_MOST &&
           c->bytes[c->done % SLOTS] < LONG && m->params->hold_acks_ns != 0 &&
           epa_now_ns() - c->held_since_ns < m->params->hold_acks_ns;
}

static enum epa_status acknowledge(struct messages *m, uint32_t source, bool *moved)
{
    struct channel_in *c = &m->in[source];

    while (c->acked < c->done && !holds_acks(m, source)) {
        uint64_t next = c->acked + 1, begin = proxy_trace_now(&m->trace);
        enum epa_status status = m->net->ops->signal(m->net, done_signal(m, m->rank, next), next,
                                                     EPA_SIGNAL_SET, source);

        if (status != EPA_OK)
            return status == EPA_AGAIN ? EPA_OK : messages_net_failed(m, status);
        c->acked = next;
        *moved = true;
        proxy_trace_slice(&m->trace, PROXY_DELIVERS, begin, source, c->bytes[next % SLOTS], 0);
    }
    return EPA_OK;
}

/* ---- the way ---- */

static enum epa_status count_done(struct messages *m, enum proxy_lane lane)
{
    struct proxy_copies *copies = m->params->copies;

    if (m->lane_done[lane] == copies->queued[lane])
        return EPA_OK;
    return messages_copies_failed(m, copies->done(copies, lane, &m->lane_done[lane]));
}

/* Number of messages that were sent and not acknowledged. */
static uint64_t messages_sent(const struct messages *m)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < m->size; i++)
        n += m->out[i].sent - m->out[i].acked;
    return n;
}

static enum epa_status turn(struct messages *m, bool *moved)
{
    enum epa_status status = messages_net_failed(m, m->net->ops->progress(m->net));

    for (int lane = 0; lane < PROXY_LANES && status == EPA_OK; lane++)
        status = count_done(m, (enum proxy_lane)lane);
    for (uint32_t i = 0; i < MESSAGES_RINGS && status == EPA_OK; i++)
        status = read_ring(m, i, moved);
    for (uint32_t i = 1; i < m->size && status == EPA_OK; i++) {
        uint32_t r = (m->rank + i) % m->size; /* ranks start at different peers */

        if (!m->params->far[r])
            continue;
        status = close_message(m, r);
        if (status == EPA_OK)
            status = send_messages(m, r, moved);
        if (status == EPA_OK)
            status = count_acks(m, r, moved);
        if (status == EPA_OK)
            status = land(m, r, moved);
        count_landed(m, r, moved);
        if (status == EPA_OK)
            status = acknowledge(m, r, moved);
    }
    for (int lane = 0; lane < PROXY_LANES && status == EPA_OK; lane++)
        status = mark_lane(m, (enum proxy_lane)lane);
    count_quiets(m, moved);
    if (m->trace.to != NULL && *moved)
        proxy_trace_count(&m->trace, m->params->ring, MESSAGES_RINGS, messages_sent(m));
    return status;
}

static enum proxy_slice wait_for(const struct messages *m)
{
    for (int lane = 0; lane < PROXY_LANES; lane++)
        if (m->lane_done[lane] != m->params->copies->queued[lane])
            return PROXY_WAITS_COPIES;
    for (uint32_t i = 0; i < MESSAGES_RINGS; i++)
        if (m->reading[i].now.op != 0)
            return PROXY_WAITS_SLOTS;
    return messages_sent(m) > 0 ? PROXY_WAITS_NETWORK : PROXY_IDLE;
}

static bool are_done(const struct messages *m)
{
    for (uint32_t i = 0; i < m->size; i++)
        if (m->out[i].acked < m->out[i].begun || m->in[i].acked < m->in[i].begun)
            return false;
    return m->reading[0].now.op == 0 && m->reading[1].now.op == 0;
}

static uint64_t staging_bytes(const struct messages *m)
{
    return out_offset(m, m->size, 0);
}

static uint32_t count_signals(const struct messages *m)
{
    return 2 * m->size * SLOTS;
}

static void connect(struct messages *m)
{
    struct proxy_copies *copies = m->params->copies;

    for (uint32_t r = 0; r < m->size; r++) {
        char *slots = epa_peer(m->net, in_offset(m, m->rank, 0), r);

        if (m->params->far[r] && slots != NULL &&
            copies->reach(copies, slots, SLOTS * (HEADER + m->piece))) {
            m->out[r].direct = slots;
            m->reached++;
        }
    }
}

static bool init(struct messages *m)
{
    m->piece = STAGING_MOST / SLOTS / m->size / ALIGN * ALIGN;
    m->piece = m->piece > PIECE_MOST ? PIECE_MOST : m->piece < PIECE_LEAST ? PIECE_LEAST : m->piece;
    m->out = calloc(m->size, sizeof(*m->out));
    m->in = calloc(m->size, sizeof(*m->in));
    return m->out != NULL && m->in != NULL;
}

const struct proxy_way proxy_staged_way = {
    .init = init,
    .heap_bytes = staging_bytes,
    .signals = count_signals,
    .connect = connect,
    .turn = turn,
    .wait_for = wait_for,
    .are_done = are_done,
};
