/* Verbs transport: RDMA devices (InfiniBand, RoCE) through libibverbs.
 *
 * A put is an RDMA write into the peer's segment, which is registered as a whole. Setting a signal is
 * another write of 8 bytes on the same queue pair. Writes of one reliable queue pair land in order;
 * all ordering rests on this rule.
 *
 * The CPU stores into the mapped segments of peers of this node (`direct`). A device's atomics are
 * not atomic with the CPU's, so each operation on a word has a single executor:
 *   set   to a direct peer: a store of the CPU. A concurrent addition of a device could undo the
 *         store, but a program that sets and adds to one word at the same time has no defined result.
 *   add   always the device, even to direct peers and to this rank itself: one device, chosen by
 *         the word's owner, executes all additions to the word.
 * Stores to a peer are in order, and writes of a queue pair are in order. An addition lands after
 * earlier operations, but later operations may overtake it. After a fence, the next put or set
 * therefore waits (EPA_AGAIN) until this rank's additions to the peer are done. The device flag
 * IBV_SEND_FENCE would suffice for writes only, and soft-RoCE with this flag has stalled for tens of
 * seconds after a retransmission.
 * If a rank stores (through peer_heap or by a put) and then signals through the device, the store
 * is visible first: posting a request orders earlier stores.
 *
 * A heap of the caller (GPU or host memory) has its own registration, and no peer maps it: puts,
 * signals, and puts of polled words use the single queue pair to a peer. */
#include "verbs.h"

#include "close.h"
#include "sources.h"
#include "state.h"
#include "waits.h"

#include <assert.h>
#include <string.h>

/* Time limit for operations that a working device completes or abandons within milliseconds: a
 * device that needs longer is stuck. */
static const uint64_t stuck_ns = 60000000000u;

static struct verbs *verbs_of(struct epa_transport *t)
{
    return (struct verbs *)t;
}

static enum epa_status failed(struct verbs *v)
{
    enum epa_status status = verbs_poll(v);

    if (status != EPA_OK && epa_aborted(v->boot)) {
        v->failure = (struct failure){.at = FAILED_PROGRESS, .status = EPA_ERR_ABORTED};
        return EPA_ERR_ABORTED;
    }
    return status;
}

/* Posts all built requests and asks for a completion. */
static enum epa_status push(struct verbs *v, struct queue *q)
{
    queue_ask(&v->queues, q);
    queue_post(&v->queues, q);
    return failed(v);
}

/* Makes room for `n` requests, or returns EPA_AGAIN. */
static enum epa_status find_room(struct verbs *v, struct queue *q, uint64_t n)
{
    enum epa_status status;

    if (v->queues.failure.failed)
        return failed(v);
    if (queue_has_room(q, n))
        return EPA_OK;
    status = push(v, q);
    return status != EPA_OK || queue_has_room(q, n) ? status : EPA_AGAIN;
}

/* Returns EPA_OK if the additions before the last fence are done, else EPA_AGAIN. */
static enum epa_status find_turn(struct verbs *v, uint32_t peer)
{
    struct queue *q = &v->queues.queue[peer];
    enum epa_status status;

    if (queue_is_done(q, v->ordered[peer]))
        return EPA_OK;
    status = push(v, q);
    return status != EPA_OK || queue_is_done(q, v->ordered[peer]) ? status : EPA_AGAIN;
}

static bool is_own(const struct epa_transport *t, const void *src, size_t bytes)
{
    uintptr_t at = (uintptr_t)src, heap = (uintptr_t)t->heap;

    return at >= heap && at - heap <= t->heap_bytes && bytes <= t->heap_bytes - (at - heap);
}

static enum epa_status refuse_source(struct verbs *v, enum epa_status status, uint32_t peer,
                                     size_t bytes)
{
    v->failure =
        (struct failure){.at = FAILED_SOURCE, .status = status, .peer = peer, .want = bytes};
    return status;
}

/* Posts all queues and requests completions: a put must complete before a source gets an entry. */
static enum epa_status push_all(struct verbs *v)
{
    for (uint32_t r = 0; r < v->queues.n; r++)
        queue_ask(&v->queues, &v->queues.queue[r]);
    queues_post(&v->queues);
    return failed(v);
}

/* Builds a put; the caller has checked the ring. Returns EPA_AGAIN if the source gets no entry. */
static enum epa_status build_put(struct verbs *v, struct queue *q, uint64_t dst, const void *src,
                                 size_t bytes)
{
    struct queue_source from = {.at = src, .key = v->heap_key, .readable = !v->on_gpu};
    struct source *entry = NULL;
    enum epa_status status = EPA_OK;

    if (!is_own(&v->base, src, bytes))
        status = sources_find(&v->sources, src, bytes, q->peer, &from, &entry, &v->source_err);
    if (status == EPA_AGAIN) {
        status = push_all(v);
        return status == EPA_OK ? EPA_AGAIN : status;
    }
    if (status != EPA_OK)
        return refuse_source(v, status, q->peer, bytes);
    queue_write(&v->queues, q, from, bytes, q->heap + dst);
    if (entry != NULL)
        sources_note(&v->sources, entry, q->peer);
    return EPA_OK;
}

