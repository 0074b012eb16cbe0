/* Progress of a running command: the progress line, the state of ranks at SIGUSR1, and the status
 * page that `epa2a status` reads. The launching thread updates them between two polls of its
 * ranks. */
#ifndef LIVE_H
#define LIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/cli.h"
#include "cli/documents.h"

struct session;

struct live;

/* The current run. */
struct live_run {
    const char *file, *label;    /* label "": none */
    uint32_t number, of;         /* from 1 */
    bool reports;                /* this process reports the results */
    struct documents *documents; /* written during the run if documents_are_due() */
};

struct live *live_create(const struct cli *);
void live_destroy(struct live *);

/* Returns the status page for session_create_on(); NULL: none. */
struct status_page *live_status_page(const struct live *);

/* Calls before and after session_run(). stop_fd is a signalfd. The poll function reads it only
 * while ranks are stopping; the second signal then ends the wait. */
void live_begin(struct live *, struct session *, const struct live_run *, int stop_fd);
void live_end(struct live *, struct session *);

/* Returns the last signal that was read between live_begin() and live_end(), or 0. */
int live_stop_signal(const struct live *);

#endif
