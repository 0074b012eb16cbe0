/* The commands `run`, `bench` and `verify`. */
#ifndef RUN_EXPERIMENTS_H
#define RUN_EXPERIMENTS_H

#include "base/json.h"
#include "cli/cli.h"
#include "session/session.h"

/* Runs the experiments of a command line by `run`, `bench` or `verify`; returns an exit code.
 * `text`: content of the only file, with all runs to take; NULL: the files are read. `results`:
 * list that also receives all results; or NULL. */
int run_experiments(const struct cli *, enum verb, const char *text, json_t *results);

#endif
