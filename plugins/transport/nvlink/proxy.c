/* See proxy.h. A message is a header and up to PROXY_PIECE bytes of data, from a slot of this rank's
 * staging to the same slot of the peer's. Message s of a rank to a peer has slot s % PROXY_SLOTS, and
 * a signal of the network's transport for each slot says that it has arrived (s); another, in the
 * other direction, that it is done with: in place in the peer's memory. A slot is used again once
 * its message is done, so no two settings of a signal are under way at a time, and nothing is
 * asked of the network but that a signal comes after the payload that it was put with. */
#include "proxy.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER = 64,
    STRIDE = HEADER + PROXY_PIECE,
    RINGS = 2,
    BURST = 16,        /* descriptors of a ring that are taken in one turn */
    IDLE_NS = 3200000, /* a proxy with nothing to do sleeps for a 32nd of this at most */
};

/* For the messages of this rank to be done when all ranks close, and for the others to close. */
static const uint64_t leave_ns = 2000000000u;
/* For a signal that was read already. */
static const uint64_t acquire_ns = 1000000000u;

struct header {
    uint64_t dst, bytes, stride, value;
    uint32_t rows, signal, op; /* op: enum epa_ring_op; FENCE: after all before it */
};

_Static_assert(sizeof(struct header) <= HEADER, "a message begins with its header");

/* Messages to a rank. acked <= sent <= begun. */
struct channel_out {
    uint64_t begun, sent, acked;
    uint64_t copied[PROXY_SLOTS]; /* of lane OUT: operations that must be done first */
    uint64_t quiet;               /* that must be acked for the PROXY_QUIET under way */
    bool fence;                   /* before the next message */
};

/* Messages of a rank. done <= landed <= begun. */
struct channel_in {
    uint64_t begun, landed, done;
    uint64_t data[PROXY_SLOTS], signal[PROXY_SLOTS]; /* of lane IN, likewise */
};

struct reading {
    struct epa_descriptor now; /* op 0: none */
    uint32_t row;              /* that messages were begun for, */
    uint64_t at;               /* and bytes of this one */
    uint64_t asked;            /* PROXY_QUIET */
};

struct proxy {
    struct proxy_params params;
    uint32_t rank, size;
    struct epa_transport *net;
    struct epa_wait_config wait;
    pthread_t thread;
    sem_t started;
    bool opened;     /* in place, with err, before `started` */
    uint32_t status; /* enum epa_status, of a failure; err is in place before it */
    uint32_t stop;   /* the host writes */
    struct epa_error err;
    struct channel_out *out;
    struct channel_in *in;
    struct reading reading[RINGS];
    uint64_t lane_done[PROXY_LANES];
    uint64_t quiets, quiet_wanted; /* done; under way if not the same */
    uint32_t slow;
    uint64_t *arrived; /* [size] */
    uint32_t facts;
    struct {
        char key[32], value[160];
    } fact[PROXY_FACTS];
};

/* ---- where things are ---- */

static uint64_t in_offset(uint32_t source, uint64_t message)
{
    return ((uint64_t)source * PROXY_SLOTS + message % PROXY_SLOTS) * STRIDE;
}

static uint64_t out_offset(const struct proxy *p, uint32_t peer, uint64_t message)
{
    return in_offset(p->size, 0) + in_offset(peer, message);
}

static uint32_t arrived_signal(uint32_t source, uint64_t message)
{
    return source * PROXY_SLOTS + (uint32_t)(message % PROXY_SLOTS);
}

static uint32_t done_signal(const struct proxy *p, uint32_t peer, uint64_t message)
{
    return p->size * PROXY_SLOTS + arrived_signal(peer, message);
}

/* ---- failures ---- */

static enum epa_status net_failed(struct proxy *p, enum epa_status status)
{
    struct epa_error why = {EPA_OK, ""};

