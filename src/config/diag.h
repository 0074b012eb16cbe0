/* Errors about a text the user wrote: collected, then printed compiler style, with the
 * source line and a caret. Nothing stops at the first. */
#ifndef DIAG_H
#define DIAG_H

#include <stdint.h>
#include <stdio.h>

struct diag;

/* A place: file:line:column, 1-based, and how many columns the caret underlines. `file` is
 * "--set" for a value from the command line; `source` is all of its text, for the snippet. */
struct source_location {
    const char *file, *source;
    uint32_t line, column, width;
};

struct diag *diag_create(void);
void diag_destroy(struct diag *);
uint32_t diag_errors(const struct diag *);

/* `hint` (may be NULL) goes behind the caret: did you mean 'transport'? */
__attribute__((format(printf, 4, 5))) void diag_error(struct diag *, const struct source_location *,
                                                      const char *hint, const char *fmt, ...);
__attribute__((format(printf, 3, 4))) void diag_note(struct diag *, const struct source_location *,
                                                     const char *fmt, ...);
/* Between these, errors are of one run of `file`. One that another run has already is not
 * reported again, only counted. run NULL: all that was reported for it is forgotten. */
void diag_run_begin(struct diag *);
void diag_run_end(struct diag *, const char *file, const char *run);
void diag_print(const struct diag *, FILE *);       /* at most 20 errors, then how many more */
void diag_print_first(const struct diag *, FILE *); /* one line, or nothing */

/* Where a line of a text begins, counted from 1, by YAML's line breaks; NULL: there are not so
 * many. How many characters are before `end`. */
const char *diag_line(const char *text, uint32_t line);
uint32_t diag_characters(const char *text, const char *end);

#endif
