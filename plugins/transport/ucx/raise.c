/* Signals to peers. */
#include "raise.h"

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
