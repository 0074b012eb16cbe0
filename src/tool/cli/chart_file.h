/* Files of charts, which the Python package writes. */
#ifndef CHART_FILE_H
#define CHART_FILE_H

#include <epa2a/status.h>

/* Fails for the name of a file that is no chart. */
enum epa_status chart_file_check(const char *path, struct epa_error *);

#endif
