/* Threads that share the work of one call: a rank has one thread, and other cores of its host may be idle
 * while it checks outputs. */
#ifndef CREW_H
#define CREW_H

#include <stdint.h>

struct crew {
    /* Cores of the additional threads, since a rank may be pinned to one core. cores 0: the threads keep
     * the affinity of the caller. */
    const int32_t *core;
    uint32_t cores;
    uint32_t
        threads; /* maximum number of threads, the caller included; 0 and 1: the caller alone */
};

/* Calls fn(arg, worker) on up to crew->threads threads and returns after the last call. Worker 0 is the
 * caller. The system may refuse threads, and a late thread may find no work: fn takes parts of the work
 * from a counter, until none is left. */
void crew_run(const struct crew *, void (*fn)(void *arg, uint32_t worker), void *arg);

#endif
