/* Runs a command and keeps its results in memory. */
#ifndef RUN_FOR_RESULTS_H
#define RUN_FOR_RESULTS_H

#include "cli/cli.h"
#include "report/results.h"

/* Runs a command and collects its results under the name `path`; returns its exit code. Without
 * results the root of *out is NULL. */
int run_for_results(struct cli *, int (*command)(const struct cli *), const char *path,
                    struct results *out);

/* Converts a list of results of a command that returned `code`; takes the reference. *out has no root
 * if the list is empty: another rank has the results, or --dry-run was given, or the command has
 * reported an error. Returns an exit code. */
int run_results_convert(const char *path, json_t *list, int code, struct results *out);

#endif
