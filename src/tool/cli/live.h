/* Progress of a running command: the progress line, the state of ranks at SIGUSR1, and the status
 * page that `epa2a status` reads. The launching thread updates them between two polls of its
 * ranks. */
#ifndef LIVE_H
#define LIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/documents.h"
#include "run/run.h"

struct live;

/* The current run. */
struct live_run {
    const char *file, *label;    /* label "": none */
    uint32_t number, of;         /* from 1 */
    bool reports;                /* this process reports the results */
    struct documents *documents; /* written during the run if documents_are_due(); or NULL */
    int stop_fd; /* signalfd. The poll function reads it only while ranks are stopping; the second
                  * signal then ends the wait. */
};

/* shows_line: draw the progress line. */
struct live *live_create(bool shows_line);
void live_destroy(struct live *);

/* Returns the status page for run_check(); NULL: none. */
struct status_page *live_status_page(const struct live *);

/* Returns the observer of a run of run_experiment(). */
struct run_observer live_observe(struct live *, const struct live_run *);

#endif
