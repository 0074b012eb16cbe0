/* The result of one experiment: a JSON object, an entry of "results" in a document, made
 * from the result of a run, for any end of the run. Reports, rows of a summary and verdicts
 * read it; `epa2a config schema --results` describes it. Numbers are numbers, times are whole
 * nanoseconds, unmeasured values are null, and invalid UTF-8 is replaced: the document always
 * parses. */
#ifndef RESULT_H
#define RESULT_H

#include "report/result_parts.h"

json_t *result_make(const struct result *, const struct facts *);

/* Returns the samples of the last row in the order of measurement; the return value is their
 * number. */
uint64_t result_samples(const struct session *, struct arena *, double **out);

/* Returns the exit code. */
int result_exit_code(const json_t *result);

#endif
