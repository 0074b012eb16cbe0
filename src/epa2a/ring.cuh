/* For kernels: puts and signals to ranks of other nodes, whose view->peer_heap[] is NULL
 * (epa2a/ring.h). Within a node kernels store and signal by device.cuh. */
#ifndef EPA2A_RING_CUH
#define EPA2A_RING_CUH

#include <epa2a/device.cuh>
#include <epa2a/ring.h>

EPA_DEV bool epa_dev_is_far(const epa_device_view &v, uint32_t peer)
{
    return v.peer_heap[peer] == NULL;
}

/* Release: all stores of this thread, and all that it has observed, come before what is asked for;
 * so data that a block has stored are put once it has synchronized. False after the time-out or
 * once a rank has failed: the kernel must exit; `w` says of what a full ring keeps it. One
 * thread. */
EPA_DEV bool epa_dev_ask_far(const epa_device_view &v, const epa_device_ring &r,
                             const struct epa_descriptor &what, uint64_t timeout_ns,
                             struct epa_dev_wait w)
{
    uint64_t ticket = atomicAdd(r.ticket, 1ull), taken = epa_dev_load_acquire(r.known);
    struct epa_dev_poll poll = {};
    struct epa_descriptor *to = r.slot + (ticket & (r.slots - 1));

    if (ticket - taken >= r.slots) {
        /* Acquire: pairs with the release of epa_ring_read(). */
        while (ticket - (taken = epa_dev_load_acquire(r.taken)) >= r.slots)
            if (epa_dev_poll_expired(v, &poll, timeout_ns, w, taken, ticket + 1 - r.slots))
                return false;
        epa_dev_store_release(r.known, taken); /* of several the last stays: none is too high */
    }
    to->op = what.op;
    to->peer = what.peer;
    to->dst = what.dst;
    to->src = what.src;
    to->bytes = what.bytes;
    to->value = what.value;
    to->signal = what.signal;
    to->rows = what.rows;
    to->stride = what.stride;
    epa_dev_store_release(&to->turn, ticket + 1);
    return true;
}

/* As put() of transport.h; `src` is in this rank's memory. The others likewise. */
EPA_DEV bool epa_dev_far_put(const epa_device_view &v, const epa_device_ring &r, uint64_t dst,
                             const void *src, uint64_t bytes, uint32_t peer, uint64_t timeout_ns,
                             struct epa_dev_wait w)
{
    return epa_dev_ask_far(v, r, {0, EPA_RING_PUT, peer, dst, src, bytes, 0, 0, 0, 0}, timeout_ns,
                           w);
}

EPA_DEV bool epa_dev_far_put_signal(const epa_device_view &v, const epa_device_ring &r,
                                    uint64_t dst, const void *src, uint64_t bytes, uint32_t signal,
                                    uint64_t value, uint32_t peer, uint64_t timeout_ns,
                                    struct epa_dev_wait w)
{
    return epa_dev_ask_far(
        v, r, {0, EPA_RING_PUT | EPA_RING_SET, peer, dst, src, bytes, value, signal, 0, 0},
        timeout_ns, w);
}

EPA_DEV bool epa_dev_far_signal(const epa_device_view &v, const epa_device_ring &r, uint32_t signal,
                                uint64_t value, uint32_t peer, uint64_t timeout_ns,
                                struct epa_dev_wait w)
{
    return epa_dev_ask_far(v, r, {0, EPA_RING_SET, peer, 0, NULL, 0, value, signal, 0, 0},
                           timeout_ns, w);
}

EPA_DEV bool epa_dev_far_fence(const epa_device_view &v, const epa_device_ring &r, uint32_t peer,
                               uint64_t timeout_ns, struct epa_dev_wait w)
{
    return epa_dev_ask_far(v, r, {0, EPA_RING_FENCE, peer, 0, NULL, 0, 0, 0, 0, 0}, timeout_ns, w);
}

#endif
