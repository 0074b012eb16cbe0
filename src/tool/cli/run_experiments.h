/* The commands `run`, `bench` and `verify`. */
#ifndef RUN_EXPERIMENTS_H
#define RUN_EXPERIMENTS_H

#include "cli/cli.h"
#include "session/session.h"

struct results;

/* Runs the experiments of a command line by `run`, `bench` or `verify`; returns an exit code.
 * `text`: content of the only file, with all runs to take; NULL: the files are read. `results`
 * receives all results; NULL: the caller does not need them. */
int run_experiments(const struct cli *, enum verb, const char *text, struct results *results);

#endif
