/* What an iteration took: the chain of work and signals that ends where a stage ended last. */
#ifndef TRACE_PATH_H
#define TRACE_PATH_H

#include "trace/read.h"

/* The events of one iteration, by time. */
struct path_round {
    int64_t iteration;
    const struct trace_item *const *item;
    size_t n;
};

struct path_step {
    uint32_t rank, from; /* from: of a signal, who gave it; else `rank` */
    const char *name;
    int64_t ns;
};

enum { PATH_STEPS = 256 };

struct path {
    const struct trace_item *stage;    /* of the rank that ended it last */
    struct path_step step[PATH_STEPS]; /* in order of time */
    uint32_t n;
};

/* Of stage `name`; false: it is not in this iteration. */
bool path_find(const struct path_round *, const char *name, struct path *out);

#endif
