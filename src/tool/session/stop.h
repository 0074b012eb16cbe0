/* Stop rules of bench, which decide from samples alone. */
#ifndef STOP_H
#define STOP_H

#include <stdbool.h>

#include "config/experiment.h"

enum stop_reason {
    STOP_NOT, /* continue; in a result: the run ended early, or took no samples */
    STOP_ITERATIONS,
    STOP_CI95,
    STOP_TIME,
};

struct stop {
    const struct bench_options *options;
    double *ns;    /* [bench.iterations]: samples in any order; owned */
    uint64_t n;    /* number of samples in ns */
    uint64_t next; /* the next evaluation takes place at this number of samples */
};

/* Returns true if a rule besides the number of samples is set. */
bool stop_is_on(const struct bench_options *);

enum epa_status stop_init(struct stop *, const struct bench_options *, struct epa_error *);
void stop_finish(struct stop *);

/* Evaluates ns[0..n), measured in elapsed_ns, and sets the number of samples of the next evaluation:
 * early enough for max_time, and at a quarter more samples for ci95, so that evaluations are rare. */
enum stop_reason stop_poll(struct stop *, uint64_t elapsed_ns);

/* "iterations", "ci95", "time"; NULL: STOP_NOT. */
const char *stop_name(enum stop_reason);
/* Returns the reason of that name; STOP_NOT: unknown name. */
enum stop_reason stop_reason(const char *name);

#endif
