/* When bench has samples enough: bench.ci95, min_iterations, min_time, max_time. The rule
 * sees the headline of each sample, the slowest rank's total, and the time that rank 0 has
 * been taking samples for: the same numbers on all ranks, so that all decide alike without
 * asking. */
#ifndef STOP_H
#define STOP_H

#include <stdbool.h>

#include "config/experiment.h"

enum stop_reason {
    STOP_NOT, /* go on; of a result: it ended early, or takes no samples */
    STOP_ITERATIONS,
    STOP_CI95,
    STOP_TIME,
};

struct stop {
    const struct bench_options *options;
    double *ns, *sorted; /* [bench.iterations]; owned */
    uint64_t n;          /* of them */
    uint64_t next;       /* the rule looks again once there are so many */
};

/* Whether there is a rule but the number of samples. */
bool stop_is_on(const struct bench_options *);

enum epa_status stop_init(struct stop *, const struct bench_options *, struct epa_error *);
void stop_finish(struct stop *);

/* Looks at ns[0..n), which took elapsed_ns, and says when to look again: soon enough for
 * max_time and at a quarter more samples for ci95, so that looking stays rare. */
enum stop_reason stop_poll(struct stop *, uint64_t elapsed_ns);

/* Width of the median's 95 % interval as a part of the median; infinite where there is
 * none. Sorts. */
double stop_width(double *ns, uint64_t n);

/* "iterations", "ci95", "time"; NULL: STOP_NOT. */
const char *stop_name(enum stop_reason);

#endif
