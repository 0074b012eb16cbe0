/* Folds pages of help to the width of a terminal. */
#ifndef FOLD_H
#define FOLD_H

#include <stdint.h>
#include <stdio.h>

#include "base/text.h"

enum { FOLD_COLUMNS = 80 /* without a terminal */ };

/* Returns the columns of the terminal that the stream writes to; FOLD_COLUMNS: it is not a
 * terminal. */
uint32_t fold_columns(FILE *);

/* Kind of lines in a text: separate entries of a list, or parts of wrapped paragraphs as well. */
enum fold { FOLD_LINES, FOLD_PAGE };

/* Adds `text` with lines of at most `columns` columns; a longer word stays whole. Joins the lines
 * of a paragraph first. A folded line continues below the last column of its line:
 *     --only GLOB         only runs with that
 *                         label or id
 * A command continues after a backslash, with an indented rest. */
void fold_add(struct text *out, const char *text, enum fold, uint32_t columns);

/* Prints `text`, folded for the stream. */
void fold_print(FILE *, const char *text, enum fold);

#endif
