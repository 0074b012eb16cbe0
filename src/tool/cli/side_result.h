/* Results of the sides of `compare --run`, which the process of a side passes to its parent. */
#ifndef SIDE_RESULT_H
#define SIDE_RESULT_H

#include <stdbool.h>

#include "report/results.h"
#include "result/result.h"

/* Writes the members of a result that a comparison reads to an empty file; returns false if the file is
 * full. */
bool side_result_write(int fd, const struct result *);

/* Reads the result from the begin of the file; `path` is the name of the side. Returns false if the file
 * has none. The caller frees the results. */
bool side_result_read(int fd, const char *path, struct results *out);

#endif
