/* What other programs print, made into results: `epa2a help importing`. */
#ifndef IMPORT_H
#define IMPORT_H

#include <epa2a/status.h>

#include "base/json.h"

/* Adds to `results` what `text` holds, which is written to; `path` is what the file is called.
 * `set` are "moe.hidden=7168" or "delivers.rows=fp8" that the file does not say. EPA_ERR_CONFIG
 * says what is wrong, with line and column, or that the file holds no such output. */
enum epa_status import_text(const char *path, char *text, const char *const *set, uint32_t n_sets,
                            json_t *results, struct epa_error *err);
/* Those that are known, a line each. */
void import_programs(struct text *out);

#endif
