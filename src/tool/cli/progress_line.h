/* The progress line on standard error. */
#ifndef PROGRESS_LINE_H
#define PROGRESS_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/cli.h"

struct text;

/* Returns true for PROGRESS_ALWAYS, and for PROGRESS_AUTO without --quiet on a terminal that is not
 * dumb. */
bool progress_is_on(const struct cli *);
/* Replaces the progress line. Returns false if this process is in the background of the terminal. */
EPA_PRINTF(1, 2)
bool progress_show(const char *fmt, ...);
void progress_clear(void);

/* Returns the width of the terminal in columns. */
uint32_t progress_columns(void);

/* The content of the progress line. */
struct progress_facts {
    const char *verb, *label;
    uint32_t number, of; /* runs */
    uint64_t done, warmup, iterations;
    double median_ns, left_s; /* NAN: not known yet */
    bool at_most;             /* left_s is an upper bound: a stop rule may end the run earlier */
    bool set_up;              /* iterations have not begun */
};

/* Formats the line in at most `columns` columns, without a newline. Control characters and invalid
 * UTF-8 become '?'. */
void progress_line(const struct progress_facts *, uint32_t columns, struct text *out);

#endif
