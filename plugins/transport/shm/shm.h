/* One rank of the shm transport: what shm.c and limit.c share. */
#ifndef SHM_H
#define SHM_H

#include <pthread.h>

#include "segments.h"

enum failed_at {
    FAILED_NOWHERE,
    FAILED_SIGNAL,
    FAILED_BARRIER,
    FAILED_RESET,
    FAILED_PEAK
};

struct failure {
    enum failed_at at;
    enum epa_status status;
    enum epa_compare compare;
    uint32_t signal, peer; /* peer: of a barrier, the one that is waited for */
    uint64_t want, seen, waited_ns;
    uint32_t missing, first_missing; /* barrier: ranks that had not come, and one of them */
};

struct shm {
    struct epa_transport base; /* first: a pointer to it is one to all of this */
    const struct epa_bootstrap *boot;
    struct epa_backend *backend; /* NULL: nobody gave one, and limit() works alone */
    struct segments segments;
    struct peer *peer; /* segments.peer */
    char **peer_heap;
    uint32_t burst;          /* polls between two looks at the clock and at `aborted` */
    uint64_t spin_ns;        /* how long wait() keeps the core to itself */
    uint64_t barriers;       /* begun by this rank */
    uint64_t turns, asked;   /* of limit(), the same on all ranks */
    pthread_mutex_t failing; /* several threads may fail at once */
    struct failure failure;
};

/* Own lines of the transport, behind the signals. */
enum { LINE_PING, LINE_ENOUGH, LINE_ENOUGH_TOO, OWN_LINES };

/* Waits for a word of this rank or, for a barrier, of another; what went wrong is left in
 * `failure`, but for `at` and `signal`, which the caller has set. */
enum epa_status shm_await(const struct shm *, const uint64_t *word, enum epa_compare,
                          uint64_t want, uint64_t timeout_ns, struct failure *);
void shm_remember(struct shm *, const struct failure *);

enum epa_status shm_peak(struct epa_transport *, uint64_t scratch, struct epa_peak *out);

#endif
