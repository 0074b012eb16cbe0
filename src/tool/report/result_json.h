/* The result of a run as JSON: an entry of "results" in a document. `epa2a config schema --results`
 * describes it. */
#ifndef RESULT_JSON_H
#define RESULT_JSON_H

#include "base/json.h"
#include "report/result_parts.h"
#include "result/result.h"

/* Returns the result. Times are whole nanoseconds, and unmeasured values are null. */
json_t *result_json(const struct result *, const struct facts *);

#endif
