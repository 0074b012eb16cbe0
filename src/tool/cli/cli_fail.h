/* Prints errors with the remedy for a limit of the process. */
#ifndef CLI_FAIL_H
#define CLI_FAIL_H

#include <epa2a/status.h>

/* Prints "epa2a: " and the error to standard error; returns the exit code. */
int cli_fail(const struct epa_error *);

/* Prints "epa2a: error: " and the error; the command continues. */
void cli_report_error(const struct epa_error *);

#endif
