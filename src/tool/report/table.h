/* Tables: rows of cells under columns, as text of 100 columns, as Markdown and CSV. */
#ifndef TABLE_H
#define TABLE_H

#include <stddef.h>
#include <stdio.h>

#include "base/text.h"

struct table_column {
    const char *key;  /* of the value in JSON; NULL ends the list */
    const char *name; /* the heading */
    const char *unit; /* or NULL */
    double scale;     /* divisor of numbers; 0: none */
    /* Behind the point; -1: two significant digits; -2: two, or four below 0.1; of the first text:
     * minimum width, 0: TABLE_LABEL. */
    int digits;
    int width; /* of right-aligned numbers: too long numbers lose digits; 0: left-aligned text */
};

enum { TABLE_LABEL = 24 };

/* CSV by RFC 4180; an unknown value is an empty cell. */
enum table_form { TABLE_MARKDOWN, TABLE_CSV };

/* A text; NULL: the number; not finite: unknown. */
struct table_cell {
    const char *text;
    double number;
};

/* Colour of the last text of a row. */
enum table_colour { TABLE_PLAIN, TABLE_BAD, TABLE_GOOD };

struct table_row {
    const struct table_cell *cell; /* one for each column */
    enum table_colour colour;
};

/* Prints a comment with the headings, one with the units, and a line for each of `n` rows. A last
 * text without a heading is not padded. */
void table_text(FILE *, const struct table_column *, const struct table_row *, size_t n);

void table_add(struct text *, enum table_form, const struct table_column *,
               const struct table_row *, size_t n);

#endif
