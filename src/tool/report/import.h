/* Results from the output of other programs. */
#ifndef REPORT_IMPORT_H
#define REPORT_IMPORT_H

#include "report/results.h"

/* Adds the results of `text`, which is modified; `path` is the name of the file. `set` are
 * "moe.hidden=7168" or "delivers.rows=fp8", values that the file lacks. Unreadable lines are left
 * out: `unread` then receives one line of text with the first of them and their number.
 * EPA_ERR_CONFIG: a wrong `set`, or no readable line, with line and column of the first. */
enum epa_status import_text(const char *path, char *text, const char *const *set, uint32_t n_sets,
                            json_t *results, struct text *unread, struct epa_error *err);

#endif