    if (status == EPA_OK || status == EPA_AGAIN || status == EPA_ERR_ABORTED)
        return status;
    p->net->ops->explain(p->net, &why);
    return epa_fail(&p->err, status, "nvlink: rank %u, between nodes: %s", p->rank, why.text);
}

static enum epa_status copies_failed(struct proxy *p, enum epa_status status)
{
    struct epa_error why = {EPA_OK, ""};

    if (status == EPA_OK || status == EPA_AGAIN)
        return status;
    p->params.copies->explain(p->params.copies, &why);
    return epa_fail(&p->err, status, "nvlink: rank %u, staging: %s", p->rank, why.text);
}

static bool is_done(const struct proxy *p, enum proxy_lane lane, uint64_t operations)
{
    return p->lane_done[lane] >= operations;
}

/* ---- out: descriptors become messages ---- */

static bool has_room(const struct channel_out *c)
{
    return c->begun - c->acked < PROXY_SLOTS;
}

/* A descriptor that was just read. What is no message is dealt with here. */
static enum epa_status take(struct proxy *p, struct reading *r)
{
    struct epa_descriptor *d = &r->now;
    const uint32_t signals = EPA_RING_SET | EPA_RING_ADD;
    uint64_t end = 0;

    r->row = 0;
    r->at = 0;
    if (d->op == PROXY_QUIET) {
        for (uint32_t i = 0; i < p->size; i++)
            p->out[i].quiet = p->out[i].begun;
        p->quiet_wanted = d->value;
        r->now.op = 0;
        return EPA_OK;
    }
    if ((d->op & EPA_RING_PUT) == 0)
        d->bytes = d->rows = 0;
    d->rows = d->rows == 0 ? 1 : d->rows;
    if (d->peer >= p->size || !p->params.far[d->peer] ||
        __builtin_mul_overflow(d->stride, d->rows - 1, &end) ||
        __builtin_add_overflow(end, d->dst, &end) || __builtin_add_overflow(end, d->bytes, &end) ||
        end > p->params.heap_bytes || ((d->op & signals) != 0 && d->signal >= p->params.signals))
        return epa_fail(&p->err, EPA_ERR_SYSTEM,
                        "nvlink: rank %u was asked to put %u x %" PRIu64 " bytes at %" PRIu64
                        " of rank %u, signal %u: its heap has %" PRIu64
                        " bytes, there are %u signals, and it must be of another node",
                        p->rank, d->rows, d->bytes, d->dst, d->peer, d->signal,
                        p->params.heap_bytes, p->params.signals);
    if (d->op == EPA_RING_FENCE)
        p->out[d->peer].fence = true;
    if (d->op == EPA_RING_FENCE || (d->op == EPA_RING_PUT && d->bytes == 0))
        r->now.op = 0;
    return EPA_OK;
}

/* What of a descriptor goes with the next message: rows that fit, or a part of one. */
static struct header next_part(const struct reading *r)
{
    const struct epa_descriptor *d = &r->now;
    uint64_t left = d->bytes - r->at, rows = d->rows - r->row;
    struct header h = {.dst = d->dst + r->row * d->stride + r->at,
                       .bytes = left < PROXY_PIECE ? left : PROXY_PIECE,
                       .stride = d->stride,
                       .rows = 1};

    if (d->bytes == 0)
        h.rows = (uint32_t)rows;
    else if (d->bytes <= PROXY_PIECE)
        h.rows = (uint32_t)(PROXY_PIECE / d->bytes < rows ? PROXY_PIECE / d->bytes : rows);
    return h;
}

/* The next message of a descriptor: its data are on the way to staging. */
static enum epa_status begin_message(struct proxy *p, struct reading *r)
{
    struct epa_descriptor *d = &r->now;
    struct channel_out *c = &p->out[d->peer];
    char *to = p->net->heap + out_offset(p, d->peer, c->begun + 1);
    struct header header = next_part(r);
    enum epa_status status = EPA_OK;

