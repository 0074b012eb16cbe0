/* Files of charts, which the command `plot` of the Python package writes. */
#ifndef CHART_FILE_H
#define CHART_FILE_H

#include "base/text.h"
#include "cli/cli.h"

/* Fails for the name of a file that is no chart. */
enum epa_status chart_file_check(const char *path, struct epa_error *);

/* Fails with the remedy if this machine cannot draw a chart in this file. */
enum epa_status chart_file_prepare(const char *path, struct epa_error *);
/* Draws a document of `epa2a predict` into --out. */
enum epa_status chart_file_write(const struct cli *, const struct text *document,
                                 struct epa_error *);

#endif
