/* The functions of the data path. README.md describes the ordering rules.
 *
 * This CPU's stores reach a peer whose memory UCX has mapped, as in shm. UCX alone reaches any
 * other peer. Each peer therefore sees one order. */
#include "ucx.h"

#include "links.h"
#include "plugin.h"
#include "region.h"
#include "waits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    STARTS = 64, /* operations between two calls of progress, which receives acknowledgements */
    MESSAGE_ID = 1,
    MESSAGE_MOST = 120 << 10, /* bytes of payload; with headers it fits a segment of region.c */
};

/* Completion callback. UCX calls it inside progress or inside the starting call, hence under the
 * lock. */
static void complete_request(struct peer *peer, void *request, ucs_status_t ucs)
{
    peer->ucx->outstanding--;
    if (ucs != UCS_OK)
        links_lose(peer, ucs);
    ucp_request_free(request);
}

static void put_done(void *request, ucs_status_t ucs, void *arg)
{
    complete_request(arg, request, ucs);
}

static void free_value(struct value *value)
{
    struct ucx *u = value->peer->ucx;

    value->next = u->free_value;
    u->free_value = value;
}

static void value_done(void *request, ucs_status_t ucs, void *arg)
{
    struct value *value = arg;

    complete_request(value->peer, request, ucs);
    free_value(value);
}

/* Returns true if `n` more operations may be started. */
static bool has_room(struct ucx *u, const struct peer *peer, uint32_t n)
{
    if (u->outstanding + n > u->config.outstanding || u->started >= STARTS)
        (void)ucx_progress(u);
    u->started += n;
    return u->outstanding + n <= u->config.outstanding && peer->lost == UCS_OK;
}

/* Counts a request that UCX did not complete at once. A failed endpoint is not an error yet: the
 * retry reaches progress(), which prefers the launcher's explanation. */
static enum epa_status count(struct peer *peer, ucs_status_ptr_t request, const char *what)
{
    struct ucx *u = peer->ucx;
    ucs_status_t ucs = UCS_PTR_IS_ERR(request) ? UCS_PTR_STATUS(request) : UCS_OK;

    u->unflushed = true;
    peer->unfenced = true;
    if (ucs == UCS_OK) {
        u->outstanding += UCS_PTR_IS_PTR(request);
        return EPA_OK;
    }
    if (ucs != UCS_ERR_NO_MEMORY && ucs != UCS_ERR_INVALID_PARAM && ucs != UCS_ERR_UNSUPPORTED) {
        links_lose(peer, ucs);
        return EPA_AGAIN;
    }
    u->failure = (struct failure){.at = FAILED_START,
                                  .status = EPA_ERR_SYSTEM,
                                  .peer = ucx_number_of(u, peer),
                                  .code = ucs,
                                  .what = what};
    return EPA_ERR_SYSTEM;
}

/* `at` is an offset of the heap. */
static enum epa_status start_ucx_put(struct peer *peer, uint64_t at, const void *src, size_t bytes)
{
    const ucp_request_param_t param = {.op_attr_mask =
                                           UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.send = put_done,
                                       .user_data = peer};

    peer->put_since_flush = true;
    return count(peer,
                 ucp_put_nbx(peer->ep, src, bytes,
                             peer->remote_heap + (at - peer->ucx->region.heap_at),
                             peer->heap_rkey != NULL ? peer->heap_rkey : peer->rkey, &param),
                 "ucp_put_nbx");
}

/* Takes a free value for the request: has_room() has checked that there is one. */
static enum epa_status start_value(struct peer *peer, uint64_t at, uint64_t value,
                                   enum epa_signal_op op)
{
    struct ucx *u = peer->ucx;
    struct value *slot = u->free_value;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        (op == EPA_SIGNAL_ADD ? UCP_OP_ATTR_FIELD_DATATYPE : 0),
        .cb.send = value_done,
        .user_data = slot,
        .datatype = ucp_dt_make_contig(sizeof(slot->u.value)),
    };
    ucs_status_ptr_t request;

    u->free_value = slot->next;
    slot->peer = peer;
    slot->u.value = value;
    if (op == EPA_SIGNAL_ADD) {
        peer->added_since_flush = true;
        request = ucp_atomic_op_nbx(peer->ep, UCP_ATOMIC_OP_ADD, &slot->u.value, 1,
                                    peer->remote + at, peer->rkey, &param);
    } else {
        peer->put_since_flush = true;
        request = ucp_put_nbx(peer->ep, &slot->u.value, sizeof(slot->u.value), peer->remote + at,
                              peer->rkey, &param);
    }
    if (!UCS_PTR_IS_PTR(request))
        free_value(slot);
    return count(peer, request, op == EPA_SIGNAL_ADD ? "ucp_atomic_op_nbx" : "ucp_put_nbx");
}

