/* The functions of the data path. README.md describes the ordering rules.
 *
 * This CPU's stores reach a peer whose memory UCX has mapped, as in shm. UCX alone reaches any
 * other peer. Each peer therefore sees one order. */
#include "ucx.h"

#include "barrier.h"
#include "describe.h"
#include "links.h"
#include "messages.h"
#include "raise.h"
#include "region.h"
#include "state.h"
#include "waits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t signal_at(const struct ucx *u, uint32_t signal)
{
    assert(signal < u->signals);
    return u->region.signals_at + signal * sizeof(struct line);
}

/* Number of messages for a put; 0: UCX sends the put, which would never fit into the queue. */
static uint32_t messages_for(const struct peer *peer, size_t bytes)
{
    size_t n = (bytes + MESSAGE_MOST - 1) / MESSAGE_MOST;

    return peer->messages && (n <= 1 || n <= peer->ucx->config.outstanding / 2) ? (uint32_t)n : 0;
}

/* Sends the payload; the last message carries the signal, if any. */
static enum epa_status start_messages(struct peer *peer, struct message last, const char *src,
                                      size_t bytes)
{
    enum epa_status status = EPA_OK;

    for (; bytes > MESSAGE_MOST && status == EPA_OK; bytes -= MESSAGE_MOST) {
        status = start_message(peer, (struct message){.at = last.at}, src, MESSAGE_MOST);
        last.at += MESSAGE_MOST;
        src += MESSAGE_MOST;
    }
    return status == EPA_OK ? start_message(peer, last, src, bytes) : status;
}

/* Starts a put without a signal. */
static enum epa_status start_put(struct peer *peer, uint64_t at, const void *src, size_t bytes)
{
    uint32_t n = messages_for(peer, bytes);

    if (!has_room(peer->ucx, peer, n > 0 ? n : 1))
        return EPA_AGAIN;
    return n > 0 ? start_messages(peer, (struct message){.at = at}, src, bytes)
                 : start_ucx_put(peer, at, src, bytes);
}

static enum epa_status put(struct epa_transport *t, uint64_t dst, const void *src, size_t bytes,
                           uint32_t number)
{
    struct ucx *u = ucx_of(t);
    struct peer *peer = &u->peer[number];
    enum epa_status status;

    assert(number < t->size && dst <= t->heap_bytes && bytes <= t->heap_bytes - dst);
    if (bytes == 0) /* src may be NULL */
        return EPA_OK;
    if (peer->map != NULL) {
        memcpy(u->peer_heap[number] + dst, src, bytes);
        return EPA_OK;
    }
    ucx_lock(u);
    status = start_put(peer, u->region.heap_at + dst, src, bytes);
    ucx_unlock(u);
    return status;
}

static enum epa_status raise_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                    enum epa_signal_op op, uint32_t peer)
{
    struct ucx *u = ucx_of(t);

    assert(peer < t->size);
    return ucx_raise(u, signal_at(u, signal), value, op, peer);
}

/* Does not block: read_config() selects a fence without a flush. */
static enum epa_status fence_locked(struct peer *peer)
{
    struct ucx *u = peer->ucx;
    ucs_status_t ucs;

    if (!peer->unfenced)
        return EPA_OK;
    ucs = ucp_worker_fence(u->worker);
    if (ucs == UCS_OK) {
        peer->unfenced = false;
        return EPA_OK;
    }
    u->failure = (struct failure){.at = FAILED_START,
                                  .status = EPA_ERR_SYSTEM,
                                  .peer = ucx_number_of(u, peer),
                                  .code = ucs,
                                  .what = "ucp_worker_fence"};
    return EPA_ERR_SYSTEM;
}

