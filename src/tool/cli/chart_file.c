/* The form and the width of a chart by the name of its file. */
#include "cli/chart_file.h"

#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/terminal.h"
#include "report/results.h"

const char *file_ending(const char *path)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');

    return dot == NULL || (slash != NULL && dot < slash) ? "" : dot;
}

enum plot_form cli_plot_form(const char *path)
{
    const char *end = file_ending(path);

    return strcasecmp(end, ".svg") == 0   ? PLOT_SVG
           : strcasecmp(end, ".png") == 0 ? PLOT_PNG
                                          : PLOT_TEXT;
}

uint32_t cli_plot_columns(const char *path)
{
    return file_is_stdout(path) ? terminal_columns() : TERMINAL_COLUMNS;
}
