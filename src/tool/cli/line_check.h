/* Checks of a command line. */
#ifndef LINE_CHECK_H
#define LINE_CHECK_H

#include "cli/line.h"

/* Checks that the command accepts all given options. */
enum epa_status line_check_options(const struct line *, struct epa_error *);

/* Checks the number of arguments, a subcommand, and the checks of the command itself. */
enum epa_status line_check_arguments(const struct line *, struct epa_error *);

#endif