/* Starts the payload, a fence and the signal, after a check that the queue has room for both. */
static enum epa_status start_both(struct peer *peer, uint64_t dst, const void *src, size_t bytes,
                                  uint64_t at, uint64_t value, enum epa_signal_op op)
{
    struct ucx *u = peer->ucx;
    uint32_t n = messages_for(peer, bytes);
    const struct message last = {
        .at = u->region.heap_at + dst, .signal_at = at, .value = value, .op = (uint64_t)op + 1};
    enum epa_status status;

    if (!has_room(u, peer, n > 0 ? n : 2))
        return EPA_AGAIN;
    if (n > 0)
        return start_messages(peer, last, src, bytes);
    status = start_ucx_put(peer, last.at, src, bytes);
    if (status == EPA_OK && op == EPA_SIGNAL_ADD && peer->split) {
        ucx_unlock(u); /* flush_split() blocks; no other thread starts operations meanwhile */
        status = flush_split(peer, true);
        ucx_lock(u);
    } else if (status == EPA_OK) {
        status = fence_locked(peer);
    }
    return status == EPA_OK ? start_signal(peer, at, value, op) : status;
}

static enum epa_status put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t signal, uint64_t value,
                                  enum epa_signal_op op, uint32_t number)
{
    struct ucx *u = ucx_of(t);
    struct peer *peer = &u->peer[number];
    uint64_t at = signal_at(u, signal);
    enum epa_status status;

    assert(number < t->size && dst <= t->heap_bytes && bytes <= t->heap_bytes - dst);
    if (bytes == 0)
        return ucx_raise(u, at, value, op, number);
    if (peer->map != NULL) {
        memcpy(u->peer_heap[number] + dst, src, bytes);
        store_value(peer->map, at, value, op);
        return EPA_OK;
    }
    ucx_lock(u);
    status = start_both(peer, dst, src, bytes, at, value, op);
    ucx_unlock(u);
    return status;
}

/* A mapped peer needs no fence: each signal is a release. */
static enum epa_status fence(struct epa_transport *t, uint32_t number)
{
    struct ucx *u = ucx_of(t);
    struct peer *peer = &u->peer[number];
    enum epa_status status;

    if (peer->map != NULL)
        return EPA_OK;
    if (peer->split && peer->added_since_flush)
        return flush_split(peer, true);
    ucx_lock(u);
    status = fence_locked(peer);
    ucx_unlock(u);
    return status;
}

/* The store buffer may hold stores; see quiet() of shm. */
static enum epa_status quiet(struct epa_transport *t)
{
    struct ucx *u = ucx_of(t);

    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return wait_flushed(u, u->limit_ns);
}

static const uint64_t *word_of(const struct ucx *u, uint32_t signal)
{
    return (const uint64_t *)(const void *)(u->region.base + signal_at(u, signal));
}

static uint64_t read_signal(struct epa_transport *t, uint32_t signal)
{
    return __atomic_load_n(word_of(ucx_of(t), signal), __ATOMIC_ACQUIRE);
}

static enum epa_status wait_signal(struct epa_transport *t, uint32_t signal,
                                   enum epa_compare compare, uint64_t value, uint64_t timeout_ns)
{
    struct ucx *u = ucx_of(t);

    return wait_word(
        u, word_of(u, signal), timeout_ns,
        (struct failure){.at = FAILED_SIGNAL, .compare = compare, .signal = signal, .want = value});
}

/* Resets signals between two barriers, which use words of their own: after the first barrier no
 * signal is in flight, and no rank signals before the second. */
static enum epa_status reset_signals(struct epa_transport *t)
{
    struct ucx *u = ucx_of(t);
    enum epa_status status = wait_barrier(t, u->limit_ns);

    if (status == EPA_OK) {
        for (uint32_t i = 0; i < u->signals; i++)
            __atomic_store_n((uint64_t *)(void *)(u->region.base + signal_at(u, i)), 0,
                             __ATOMIC_RELAXED);
        status = wait_barrier(t, u->limit_ns);
    }
    return status;
}

static void close_all(struct epa_transport *t)
{
    struct ucx *u = ucx_of(t);

    helper_stop(u);
    links_finish(u);
    region_finish(u);
    pthread_mutex_destroy(&u->lock);
    free(u->values);
    free(u->peer);
    free(u->peer_heap);
    free(u);
}

const struct epa_transport_ops ucx_ops = {
    .put = put,
    .put_signal = put_signal,
    .signal = raise_signal,
    .fence = fence,
    .quiet = quiet,
    .read = read_signal,
    .wait = wait_signal,
    .progress = wait_progress,
    .barrier = wait_barrier,
    .reset = reset_signals,
    .describe = ucx_describe,
    .explain = ucx_explain,
    .close = close_all,
};
