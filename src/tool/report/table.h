/* Tables: rows, which are JSON objects, under columns. */
#ifndef TABLE_H
#define TABLE_H

#include "base/json.h"
#include "base/text.h"

/* Rows, which are JSON objects, under columns: as text of 100 columns, as Markdown and as CSV. */

struct table_column {
    const char *key;  /* in a row, or a path; NULL ends the list */
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
enum table_form { TABLE_MARKDOWN, TABLE_HTML, TABLE_CSV };

/* Prints a comment with the headings, one with the units, and a line for each row. A last text
 * without a heading is not padded. The key "colour" of a row ("bad", "good") sets the colour of its
 * last text. */
void table_text(FILE *, const struct table_column *, const json_t *rows);

void table_add(struct text *, enum table_form, const struct table_column *, const json_t *rows);

#endif
