/* The end of a run: its status and its error. */
#ifndef OUTCOME_H
#define OUTCOME_H

#include "base/json.h"
#include "report/result_parts.h"

/* Return "error", null after success, and "status". */
json_t *result_error(const struct result *);
const char *result_outcome(const struct result *);

#endif
