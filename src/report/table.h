/* Tables: rows, which are JSON objects, under columns. */
#ifndef TABLE_H
#define TABLE_H

#include "report/summary.h"

/* Prints a comment with the headings, one with the units, and a line for each row. A last text
 * without a heading is not padded. The key "colour" of a row ("bad", "good") sets the colour of its
 * last text. */
void table_text(FILE *, const struct table_column *, const json_t *rows);

void table_add(struct text *, enum table_form, const struct table_column *, const json_t *rows);

#endif