    if (header.bytes > 0)
        status = p->params.copies->copy(p->params.copies, PROXY_OUT, to + HEADER,
                                        (const char *)d->src + (header.dst - d->dst), header.bytes,
                                        header.rows, header.stride);
    if (status != EPA_OK)
        return copies_failed(p, status);
    r->at += header.bytes;
    if (r->at == d->bytes) {
        r->row += header.rows;
        r->at = 0;
    }
    header.op = c->fence ? EPA_RING_FENCE : 0;
    if (r->row == d->rows) { /* the last of it */
        header.op |= d->op & ~(uint32_t)EPA_RING_PUT;
        header.value = d->value;
        header.signal = d->signal;
        d->op = 0;
    }
    memcpy(to, &header, sizeof(header));
    c->fence = false;
    c->begun++;
    c->copied[c->begun % PROXY_SLOTS] = header.bytes > 0 ? p->params.copies->queued[PROXY_OUT] : 0;
    return EPA_OK;
}

static enum epa_status read_ring(struct proxy *p, uint32_t ring, bool *moved)
{
    struct reading *r = &p->reading[ring];

    for (uint32_t i = 0; i < BURST; i++) {
        enum epa_status status = EPA_OK;

        if (r->now.op == 0) {
            if (p->quiet_wanted != p->quiets && ring == 1) /* one at a time, of the host's ring */
                return EPA_OK;
            if (!epa_ring_read(&p->params.ring[ring], &r->now))
                return EPA_OK;
            status = take(p, r);
            *moved = true;
        }
        while (status == EPA_OK && r->now.op != 0 && has_room(&p->out[r->now.peer])) {
            status = begin_message(p, r);
            *moved = *moved || status == EPA_OK;
        }
        if (status != EPA_OK)
            return status == EPA_AGAIN ? EPA_OK : status;
        if (r->now.op != 0) /* until messages to its peer are done */
            return EPA_OK;
    }
    return EPA_OK;
}

static enum epa_status send_messages(struct proxy *p, uint32_t peer, bool *moved)
{
    struct channel_out *c = &p->out[peer];

    while (c->sent < c->begun) {
        uint64_t next = c->sent + 1, from = out_offset(p, peer, next);
        struct header header;
        enum epa_status status;

        if (!is_done(p, PROXY_OUT, c->copied[next % PROXY_SLOTS]))
            return EPA_OK;
        memcpy(&header, p->net->heap + from, sizeof(header));
        status = epa_put_signal(p->net, in_offset(p->rank, next), p->net->heap + from,
                                HEADER + header.bytes * header.rows, arrived_signal(p->rank, next),
                                next, peer);
        if (status != EPA_OK)
            return status == EPA_AGAIN ? EPA_OK : net_failed(p, status);
        c->sent = next;
        *moved = true;
    }
    return EPA_OK;
}

/* Whether `signal`, of the network, has come to `value`; if so, what came before it can be read. */
static enum epa_status look(struct proxy *p, uint32_t signal, uint64_t value, bool *there)
{
    *there = p->net->ops->read(p->net, signal) >= value;
    return *there ? net_failed(p, epa_wait(p->net, signal, value, acquire_ns)) : EPA_OK;
}

static enum epa_status count_acks(struct proxy *p, uint32_t peer, bool *moved)
{
    struct channel_out *c = &p->out[peer];
    bool there = true;

    while (c->acked < c->sent) {
        enum epa_status status = look(p, done_signal(p, peer, c->acked + 1), c->acked + 1, &there);

        if (status != EPA_OK || !there)
            return status;
        c->acked++;
        *moved = true;
    }
    return EPA_OK;
}

static void count_quiets(struct proxy *p, bool *moved)
{
    if (p->quiet_wanted == p->quiets)
        return;
    for (uint32_t i = 0; i < p->size; i++) {
        if (p->out[i].acked >= p->out[i].quiet)
            continue;
        __atomic_store_n(&p->slow, i, __ATOMIC_RELAXED);
        return;
    }
    /* Release: pairs with the acquire of the host, which waits for it. */
    __atomic_store_n(&p->quiets, p->quiet_wanted, __ATOMIC_RELEASE);
    *moved = true; /* the ring may have more behind it */
}

