/* Rows, which are JSON objects, under columns: as text of 100 columns, as Markdown and as CSV. */
#ifndef TABLE_H
#define TABLE_H

#include <stdio.h>

#include "base/json.h"
#include "base/text.h"

struct table_column {
    const char *key;  /* in a row, or the path of it; NULL ends the list */
    const char *name; /* the heading */
    const char *unit; /* or NULL */
    double scale;     /* numbers are divided by it; 0: they are not */
    int digits; /* behind the point; -1: two that count; -2: two, or four below 0.1; of the first
                       * text: its least width, 0: TABLE_LABEL */
    int width;  /* of numbers, to the right: too long ones lose digits; 0: text, to the left */
};

enum { TABLE_LABEL = 24 };

/* A comment with the headings, one with the units, and a line for each row. A last text without a
 * heading is not padded. The key "colour" of a row ("bad", "good") is for its last text. */
void table_text(FILE *, const struct table_column *, const json_t *rows);
void table_markdown(struct text *, const struct table_column *, const json_t *rows);
/* A <table>; `add` escapes text. */
void table_html(struct text *, const struct table_column *, const json_t *rows,
                void (*add)(struct text *, const char *));
/* As RFC 4180 has it; what is not known is empty. */
void table_csv(struct text *, const struct table_column *, const json_t *rows);

#endif
