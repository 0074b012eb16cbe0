/* Runs a program with its standard files in memory. */
#ifndef CHILD_OUTPUT_H
#define CHILD_OUTPUT_H

#include <stdint.h>

#include "base/text.h"

struct child {
    char **word;      /* the program and its arguments, up to NULL */
    char **variables; /* its environment; NULL: of this process */
    uint64_t limit_ns;
};

/* Runs a child with this input; stores its output, its standard error and the status of waitpid(). Returns
 * errno: ENOENT without the program, ETIMEDOUT if the child was killed after the limit or after a blocked
 * signal to this process. */
int child_run(const struct child *, const struct text *input, struct text *out,
              struct text *messages, int *code);

#endif
