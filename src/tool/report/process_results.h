/* Results of runs of this process. */
#ifndef PROCESS_RESULTS_H
#define PROCESS_RESULTS_H

#include "report/result_parts.h"
#include "report/results.h"
#include "result/result.h"

/* Adds a copy of a result that was made, as a file of the result has it. results_begin() precedes. */
void results_add_process(struct results *, const struct result *, const struct facts *);

#endif
