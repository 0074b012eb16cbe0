/* Signals to peers. */
#ifndef UCX_RAISE_H
#define UCX_RAISE_H

#include "messages.h"
#include "waits.h"

static inline enum epa_status start_signal(struct peer *peer, uint64_t at, uint64_t value,
                                           enum epa_signal_op op)
{
    const struct message message = {.signal_at = at, .value = value, .op = (uint64_t)op + 1};

    return peer->messages ? start_message(peer, message, NULL, 0)
                          : start_value(peer, at, value, op);
}

/* Orders a put that hardware executes and an addition that the peer's UCX executes. */
static inline enum epa_status flush_split(struct peer *peer, bool dirty)
{
    struct ucx *u = peer->ucx;

    if (!peer->split || !dirty)
        return EPA_OK;
    return wait_flushed(u, u->limit_ns);
}

/* Raises a signal or an internal word at an offset of the region. Returns EPA_AGAIN like the
 * functions of the table. */
enum epa_status ucx_raise(struct ucx *, uint64_t at, uint64_t value, enum epa_signal_op,
                          uint32_t peer);

#endif
