/* Descriptors that kernels write for ranks of other nodes, and the ring in host memory that brings
 * them to a thread of this rank, which hands them to a transport between hosts. Many threads write,
 * one reads.
 *
 * Writers take tickets 0, 1, 2, ... The one with ticket t waits until t - taken < slots, fills
 * slot t % slots, and at last stores turn = t + 1. The reader finds its next slot written once turn
 * is taken + 1, uses it, and then stores taken + 1: so a full ring makes writers wait, and the
 * order of tickets is the order of the ring. A slot has room for the data of a small put
 * (EPA_RING_INLINE), which the writer stores there before `turn`: they need no copy engine.
 *
 * Towards one peer, what the descriptors of a rank ask for is done as transport.h says of put,
 * put_signal, signal and fence; and a signal comes after all that was asked for before it. */
#ifndef EPA2A_RING_H
#define EPA2A_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* What is asked for: a put, a signal after it, or one of them. Bits from EPA_RING_OWN on are the
 * transport's. */
enum epa_ring_op {
    EPA_RING_PUT = 1u << 0,
    EPA_RING_SET = 1u << 1,   /* the signal is set to value */
    EPA_RING_ADD = 1u << 2,   /* value is added to it */
    EPA_RING_FENCE = 1u << 3, /* alone: as fence() */
    EPA_RING_INLINE =
        1u << 4, /* of a put of one row: its data are in the slot's payload, not src */
    EPA_RING_OWN = 1u << 8,
};

enum { EPA_RING_PAYLOAD = 4096 }; /* bytes of a put that may be inline */

struct epa_descriptor {
    uint64_t turn; /* written last */
    uint32_t op, peer;
    uint64_t dst;    /* offset in the peer's heap */
    const void *src; /* in this rank's memory; as it is until the peer has it */
    uint64_t bytes, value;
    uint32_t signal;
    uint32_t rows;   /* a put of so many rows of `bytes` each; 0 is 1 */
    uint64_t stride; /* from one row to the next, here and at the peer */
};

/* To kernels, by value. Pointers are device pointers. */
struct epa_device_ring {
    struct epa_descriptor *slot; /* [slots] in host memory; NULL: there is no other node */
    const uint64_t *taken;       /* in host memory */
    unsigned long long *ticket;  /* in this GPU's memory: the next */
    uint64_t *known;             /* same: `taken` when a writer last read it */
    char *payload;               /* [slots][EPA_RING_PAYLOAD] in host memory */
    uint32_t slots;              /* a power of two */
};

/* The reader's end, and writers on the host. */
struct epa_host_ring {
    struct epa_descriptor *slot;
    uint64_t *taken;
    uint64_t *ticket; /* of writers on the host */
    char *payload;    /* as above; NULL: nothing is inline */
    uint32_t slots;
};

/* Of an inline put the data are at src. False: it is full, and nothing was written. Any number of
 * threads. */
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

/* The next, with *payload if it is inline; they stay until epa_ring_take(). False: nothing is
 * there. One thread. */
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

/* What epa_ring_peek() gave is done with: its slot may be written again. */
static inline void epa_ring_take(const struct epa_host_ring *r)
{
    /* Release: pairs with the acquire of writers. */
    __atomic_store_n(r->taken, __atomic_load_n(r->taken, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
}

#endif
