/* Folds pages of help to the width of a terminal. */
#ifndef FOLD_H
#define FOLD_H

#include <stdint.h>
#include <stdio.h>

#include "base/text.h"

enum { FOLD_COLUMNS = 80 /* where there is no terminal */ };

/* Columns of the terminal that the stream writes to; FOLD_COLUMNS: it is no terminal. */
uint32_t fold_columns(FILE *);

/* What the lines of a text are: entries of a list, or also parts of paragraphs that were wrapped. */
enum fold { FOLD_LINES, FOLD_PAGE };

/* Adds `text` with lines of at most `columns` columns; a word that is longer stays whole. The lines
 * of a paragraph are joined first. A folded line goes on below the last column of its line:
 *     --only GLOB         only runs with that
 *                         label or id
 * A command goes on behind a backslash, and the rest of it is indented. */
void fold_add(struct text *out, const char *text, enum fold, uint32_t columns);

/* Prints `text`, folded for the stream. */
void fold_print(FILE *, const char *text, enum fold);

#endif
