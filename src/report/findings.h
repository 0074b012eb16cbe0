/* Errors, warnings and verdicts of a result. */
#ifndef REPORT_FINDINGS_H
#define REPORT_FINDINGS_H

#include "report/result.h"
#include "report/summary.h"

/* Return "error", null after success, and "status". */
json_t *result_error(const struct session *, const struct result_end *);
const char *result_outcome(const struct result_end *);

/* Fills "expect" of a successful result, after all else is complete; after a missed expectation
 * also sets "status", "exit_code" and "error". */
void verdicts_make(json_t *result, const struct session *);

/* Adds "total median <= 120 us", the expectation, then `between`, then "131.4 us (+9.5 %)", or the
 * reason of a missing figure. */
void verdict_add(struct text *, const json_t *result, const json_t *verdict, const char *between);

/* Fills "warnings". */
void result_warn(json_t *result, const struct session *);

/* Prints warnings, one on each line, with the prefix "warning: ". */
void report_warnings(FILE *, const json_t *result);

/* Adds the warnings of a run. `who` is the name of the run. */
void warnings_add(struct warnings *, const char *who, const json_t *result);
void warnings_print(FILE *, const struct warnings *);

/* Adds "geometric means of totals over 3 shapes: ...", or nothing. */
void report_means(const json_t *lines, struct text *out);

#endif
