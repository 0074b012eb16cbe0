/* Output of the program: colour on terminals, warnings, and standard output, which plugins may use,
 * too. */
#ifndef TERMINAL_H
#define TERMINAL_H

#include <epa2a/status.h>

#include <stdint.h>
#include <stdio.h>

enum colour_mode { COLOUR_AUTO, COLOUR_ALWAYS, COLOUR_NEVER };

enum colour { COLOUR_ERROR, COLOUR_WARNING, COLOUR_BAD, COLOUR_GOOD, COLOUR_LOCATION };

/* Sets --color, once before any output. Auto: standard output and standard error have colour if
 * they are terminals, TERM is not dumb and NO_COLOR is not set. */
void colour_choose(enum colour_mode);

/* Return the sequences before and after coloured text; "" without colour. */
const char *colour_on(FILE *, enum colour);
const char *colour_off(FILE *);

/* Prints "epa2a: warning: ..." on standard error. */
EPA_PRINTF(1, 2) void text_warn(const char *fmt, ...);

/* Filters all later output to stdout and stderr through terminal_clean() if it is a terminal.
 * Called once, before any output. */
void terminal_guard(void);

/* Returns the columns of the terminal at standard output, or TERMINAL_COLUMNS without a
 * terminal. */
enum { TERMINAL_COLUMNS = 80 };
uint32_t terminal_columns(void);

/* Plugins and their libraries may print, like UCX with UCX_LOG_LEVEL=info, but a document on
 * standard output must stay intact. So after terminal_guard() descriptor 1 is standard error, and
 * `stdout` is a stream of this program on another descriptor. Around calls of plugins and dlopen()
 * `stdout` is the stream of the C library again:
 *
 *     FILE *own = stdout_lend();
 *     ... plugin->open(...) ...
 *     stdout_take_back(own);
 *
 * Called by the main thread; calls may nest. */
FILE *stdout_lend(void);
void stdout_take_back(FILE *own);
/* Called in the process of a rank: leaves standard output to the program. */
void stdout_leave(void);
/* Returns the descriptor of standard output. */
int stdout_descriptor(void);

#endif