/* ---- in: messages are copied to their places, then come their signals ---- */

static enum epa_status begin_landing(struct proxy *p, uint32_t source, bool *moved)
{
    struct channel_in *c = &p->in[source];
    enum epa_status status = EPA_OK;

    while (c->begun - c->done < PROXY_SLOTS) {
        uint64_t next = c->begun + 1;
        char *from = p->net->heap + in_offset(source, next);
        struct header header;
        bool there;

        status = look(p, arrived_signal(source, next), next, &there);
        if (status != EPA_OK || !there)
            return status;
        memcpy(&header, from, sizeof(header));
        if ((header.op & EPA_RING_FENCE) != 0 && c->done < c->begun)
            return EPA_OK;
        c->data[next % PROXY_SLOTS] = 0;
        if (header.bytes > 0) {
            status =
                p->params.copies->copy(p->params.copies, PROXY_IN, p->params.heap + header.dst,
                                       from + HEADER, header.bytes, header.rows, header.stride);
            if (status != EPA_OK)
                return status == EPA_AGAIN ? EPA_OK : copies_failed(p, status);
            c->data[next % PROXY_SLOTS] = p->params.copies->queued[PROXY_IN];
        }
        c->begun = next;
        *moved = true;
    }
    return EPA_OK;
}

/* The data of a message and of all before it are in place. */
static enum epa_status give_signal(struct proxy *p, uint32_t source, uint64_t message)
{
    char *from = p->net->heap + in_offset(source, message);
    struct proxy_copies *copies = p->params.copies;
    struct header header;
    enum epa_status status = EPA_OK;

    memcpy(&header, from, sizeof(header));
    if ((header.op & EPA_RING_SET) != 0)
        status = copies->copy(copies, PROXY_IN, p->params.signal + header.signal,
                              from + offsetof(struct header, value), sizeof(header.value), 1, 0);
    else if ((header.op & EPA_RING_ADD) != 0)
        status = copies->add(copies, p->params.signal + header.signal, header.value);
    if (status != EPA_OK)
        return copies_failed(p, status);
    p->in[source].signal[message % PROXY_SLOTS] =
        (header.op & (EPA_RING_SET | EPA_RING_ADD)) != 0 ? copies->queued[PROXY_IN] : 0;
    if ((header.op & PROXY_ARRIVE) != 0)
        /* Release: pairs with the acquire in the host's barrier. */
        __atomic_store_n(&p->arrived[source], header.value, __ATOMIC_RELEASE);
    return EPA_OK;
}

static enum epa_status land(struct proxy *p, uint32_t source, bool *moved)
{
    struct channel_in *c = &p->in[source];
    enum epa_status status;

    while (c->landed < c->begun && is_done(p, PROXY_IN, c->data[(c->landed + 1) % PROXY_SLOTS])) {
        status = give_signal(p, source, c->landed + 1);
        if (status != EPA_OK)
            return status == EPA_AGAIN ? EPA_OK : status;
        c->landed++;
        *moved = true;
    }
    while (c->done < c->landed && is_done(p, PROXY_IN, c->signal[(c->done + 1) % PROXY_SLOTS])) {
        status = p->net->ops->signal(p->net, done_signal(p, p->rank, c->done + 1), c->done + 1,
                                     EPA_SIGNAL_SET, source);
        if (status != EPA_OK)
            return status == EPA_AGAIN ? EPA_OK : net_failed(p, status);
        c->done++;
        *moved = true;
    }
    return EPA_OK;
}

/* ---- the thread ---- */

static enum epa_status turn(struct proxy *p, bool *moved)
{
    enum epa_status status = net_failed(p, p->net->ops->progress(p->net));