/* ---- messages ----
 *
 * Over TCP, UCX sends a put as a message that the peer executes and acknowledges with another
 * message; a signal costs the same. A message of this file carries both and needs no
 * acknowledgement: quiet() asks each peer once, at the end of the stream. One stream carries both
 * kinds, and the peer executes them in order. */

static enum epa_status start_message(struct peer *peer, struct message message, const void *src,
                                     size_t bytes)
{
    struct ucx *u = peer->ucx;
    struct value *slot = u->free_value;
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = value_done,
        .user_data = slot,
    };
    ucs_status_ptr_t request;

    u->free_value = slot->next;
    slot->peer = peer;
    slot->u.message = message;
    peer->message_since_flush = true;
    request = ucp_am_send_nbx(peer->ep, MESSAGE_ID, &slot->u.message, sizeof(message), src, bytes,
                              &param);
    if (!UCS_PTR_IS_PTR(request))
        free_value(slot);
    return count(peer, request, "ucp_am_send_nbx");
}

static void store_value(char *base, uint64_t at, uint64_t value, enum epa_signal_op op)
{
    uint64_t *word = (uint64_t *)(void *)(base + at);

    /* Release: pairs with the acquire in poll_word() and read_signal(). A rank that reads the value
     * also sees all earlier stores and puts of this rank. */
    if (op == EPA_SIGNAL_ADD)
        __atomic_fetch_add(word, value, __ATOMIC_RELEASE);
    else
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* Receives a message. UCX calls it inside progress. Drops messages with invalid offsets. */
static ucs_status_t execute_message(void *arg, const void *header, size_t header_bytes, void *data,
                                    size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx *u = arg;
    const uint64_t region = u->region.bytes;
    struct message m;
    uint64_t word;
    char *to;

    if (header_bytes != sizeof(m) || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0)
        return UCS_OK;
    memcpy(&m, header, sizeof(m)); /* the header may be unaligned */
    if (m.at > region || bytes > region - m.at || (bytes > 0 && m.at < u->region.heap_at) ||
        m.signal_at > u->region.heap_at - sizeof(m.value) || m.signal_at % sizeof(m.value) != 0)
        return UCS_OK;
    to = u->region.heap + (m.at - u->region.heap_at);
    if (bytes == sizeof(word) && (uintptr_t)to % sizeof(word) == 0) {
        memcpy(&word, data, sizeof(word));
        store_value(to, 0, word,
                    EPA_SIGNAL_SET); /* an aligned word may be a signal (transport.h, `heap`) */
    } else if (bytes > 0) {
        memcpy(to, data, bytes);
    }
    if (m.op != 0)
        store_value(u->region.base, m.signal_at, m.value, (enum epa_signal_op)(m.op - 1));
    return UCS_OK;
}

ucs_status_t ucx_take_messages(struct ucx *u)
{
    const ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = MESSAGE_ID,
        .cb = execute_message,
        .arg = u,
    };

    return ucp_worker_set_am_recv_handler(u->worker, &param);
}

/* Flushes endpoints, not the worker: a flush of the worker waits for acknowledgements, which
 * messages do not have; a flush of an endpoint requests one. */
void ucx_flush_messages(struct ucx *u)
{
    for (uint32_t r = 0; r < u->base.size; r++) {
        struct peer *peer = &u->peer[r];
        const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                           UCP_OP_ATTR_FIELD_USER_DATA,
                                           .cb.send = put_done,
                                           .user_data = peer};

        if (peer->message_since_flush && peer->lost == UCS_OK)
            (void)count(peer, ucp_ep_flush_nbx(peer->ep, &param), "ucp_ep_flush_nbx");
    }
}

static enum epa_status start_signal(struct peer *peer, uint64_t at, uint64_t value,
                                    enum epa_signal_op op)
{
    const struct message message = {.signal_at = at, .value = value, .op = (uint64_t)op + 1};

    return peer->messages ? start_message(peer, message, NULL, 0)
                          : start_value(peer, at, value, op);
}

/* Orders a put that hardware executes and an addition that the peer's UCX executes. */
static enum epa_status flush_split(struct peer *peer, bool dirty)
{
    struct ucx *u = peer->ucx;

    if (!peer->split || !dirty)
        return EPA_OK;
    return wait_flushed(u, u->limit_ns);
}

enum epa_status ucx_raise(struct ucx *u, uint64_t at, uint64_t value, enum epa_signal_op op,
                          uint32_t number)
{
    struct peer *peer = &u->peer[number];
    enum epa_status status = EPA_OK;

    if (peer->map != NULL) {
        store_value(peer->map, at, value, op);
        return EPA_OK;
    }
    if (op == EPA_SIGNAL_ADD)
        status = flush_split(peer, peer->put_since_flush);
    if (status != EPA_OK)
        return status;
    ucx_lock(u);
    if (!has_room(u, peer, 1))
        status = EPA_AGAIN;
    else
        status = start_signal(peer, at, value, op);
    ucx_unlock(u);
    return status;
}

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
