/* Settings of an experiment from options of the command line. */
#ifndef LINE_SETTINGS_H
#define LINE_SETTINGS_H

#include "cli/line.h"

/* Adds the settings of --model, -b, -e, -f, -n, -w and --timeout. --model precedes --set, the others
 * follow it. */
enum epa_status line_add_settings(struct line *, struct epa_error *);

#endif
