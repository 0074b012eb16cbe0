/* Warnings about results. */
#ifndef WARNINGS_H
#define WARNINGS_H

#include "report/result.h"
#include "report/summary.h"

/* Fills "warnings". */
void result_warn(json_t *result, const struct session *);

/* Prints warnings, one on each line, with the prefix "warning: ". */
void report_warnings(FILE *, const json_t *result);

/* Adds the warnings of a run. `who` is the name of the run. */
void warnings_add(struct warnings *, const char *who, const json_t *result);
void warnings_print(FILE *, const struct warnings *);

#endif
