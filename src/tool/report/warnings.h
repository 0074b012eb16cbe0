/* Warnings about results. */
#ifndef WARNINGS_H
#define WARNINGS_H

#include "report/result.h"
#include "base/json.h"

/* Warnings of several runs. Warnings that differ only in numbers are one kind and printed once. */
struct warnings {
    json_t *kinds; /* initially {0}; owned */
    uint32_t runs;
};

/* Fills "warnings". */
void result_warn(json_t *result, const struct run_figures *, const struct session *);

/* Prints warnings, one on each line, with the prefix "warning: ". */
void report_warnings(FILE *, const json_t *result);

/* Adds the warnings of a run. `who` is the name of the run. */
void warnings_add(struct warnings *, const char *who, const json_t *result);
void warnings_print(FILE *, const struct warnings *);

#endif
