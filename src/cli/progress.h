/* The line at the bottom of a terminal that says how far a command is. It is drawn over in
 * place and taken away before anything else is written; files and pipes never see it. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

enum progress_mode { PROGRESS_AUTO, PROGRESS_ALWAYS, PROGRESS_NEVER };

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

struct progress {
    bool on, shown;
    int file;
    uint64_t drawn_ns;
};

/* Auto: if `file` is a terminal that is not dumb, and ours to write to. */
void progress_init(struct progress *out, enum progress_mode, int file);
/* Whether the line is old enough to be drawn again, at `now` (CLOCK_MONOTONIC). */
bool progress_due(const struct progress *, uint64_t now_ns);
void progress_draw(struct progress *, const struct progress_facts *, uint64_t now_ns);
/* Takes the line away, if there is one. */
void progress_clear(struct progress *);

#endif
