/* What `epa2a compare` prints of two results. */
#ifndef CMD_COMPARE_H
#define CMD_COMPARE_H

#include "cli/cli.h"
#include "report/results.h"

/* Prints, by the --threshold, --alpha and --force of the line, and frees both. Returns the
 * exit code: EXIT_SLOWER where B is slower. */
int compare_results(const struct cli *, struct results *a, struct results *b);

#endif
