/* Prints the error of a command. */
#ifndef CLI_FAIL_H
#define CLI_FAIL_H

#include <epa2a/status.h>

/* Prints "epa2a: " and the error to standard error; returns the exit code. */
int cli_fail(const struct epa_error *);

#endif
