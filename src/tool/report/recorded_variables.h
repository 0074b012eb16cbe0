/* The variables of the environment that results and `doctor` record. */
#ifndef RECORDED_VARIABLES_H
#define RECORDED_VARIABLES_H

#include <stddef.h>

/* Calls fn for each variable in the order of the environment. The name has `bytes` bytes. The value of a
 * possible credential is "(redacted)". */
void recorded_variables_each(void (*fn)(void *arg, const char *name, size_t bytes,
                                        const char *value),
                             void *arg);

#endif
