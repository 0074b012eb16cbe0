/* A result as a table for people and as JSON. */
#ifndef REPORT_H
#define REPORT_H

#include <stdio.h>

#include "report/result.h"

/* The table; for VERB_VERIFY the lines that say what was compared. Data only: no warnings.
 * Lines that begin with '#' explain, the others are rows. */
void report_table(FILE *, const struct result *);
/* Warnings, one a line, "warning: " first. */
void report_warnings(FILE *, const struct result *);

enum { REPORT_SCHEMA = 1 }; /* "schema" of the JSON; tests/cli/result.schema.json */

/* One JSON document for all results of a command (an array `results`), written to a
 * temporary file beside `path`, synced and renamed. Without `force` an existing file is
 * refused before anything runs, by report_json_check(), which also says whether the folder
 * can be written. "-" is standard output. */
enum epa_status report_json_check(const char *path, bool force, struct epa_error *);
enum epa_status report_json(const char *path, bool force, const struct result *const *,
                            uint32_t n, struct epa_error *);

/* Writes `bytes` of `data` so, and is what report_json() ends with. A device or a pipe is
 * written to as it is. */
enum epa_status report_file(const char *path, bool force, const char *data, size_t bytes,
                            struct epa_error *);

#endif
