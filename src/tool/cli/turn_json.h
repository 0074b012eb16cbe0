/* Results of turns of `compare --run`, which processes of sides pass to their parent. */
#ifndef TURN_JSON_H
#define TURN_JSON_H

#include <stdbool.h>

#include "report/result_parts.h"
#include "report/results.h"

/* Writes a result to a file; returns false if the file is full. */
bool turn_json_write(int fd, const struct result *, const struct facts *);

/* Reads the result from the begin of the file; `path` is the name of the side. Returns false if the file
 * has none. EPA_ERR_CONFIG in err: a defect of the result. */
bool turn_json_read(int fd, const char *path, struct results *out, struct epa_error *err);

#endif
