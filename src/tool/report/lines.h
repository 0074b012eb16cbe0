/* Text for terminals and Markdown. */
#ifndef REPORT_LINES_H
#define REPORT_LINES_H

#include <stdio.h>

#include "base/text.h"

/* Format text from files: for a terminal, and for Markdown without markup, on one line. */
void text_print_clean(FILE *, const char *text);
void text_add_markdown(struct text *, const char *);

/* Prints lines of 100 columns, folded at blanks: `lead` begins the first, `next` the others. */
void text_fold(FILE *, const char *lead, const char *next, const char *text);
/* Prints a comment of such lines, with "# " and "#   ", cleaned by text_clean(). */
__attribute__((format(printf, 2, 3))) void text_comment(FILE *, const char *fmt, ...);

#endif
