/* Requests to UCX: puts, values of signals, and messages. */
#ifndef UCX_MESSAGES_H
#define UCX_MESSAGES_H

#include <string.h>

#include "state.h"

enum {
    STARTS = 64, /* operations between two calls of progress, which receives acknowledgements */
    MESSAGE_ID = 1,
    MESSAGE_MOST = 120 << 10, /* bytes of payload; with headers it fits a segment of region.c */
};

/* Completion callback. UCX calls it inside progress or inside the starting call, hence under the
 * lock. */
static inline void complete_request(struct peer *peer, void *request, ucs_status_t ucs)
{
    peer->ucx->outstanding--;
    if (ucs != UCS_OK)
        links_lose(peer, ucs);
    ucp_request_free(request);
}

static inline void put_done(void *request, ucs_status_t ucs, void *arg)
{
    complete_request(arg, request, ucs);
}

static inline void free_value(struct value *value)
{
    struct ucx *u = value->peer->ucx;

    value->next = u->free_value;
    u->free_value = value;
}

static inline void value_done(void *request, ucs_status_t ucs, void *arg)
{
    struct value *value = arg;

    complete_request(value->peer, request, ucs);
    free_value(value);
}

/* Returns true if `n` more operations may be started. */
static inline bool has_room(struct ucx *u, const struct peer *peer, uint32_t n)
{
    if (u->outstanding + n > u->config.outstanding || u->started >= STARTS)
        (void)ucx_progress(u);
    u->started += n;
    return u->outstanding + n <= u->config.outstanding && peer->lost == UCS_OK;
}

/* Counts a request that UCX did not complete at once. A failed endpoint is not an error yet: the
 * retry reaches progress(), which prefers the launcher's explanation. */
static inline enum epa_status count(struct peer *peer, ucs_status_ptr_t request, const char *what)
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
static inline enum epa_status start_ucx_put(struct peer *peer, uint64_t at, const void *src,
                                            size_t bytes)
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
static inline enum epa_status start_value(struct peer *peer, uint64_t at, uint64_t value,
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

static inline enum epa_status start_message(struct peer *peer, struct message message,
                                            const void *src, size_t bytes)
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

static inline void store_value(char *base, uint64_t at, uint64_t value, enum epa_signal_op op)
{
    uint64_t *word = (uint64_t *)(void *)(base + at);

    /* Release: pairs with the acquire in poll_word() and read_signal(). A rank that reads the value
     * also sees all earlier stores and puts of this rank. */
    if (op == EPA_SIGNAL_ADD)
        __atomic_fetch_add(word, value, __ATOMIC_RELEASE);
    else
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* Registers the handler that executes messages of peers. */
ucs_status_t ucx_take_messages(struct ucx *);
/* Starts a flush of the messages to all peers. */
void ucx_flush_messages(struct ucx *);

#endif
