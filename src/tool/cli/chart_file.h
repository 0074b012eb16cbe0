/* The form and the width of a chart by the name of its file. */
#ifndef CHART_FILE_H
#define CHART_FILE_H

#include "cli/cli.h"
#include "report/results.h"

/* Returns the ending of a path with the dot, or "". */
const char *file_ending(const char *path);

/* Returns the form of a chart by the ending of its path. */
enum plot_form cli_plot_form(const char *path);
/* Returns the width of a text chart in columns. */
uint32_t cli_plot_columns(const char *path);

#endif