static enum epa_status put(struct epa_transport *t, uint64_t dst, const void *src, size_t bytes,
                           uint32_t peer)
{
    struct verbs *v = verbs_of(t);
    struct queue *q = &v->queues.queue[peer];
    enum epa_status status;

    assert(peer < t->size && dst <= t->heap_bytes && bytes <= t->heap_bytes - dst);
    if (bytes == 0) /* src may be NULL */
        return EPA_OK;
    if (!v->given && !is_own(t, src, bytes))
        return refuse_source(v, EPA_ERR_CONFIG, peer, bytes);
    status = find_turn(v, peer);
    if (status == EPA_OK && is_direct(v, peer)) {
        memcpy(t->peer_heap[peer] + dst, src, bytes);
        return EPA_OK;
    }
    if (status == EPA_OK)
        status = find_room(v, q, queue_pieces(&v->queues, bytes));
    return status == EPA_OK ? build_put(v, q, dst, src, bytes) : status;
}

/* The CPU copies the payload to a direct peer, but the device executes an addition. */
static enum epa_status put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t signal, uint64_t value,
                                  enum epa_signal_op op, uint32_t peer)
{
    struct verbs *v = verbs_of(t);
    struct queue *q = &v->queues.queue[peer];
    bool direct = is_direct(v, peer), stores = direct && op == EPA_SIGNAL_SET;
    enum epa_status status = EPA_OK;

    assert(signal < v->segments.params.signals && peer < t->size);
    assert(bytes == 0 || (dst <= t->heap_bytes && bytes <= t->heap_bytes - dst));
    if (bytes != 0 && !v->given && !is_own(t, src, bytes))
        return refuse_source(v, EPA_ERR_CONFIG, peer, bytes);
    if (bytes != 0 || op == EPA_SIGNAL_SET) /* additions without a payload need no wait */
        status = find_turn(v, peer);
    if (status == EPA_OK && !stores)
        status = find_room(v, q, (direct ? 0 : queue_pieces(&v->queues, bytes)) + 1);
    if (status != EPA_OK)
        return status;
    if (bytes != 0 && direct)
        memcpy(t->peer_heap[peer] + dst, src, bytes);
    else if (bytes != 0)
        status = build_put(v, q, dst, src, bytes);
    if (status != EPA_OK)
        return status;
    if (stores) {
        /* Release: pairs with the acquire in poll_settled(). Earlier stores of this rank are visible. */
        __atomic_store_n(word_at(v, signal, peer), value, __ATOMIC_RELEASE);
        return EPA_OK;
    }
    if (op == EPA_SIGNAL_ADD)
        queue_add(&v->queues, q, value, remote_line(q, signal));
    else
        queue_set(&v->queues, q, value, remote_line(q, signal), false);
    queue_post(&v->queues, q); /* signals do not wait for a full batch */
    return EPA_OK;
}

static enum epa_status raise_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                    enum epa_signal_op op, uint32_t peer)
{
    return put_signal(t, 0, NULL, 0, signal, value, op, peer);
}

static enum epa_status fence(struct epa_transport *t, uint32_t peer)
{
    struct verbs *v = verbs_of(t);

    v->ordered[peer] = v->queues.queue[peer].atomics;
    return EPA_OK;
}

/* A completion means that the peer's device has acknowledged the write. The data then becomes
 * visible before any later operation of this rank, or of a rank that this rank signals. Stores to
 * direct peers must leave the store buffer, as in shm. */
static enum epa_status quiet(struct epa_transport *t)
{
    enum epa_status status = verbs_drain(verbs_of(t), stuck_ns);

    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return status;
}

static uint64_t read_signal(struct epa_transport *t, uint32_t signal)
{
    struct verbs *v = verbs_of(t);

    assert(signal < v->segments.params.signals);
    return verbs_read(v, signal);
}

static enum epa_status wait_signal(struct epa_transport *t, uint32_t signal,
                                   enum epa_compare compare, uint64_t value, uint64_t timeout_ns)
{
    struct verbs *v = verbs_of(t);

    assert(signal < v->segments.params.signals);
    if (v->queues.held > 0)
        queues_post(&v->queues);
    return verbs_wait(v, signal, compare, value, timeout_ns);
}

static enum epa_status progress(struct epa_transport *t)
{
    struct verbs *v = verbs_of(t);
    struct epa_wait w = {.timeout_ns = UINT64_MAX};

    queues_post(&v->queues);
    return verbs_go_on(v, &w, &(struct failure){.at = FAILED_PROGRESS});
}

static enum epa_status reset_signals(struct epa_transport *t)
{
    struct verbs *v = verbs_of(t);
    enum epa_status status = quiet(t);

    if (status != EPA_OK)
        return status;
    return wait_reset(v->boot, v->peer[t->rank].segment->signal, v->segments.params.signals,
                      sizeof(struct line), &v->failure);
}

const struct epa_transport_ops verbs_ops = {
    .put = put,
    .put_signal = put_signal,
    .signal = raise_signal,
    .fence = fence,
    .quiet = quiet,
    .read = read_signal,
    .wait = wait_signal,
    .progress = progress,
    .barrier = verbs_barrier,
    .reset = reset_signals,
    .describe = verbs_describe,
    .explain = verbs_explain,
    .close = verbs_close,
};
