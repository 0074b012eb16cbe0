/* Prints the warnings of one run, or of several runs by their kinds. */
#ifndef WARNING_LINES_H
#define WARNING_LINES_H

#include <stdio.h>

#include "result/result.h"

/* Warnings of several runs. Warnings that differ only in numbers are one kind and printed once. */
struct warnings {
    struct warning_kind *kind; /* [n], owned; initially {0} */
    uint32_t n, runs;
};

/* Prints warnings, one on each line, with the prefix "warning: ". */
void report_warnings(FILE *, const struct run_figures *);

/* Adds the warnings of a run. `who` is the name of the run. */
void warnings_add(struct warnings *, const char *who, const struct run_figures *);
void warnings_print(FILE *, const struct warnings *);
void warnings_free(struct warnings *);

#endif
