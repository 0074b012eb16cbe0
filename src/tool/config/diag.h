/* Errors about a text of the user: collected, then printed in compiler style, with the source line
 * and a caret. Reading continues after an error. */
#ifndef CONFIG_DIAG_H
#define CONFIG_DIAG_H

#include <stdint.h>
#include <stdio.h>

#include "config/node.h"

struct diag;

struct diag *diag_create(void);
void diag_destroy(struct diag *);
uint32_t diag_errors(const struct diag *);

/* `hint` (may be NULL) is printed after the caret: did you mean 'transport'? */
__attribute__((format(printf, 4, 5))) void diag_error(struct diag *, const struct source_location *,
                                                      const char *hint, const char *fmt, ...);
__attribute__((format(printf, 3, 4))) void diag_note(struct diag *, const struct source_location *,
                                                     const char *fmt, ...);
/* Between these calls, errors belong to one run of `file`. An error that another run has already is
 * counted, but not reported again. run NULL: the errors of the run are discarded. skipped: these
 * errors skip the run, and the command continues. */
void diag_run_begin(struct diag *);
void diag_run_end(struct diag *, const char *file, const char *run, bool skipped);
/* At most 20 errors, then the number of further errors. */
void diag_print(const struct diag *, FILE *);
void diag_print_first(const struct diag *, FILE *); /* prints one line, or nothing */
const char *diag_first_text(const struct diag *);   /* without its location; NULL: no error */

/* diag_line() returns the begin of a line of a text, counted from 1, by YAML's line breaks; NULL:
 * the text has fewer lines. The next function counts the characters before `end`. */
const char *diag_line(const char *text, uint32_t line);
uint32_t diag_characters(const char *text, const char *end);

#endif
