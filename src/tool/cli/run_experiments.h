/* The commands `run`, `bench` and `verify`. */
#ifndef RUN_EXPERIMENTS_H
#define RUN_EXPERIMENTS_H

#include "cli/cli.h"
#include "session/session.h"

/* Runs the experiments of a command line by `run`, `bench` or `verify`; returns an exit code. */
int run_experiments(const struct cli *, enum verb);

#endif
