/* Reads the results that --json, --json-lines or --out-dir wrote. */
#ifndef RESULTS_JSON_H
#define RESULTS_JSON_H

#include "base/json.h"
#include "report/results.h"

/* Adds the runs of a file, or of a folder, without a truncated last line. EPA_ERR_CONFIG: err
 * describes the defect of the file; EPA_ERR_SYSTEM: err has the reason why it cannot be read. */
enum epa_status results_read(const char *path, struct results *out, struct epa_error *err);
/* Reads n files, and warns about failed runs. */
enum epa_status results_read_all(const char *const *path, uint32_t n, struct results *out,
                                 struct epa_error *);

/* Returns the whole result of a run with a record, for outputs. */
json_t *results_recorded(const struct results_run *);

/* Returns true if a text is a document of results, or the damaged beginning of one. An
 * experiment may also be JSON, but has no results. */
bool results_are_text(const struct text *);

#endif
