/* The transport of an algorithm under verification: checks and counts puts and signals, and forwards
 * each call to the inner transport. */
#ifndef VIEW_H
#define VIEW_H

#include <epa2a/transport.h>

#include "session/rank.h"

struct view {
    struct epa_transport base; /* first member: the transport of the algorithm */
    struct epa_transport *inner;
    char **peer_heap;
    /* The algorithm's part of heap and signals. */
    uint64_t heap_at, heap_bytes;
    uint32_t signal_at, signals;
    uint64_t bytes;  /* put to other ranks; a signal counts 8 bytes */
    uint64_t newest; /* largest value of a signal so far */
    uint32_t failed; /* `error` is set */
    struct epa_error error;
};

/* Puts a view in front of a host transport, unless it exists, and sets the algorithm's part to the
 * sizes of this plan. The view closes the inner transport. */
struct view *insert_view(struct rank *, const struct epa_footprint *);

/* Removes the mapped heaps of peers, so that only puts reach them. */
void view_put_only(struct view *);

#endif
