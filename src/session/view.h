/* A transport as an algorithm is shown it while it is verified: puts and signals to other ranks are
 * counted, and none may go outside what its plan asked for. */
#ifndef SESSION_VIEW_H
#define SESSION_VIEW_H

#include <epa2a/transport.h>

struct view {
    struct epa_transport base; /* first: what the algorithm is given */
    struct epa_transport *inner;
    char **peer_heap;
    /* The algorithm's own part. */
    uint64_t heap_at, heap_bytes;
    uint32_t signal_at, signals;
    uint64_t bytes;  /* to other ranks; a signal is a word */
    uint64_t newest; /* the largest value that a signal was set to */
    uint32_t failed; /* `error` is written */
    struct epa_error error;
};

/* Of a transport on hosts, which it closes. */
enum epa_status view_create(struct epa_transport *inner, struct view **out, struct epa_error *);

/* Where the algorithm's part is: nothing else may be put to or signalled. */
void view_limit(struct view *, uint64_t heap_at, uint64_t heap_bytes, uint32_t signal_at,
                uint32_t signals);

/* From here on loads and stores reach nobody. */
void view_put_only(struct view *);

#endif
