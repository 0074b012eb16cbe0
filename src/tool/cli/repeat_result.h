/* A result as the input of `run`, `bench` and `verify`. */
#ifndef REPEAT_RESULT_H
#define REPEAT_RESULT_H

#include <stdbool.h>

#include "cli/cli.h"
#include "session/session.h"

/* Returns true if a path is a result: a file of --json or --json-lines, or a folder of
 * --out-dir. */
bool is_result(const char *path);

/* Runs the experiments of the files of a command line. If the only file is a result, runs its
 * experiments and compares their times with the result. Returns an exit code. */
int run_or_repeat(const struct cli *, enum verb);

#endif
