/* For kernels: puts and signals to ranks of other nodes, whose view->peer_heap[] is NULL
 * (epa2a/ring.h). Within a node kernels store and signal through device.cuh. */
#ifndef EPA2A_RING_CUH
#define EPA2A_RING_CUH

#include <epa2a/device.cuh>
#include <epa2a/ring.h>

EPA_DEV bool epa_dev_is_far(const epa_device_view &v, uint32_t peer)
{
    return v.peer_heap[peer] == NULL;
}

enum { EPA_DEV_RING_SMALL = 128 }; /* most bytes that a single thread copies to the ring */

/* Takes the next ticket and waits until its slot is free. Returns false after the time-out or once
 * a rank has failed. */
EPA_DEV bool epa_dev_ring_ticket(const epa_device_view &v, const epa_device_ring &r,
                                 uint64_t timeout_ns, struct epa_dev_wait w, uint64_t *out)
{
    uint64_t ticket = atomicAdd(r.ticket, 1ull), taken = epa_dev_load_acquire(r.known);
    struct epa_dev_poll poll = {};

    *out = ticket;
    if (ticket - taken < r.slots)
        return true;
    /* Acquire: pairs with the release of epa_ring_take(). */
    while (ticket - (taken = epa_dev_load_acquire(r.taken)) >= r.slots)
        if (epa_dev_poll_expired(v, &poll, timeout_ns, w, taken, ticket + 1 - r.slots))
            return false;
    /* With several writers any order is safe: no value is too high. */
    epa_dev_store_release(r.known, taken);
    return true;
}

/* Copies the share of thread `lane` of `lanes` to a slot's payload. `from` is a multiple of 16. */
EPA_DEV void epa_dev_ring_payload(const epa_device_ring &r, uint64_t ticket, const char *from,
                                  uint32_t bytes, uint32_t lane, uint32_t lanes)
{
    char *to = r.payload + (ticket & (r.slots - 1)) * EPA_RING_PAYLOAD;

    for (uint32_t at = lane * 16; at + 16 <= bytes; at += lanes * 16) {
        uint64_t first, second;

        epa_dev_load_pair(from + at, &first, &second);
        epa_dev_store_pair(to + at, first, second);
    }
    for (uint32_t at = bytes / 16 * 16 + lane; at < bytes; at += lanes)
        to[at] = *(const volatile char *)(from + at);
}

/* Returns the bytes that a descriptor sends. As everywhere in verify, a signal counts 8 bytes. */
EPA_DEV uint64_t epa_dev_descriptor_bytes(const struct epa_descriptor &what)
{
    uint64_t rows = what.rows > 1 ? what.rows : 1;

    return ((what.op & EPA_RING_PUT) != 0 ? rows * what.bytes : 0) +
           ((what.op & (EPA_RING_SET | EPA_RING_ADD)) != 0 ? sizeof(what.value) : 0);
}

EPA_DEV void epa_dev_ring_publish(const epa_device_ring &r, uint64_t ticket,
                                  const struct epa_descriptor &what, bool is_inline)
{
    struct epa_descriptor *to = r.slot + (ticket & (r.slots - 1));

    to->op = what.op | (is_inline ? EPA_RING_INLINE : 0u);
    to->peer = what.peer;
    to->dst = what.dst;
    to->src = what.src;
    to->bytes = what.bytes;
    to->value = what.value;
    to->signal = what.signal;
    to->rows = what.rows;
    to->stride = what.stride;
    epa_dev_count_far(epa_dev_descriptor_bytes(what));
    epa_dev_store_release(&to->turn, ticket + 1); /* pairs with the acquire in epa_ring_peek() */
}

EPA_DEV bool epa_dev_ring_fits(const struct epa_descriptor &what, uint32_t most)
{
    return (what.op & EPA_RING_PUT) != 0 && what.rows <= 1 && what.bytes > 0 &&
           what.bytes <= most && (uint64_t)what.src % 16 == 0;
}

/* Writes a descriptor to the ring. Release: all stores and observations of this thread precede the
 * operation, so a put sends the data of a whole block if the block has synchronized before. Returns
 * false after the time-out or once a rank has failed: the kernel must exit; `w` describes the wait
 * for a full ring. One thread. */
EPA_DEV bool epa_dev_ask_far(const epa_device_view &v, const epa_device_ring &r,
                             const struct epa_descriptor &what, uint64_t timeout_ns,
                             struct epa_dev_wait w)
{
    bool is_inline = epa_dev_ring_fits(what, EPA_DEV_RING_SMALL);
    uint64_t ticket;

    if (!epa_dev_ring_ticket(v, r, timeout_ns, w, &ticket))
        return false;
    if (is_inline)
        epa_dev_ring_payload(r, ticket, (const char *)what.src, (uint32_t)what.bytes, 0, 1);
    epa_dev_ring_publish(r, ticket, what, is_inline);
    return true;
}

/* The same for a whole warp, with the same arguments and result in each lane: a put of up to
 * EPA_RING_PAYLOAD bytes leaves without a copy engine. */
EPA_DEV bool epa_dev_ask_far_warp(const epa_device_view &v, const epa_device_ring &r,
                                  const struct epa_descriptor &what, uint64_t timeout_ns,
                                  struct epa_dev_wait w)
{
    bool is_inline = epa_dev_ring_fits(what, EPA_RING_PAYLOAD), ok = true;
    uint32_t lane = threadIdx.x % 32;
    uint64_t ticket = 0;

    if (lane == 0)
        ok = epa_dev_ring_ticket(v, r, timeout_ns, w, &ticket);
    if (!__shfl_sync(0xffffffffu, (int)ok, 0))
        return false;
    ticket = __shfl_sync(0xffffffffu, (unsigned long long)ticket, 0);
    if (is_inline)
        epa_dev_ring_payload(r, ticket, (const char *)what.src, (uint32_t)what.bytes, lane, 32);
    __syncwarp();
    if (lane == 0)
        epa_dev_ring_publish(r, ticket, what, is_inline);
    return true;
}

/* The functions below correspond to put(), put_signal(), signal() and fence() of transport.h; `src`
 * is in this rank's memory. */
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
