/* Runs one experiment. All commands that run experiments call run_experiment(): run, bench, verify,
 * compare --run and tune. */
#ifndef RUN_H
#define RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "result/result.h"

struct alternation; /* session/alternation.h */
struct status_page; /* session/status.h */

/* Observer of a run. The thread that launches the ranks calls its functions. {0}: no observer. */
struct run_observer {
    struct status_page *page; /* memory of the ranks for `epa2a status`; NULL: anonymous memory */
    void (*begin)(void *arg, struct session *); /* before the ranks start; or NULL */
    /* After the ranks have ended; returns the last stop signal that the observer has read, or 0.
     * Set with `begin`. */
    int (*end)(void *arg, struct session *);
    void *arg;
};

/* How to run. {.machine = &machine, .stop_fd = -1}: a run that measures everything and that no signal
 * stops. */
struct run_how {
    struct session
        *session; /* from run_check(), and owned by the run; NULL: the run checks itself */
    enum bench_scope scope;              /* measurements of bench */
    struct alternation *alternation;     /* with another bench; NULL: the bench runs alone */
    uint32_t side;                       /* side in `alternation`: 0 or 1 */
    bool force;                          /* overwrite the files of a profile */
    bool skips;                          /* the command has several runs, see struct result */
    const struct machine_facts *machine; /* for warnings of the result */
    int stop_fd;                         /* signalfd of signals that stop the run; -1: none */
};

/* Plans an experiment, checks configuration, plugins, memory and the files of its profile, and maps
 * the memory of its ranks. The caller passes the session to run_experiment() or destroys it. */
enum epa_status run_check(const struct experiment *, enum verb, struct status_page *, bool force,
                          struct session **out, struct epa_error *);

/* Runs an experiment, writes the files of its profile, and computes the figures. `observer` may be
 * NULL. The caller calls result_finish(). */
struct result run_experiment(const struct experiment *, enum verb, const struct run_how *,
                             const struct run_observer *observer);

/* Frees a result. Returns false if threads that cannot be ended still use the experiment, which the
 * caller keeps until the process ends. */
bool result_finish(struct result *);

#endif
