/* What a command shows of itself while it runs: the progress line, where ranks are at SIGUSR1,
 * and the status page that `epa2a status` reads. All of it is done by the thread that launches,
 * between two looks at its ranks. */
#ifndef LIVE_H
#define LIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include "cli/cli.h"
#include "session/session.h"

struct live;

/* What is under way. */
struct live_run {
    const char *file, *label; /* label "": none */
    uint32_t number, of;      /* from 1 */
    bool reports;             /* this process is the one that says what comes out */
};

/* From here on SIGUSR1 does not end the process, but is answered. */
void live_catch(void);

struct live *live_create(const struct cli *);
void live_destroy(struct live *);

/* For session_create_on(); NULL: there is none. */
struct status_page *live_status_page(const struct live *);

/* Around session_run(). stop_fd: a signalfd, which is read at the second signal alone, or by
 * live_stop_signal(). */
void live_begin(struct live *, struct session *, const struct live_run *, int stop_fd);
void live_end(struct live *, struct session *);

/* The signal that was read in between, or 0. */
int live_stop_signal(const struct live *);

/* ---- the progress line ---- */

/* What the line says. */
struct progress_facts {
    const char *verb, *label;
    uint32_t number, of; /* runs */
    uint64_t done, warmup, iterations;
    double median_ns, left_s; /* NAN: not known yet */
    bool at_most;             /* left_s: a rule may end it sooner */
    bool set_up;              /* iterations have not begun */
};

/* The line, in so many columns at most, without a line's end. Control characters become ?,
 * and so does what is no UTF-8. */
void progress_line(const struct progress_facts *, uint32_t columns, struct text *out);

#endif
