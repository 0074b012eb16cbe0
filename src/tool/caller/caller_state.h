/* State that the files of this folder share. */
#ifndef CALLER_STATE_H
#define CALLER_STATE_H

#include <pthread.h>

#include <epa2a.h>

#include "caller/caller.h"

/* An object of the interface as an algorithm. */
struct caller_object {
    struct epa_algorithm base; /* first */
    struct caller *caller;
    uint32_t calls; /* of the interface in one iteration */
    /* As in caller.h; NULL: nothing to do. */
    enum epa_status (*complete)(struct caller_object *, struct epa_problem *, struct epa_error *);
    bool (*keeps_rows)(struct caller_object *, const struct epa_problem *); /* NULL: true */
};

struct caller {
    struct caller_params params;
    const struct experiment *x;
    struct epa2a_comm *comm;
    void *stream;        /* of the backend of the rank; NULL on hosts */
    struct text options; /* algorithm and its options */
    struct caller_object *object;
    struct epa_error failure; /* of the failed call, without a status */

    /* The watching thread ends waits in the library if the bootstrap of the rank is aborted. */
    bool watches;
    pthread_t watcher;
    pthread_mutex_t lock;
    pthread_cond_t wakes;
    bool ends; /* guarded by `lock` */
};

#endif