    for (int lane = 0; lane < PROXY_LANES && status == EPA_OK; lane++)
        status = copies_failed(p, p->params.copies->done(p->params.copies, (enum proxy_lane)lane,
                                                         &p->lane_done[lane]));
    for (uint32_t i = 0; i < RINGS && status == EPA_OK; i++)
        status = read_ring(p, i, moved);
    for (uint32_t i = 1; i < p->size && status == EPA_OK; i++) {
        uint32_t r = (p->rank + i) % p->size; /* not all at the same peer at once */

        if (!p->params.far[r])
            continue;
        status = send_messages(p, r, moved);
        if (status == EPA_OK)
            status = count_acks(p, r, moved);
        if (status == EPA_OK)
            status = begin_landing(p, r, moved);
        if (status == EPA_OK)
            status = land(p, r, moved);
    }
    count_quiets(p, moved);
    return status;
}

/* Whether all messages of this rank are done, and those to it that have come. */
static bool is_idle(const struct proxy *p)
{
    for (uint32_t i = 0; i < p->size; i++)
        if (p->out[i].acked < p->out[i].begun || p->in[i].done < p->in[i].begun)
            return false;
    return p->reading[0].now.op == 0 && p->reading[1].now.op == 0;
}

static enum epa_status serve(struct proxy *p)
{
    uint64_t idle_since = 0, stop_since = 0;

    for (;;) {
        /* Before the turn, which then reads all that was asked before the end. Acquire: pairs with
         * the release in proxy_stop(). */
        bool stops = __atomic_load_n(&p->stop, __ATOMIC_ACQUIRE) != 0, moved = false;
        enum epa_status status = turn(p, &moved);
        uint64_t now = epa_now_ns(), idle;

        if (status != EPA_OK)
            return status;
        if (stops) {
            stop_since = stop_since == 0 ? now : stop_since;
            if ((!moved && is_idle(p)) || now - stop_since > leave_ns)
                return EPA_OK;
        }
        if (moved) {
            idle_since = 0;
            continue;
        }
        idle_since = idle_since == 0 ? now : idle_since;
        idle = now - idle_since < IDLE_NS ? now - idle_since : IDLE_NS;
        epa_backoff(idle, p->wait.spin_ns);
    }
}

static void keep_fact(void *arg, const char *key, const char *value)
{
    struct proxy *p = arg;

    if (p->facts == PROXY_FACTS)
        return;
    snprintf(p->fact[p->facts].key, sizeof(p->fact->key), "%s", key);
    snprintf(p->fact[p->facts].value, sizeof(p->fact->value), "%s", value);
    p->facts++;
}

static size_t staging_bytes(const struct proxy *p)
{
    return (size_t)out_offset(p, p->size, 0);
}

static enum epa_status open_net(struct proxy *p)
{
    /* Nobody allocates by it: it says where the heap is. */
    struct epa_backend host = {.memory = EPA_MEMORY_HOST, .device = -1};
    const struct epa_transport_params params = {.boot = p->params.boot,
                                                .backend = &host,
                                                .config = p->params.net_config,
                                                .heap_bytes = staging_bytes(p),
                                                .signals = 2 * p->size * PROXY_SLOTS};
    enum epa_status status = p->params.net->open(&params, &p->net, &p->err);

    if (status != EPA_OK)
        return status;
    if (p->net->ops->describe != NULL)
        p->net->ops->describe(p->net, keep_fact, p);
    status = p->params.copies->enter(p->params.copies, p->net->heap, staging_bytes(p));
    if (status == EPA_OK)
        return status;
    (void)copies_failed(p, status);
    p->net->ops->close(p->net);
    return status;
}

