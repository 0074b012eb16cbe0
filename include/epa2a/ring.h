/* Descriptors that kernels write for ranks of other nodes, and the ring in host memory that carries
 * them to a thread of this rank. This thread passes the descriptors to a transport between hosts.
 * Many threads write, one thread reads.
 *
 * Writers take tickets 0, 1, 2, ... The writer with ticket t waits until t - taken < slots, fills
 * slot t % slots, and finally stores turn = t + 1. The reader finds its next slot written once turn
 * is taken + 1, uses the slot, and then stores taken + 1. So a full ring makes writers wait, and
 * the order of tickets is the order of the ring. A slot has room for the data of a small put
 * (EPA_RING_INLINE). The writer stores these data before `turn`: they need no copy engine.
 *
 * Towards one peer, the descriptors of a rank are executed with the semantics of put, put_signal,
 * signal and fence in transport.h, except that a signal follows all earlier descriptors. */
#ifndef EPA2A_RING_H
#define EPA2A_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Operation of a descriptor: a put, a signal after the put, or one of them. Bits from EPA_RING_OWN
 * on belong to the transport. */
enum epa_ring_op {
    EPA_RING_PUT = 1u << 0,
    EPA_RING_SET = 1u << 1,    /* set the signal to value */
    EPA_RING_ADD = 1u << 2,    /* add value to the signal */
    EPA_RING_FENCE = 1u << 3,  /* without other bits: fence() */
    EPA_RING_INLINE = 1u << 4, /* put of one row: the data are in the slot's payload, not at src */
    EPA_RING_OWN = 1u << 8,
};

enum { EPA_RING_PAYLOAD = 4096 }; /* largest inline put in bytes */

struct epa_descriptor {
    uint64_t turn; /* written last */
    uint32_t op, peer;
    uint64_t dst;    /* offset in the peer's heap */
    const void *src; /* in this rank's memory; unchanged until the peer has the data */
    uint64_t bytes, value;
    uint32_t signal;
    uint32_t rows;   /* number of rows of `bytes` each in a put; 0 is the same as 1 */
    uint64_t stride; /* bytes from one row to the next, here and at the peer */
};

/* Passed to kernels by value. Pointers are device pointers. */
struct epa_device_ring {
    struct epa_descriptor *slot; /* [slots] in host memory; NULL: all ranks are on this node */
    const uint64_t *taken;       /* in host memory */
    unsigned long long *ticket;  /* next ticket, in this GPU's memory */
    uint64_t *known;             /* same memory: last value of `taken` that a writer read */
    char *payload;               /* [slots][EPA_RING_PAYLOAD] in host memory */
    uint32_t slots;              /* a power of two */
};

/* The reader's end of the ring, also used by writers on the host. */
struct epa_host_ring {
    struct epa_descriptor *slot;
    uint64_t *taken;
    uint64_t *ticket; /* next ticket of writers on the host */
    char *payload;    /* [slots][EPA_RING_PAYLOAD]; NULL: no put is inline */
    uint32_t slots;
};

/* Writes a descriptor. The data of an inline put are at src. Returns false if the ring is full;
 * nothing is written then. Any number of threads. */
static inline bool epa_ring_write(const struct epa_host_ring *r, const struct epa_descriptor *what)
{
    uint64_t ticket = __atomic_load_n(r->ticket, __ATOMIC_RELAXED);
    struct epa_descriptor *to;
    uint64_t at;

    do {
        /* Acquire: pairs with the release in epa_ring_take(): the reader is done with the slot. */
        if (ticket - __atomic_load_n(r->taken, __ATOMIC_ACQUIRE) >= r->slots)
            return false;
    } while (!__atomic_compare_exchange_n(r->ticket, &ticket, ticket + 1, true, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    at = ticket & (r->slots - 1);
    if ((what->op & EPA_RING_INLINE) != 0)
        memcpy(r->payload + at * EPA_RING_PAYLOAD, what->src, what->bytes);
    to = &r->slot[at];
    to->op = what->op;
    to->peer = what->peer;
    to->dst = what->dst;
    to->src = what->src;
    to->bytes = what->bytes;
    to->value = what->value;
    to->signal = what->signal;
    to->rows = what->rows;
    to->stride = what->stride;
    /* Release: pairs with the acquire in epa_ring_peek(). */
    __atomic_store_n(&to->turn, ticket + 1, __ATOMIC_RELEASE);
    return true;
}

/* Returns the next descriptor, and *payload if it is inline; both are valid until epa_ring_take().
 * Returns false if the ring is empty. One thread. */
static inline bool epa_ring_peek(const struct epa_host_ring *r, struct epa_descriptor *out,
                                 const char **payload)
{
    uint64_t taken = __atomic_load_n(r->taken, __ATOMIC_RELAXED), at = taken & (r->slots - 1);
    const struct epa_descriptor *from = &r->slot[at];

    /* Acquire: pairs with the release of the writer. */
    if (__atomic_load_n(&from->turn, __ATOMIC_ACQUIRE) != taken + 1)
        return false;
    *out = *from;
    *payload = r->payload != NULL ? r->payload + at * EPA_RING_PAYLOAD : NULL;
    return true;
}

/* Releases the slot of epa_ring_peek(): writers may fill it again. */
static inline void epa_ring_take(const struct epa_host_ring *r)
{
    /* Release: pairs with the acquire of writers. */
    __atomic_store_n(r->taken, __atomic_load_n(r->taken, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
}

#endif
