/* Messages of peers: their receipt and their flush. */
#include "messages.h"

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
