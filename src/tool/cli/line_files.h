/* Files of a command line. */
#ifndef LINE_FILES_H
#define LINE_FILES_H

#include "cli/line.h"

/* Replaces the FILE - by standard input, for commands that read files. Keeps the content of standard input
 * and of pipes of the shell, so that a command can read them more than once. */
enum epa_status line_replace_stdin(struct line *, struct epa_error *);

/* Replaces names of configurations by their paths. Without an argument run, bench and verify use the
 * default configuration. */
enum epa_status line_resolve_names(struct line *, struct epa_error *);

#endif
