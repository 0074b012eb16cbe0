/* Messages about the end of a run, on standard error. */
#ifndef RUN_MESSAGES_H
#define RUN_MESSAGES_H

#include <stdbool.h>

#include "base/text.h"
#include "cli/runs.h"
#include "result/result.h"

/* Prints "WHO: error: WHAT", after the rank of this process if it is not 0. */
void run_print_error(const struct epa_process_id *, const char *who, const char *what);

/* Returns true if the run is skipped. A missing plugin or device skips one run of several and ends a
 * command with a single run. */
bool run_is_skipped(const struct run *, enum epa_status);

/* Prints an error of a run, with the line of its file that sets the key of the error. */
void run_print_end(const struct run *, const struct epa_process_id *, const struct epa_error *);

/* Reports an experiment that is rejected before its ranks start, as `config check` does. */
void run_print_refusal(const struct run *, const struct epa_process_id *, const struct epa_error *);

/* Prints the error of a result, if it has one. */
void run_print_result(const struct run *, const struct epa_process_id *, const struct result *);

#endif