static void *run(void *arg)
{
    struct proxy *p = arg;
    enum epa_status status = open_net(p);

    p->err.status = status;
    p->opened = status == EPA_OK;
    sem_post(&p->started); /* pairs with sem_wait() in proxy_start() */
    if (status != EPA_OK)
        return NULL;
    status = serve(p);
    /* Release: pairs with the acquire in proxy_status(); the text is complete. */
    __atomic_store_n(&p->status, (uint32_t)status, __ATOMIC_RELEASE);
    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        p->params.copies->stop_kernels(p->params.copies, status);
    while (__atomic_load_n(&p->stop, __ATOMIC_RELAXED) == 0)
        epa_backoff(EPA_WAIT_YIELD_NS, 0);
    if (!p->params.copies->leave(p->params.copies, p->net->heap))
        return NULL;      /* what the copies use stays until the process ends */
    if (status == EPA_OK) /* no peer signals any more what this one would not hear */
        (void)p->net->ops->barrier(p->net, leave_ns);
    p->net->ops->close(p->net);
    return NULL;
}

/* The rank's own thread is pinned, and so would be what it starts: to the same core. */
static void unpin(pthread_attr_t *attributes)
{
    cpu_set_t all;

    memset(&all, 0xff, sizeof(all)); /* of which the kernel takes what this process may use */
    (void)pthread_attr_setaffinity_np(attributes, sizeof(all), &all);
}

static enum epa_status start_thread(struct proxy *p, struct epa_error *err)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    int error;

    pthread_attr_init(&attributes);
    unpin(&attributes);
    sigfillset(&all); /* signals are the launcher's affair */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    error = pthread_create(&p->thread, &attributes, run, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0 ? EPA_OK
                      : epa_fail(err, EPA_ERR_SYSTEM, "nvlink: no thread for the proxy: %s",
                                 strerror(error));
}

static void destroy(struct proxy *p)
{
    sem_destroy(&p->started);
    free(p->arrived);
    free(p->out);
    free(p->in);
    free(p);
}

enum epa_status proxy_start(const struct proxy_params *params, struct proxy **out,
                            struct epa_error *err)
{
    uint32_t size = params->boot->world.size;
    struct proxy *p = calloc(1, sizeof(*p));
    enum epa_status status;

    if (p == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "nvlink: no memory for a proxy");
    sem_init(&p->started, 0, 0);
    p->params = *params;
    p->rank = params->boot->world.rank;
    p->size = size;
    p->wait = wait_configure(params->boot, WAIT_AUTO);
    p->out = calloc(size, sizeof(*p->out));
    p->in = calloc(size, sizeof(*p->in));
    p->arrived = calloc(size, sizeof(*p->arrived));
    status = p->out == NULL || p->in == NULL || p->arrived == NULL
                 ? epa_fail(err, EPA_ERR_NOMEM, "nvlink: no memory for a proxy")
                 : start_thread(p, err);
    if (status != EPA_OK) {
        destroy(p);
        return status;
    }
    while (sem_wait(&p->started) != 0 && errno == EINTR) {
    }
    if (p->opened) {
        *out = p;
        return EPA_OK;
    }
    pthread_join(p->thread, NULL);
    status = p->err.status;
    *err = p->err;
    destroy(p);
    return status;
}

void proxy_stop(struct proxy *p)
{
    if (p == NULL)
        return;
    /* Release: pairs with the acquire in serve(). */
    __atomic_store_n(&p->stop, 1, __ATOMIC_RELEASE);
    pthread_join(p->thread, NULL);
    destroy(p);
}

enum epa_status proxy_status(const struct proxy *p)
{
    return (enum epa_status)__atomic_load_n(&p->status, __ATOMIC_ACQUIRE);
}

void proxy_explain(const struct proxy *p, struct epa_error *err)
{
    (void)epa_fail(err, proxy_status(p), "%s", p->err.text);
}

void proxy_describe(const struct proxy *p,
                    void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    for (uint32_t i = 0; i < p->facts; i++)
        say(arg, p->fact[i].key, p->fact[i].value);
}

const uint64_t *proxy_quiet(const struct proxy *p, uint32_t *slow)
{
    *slow = __atomic_load_n(&p->slow, __ATOMIC_RELAXED);
    return &p->quiets;
}

const uint64_t *proxy_arrived(const struct proxy *p, uint32_t rank)
{
    return &p->arrived[rank];
}
