/* Tables of rows that are JSON objects. */
#ifndef TABLE_JSON_H
#define TABLE_JSON_H

#include "base/json.h"
#include "report/table.h"

/* The same as table_text() and table_add(). The key of a column is a key of rows, or a path; the cell
 * of a missing key is empty. The key "colour" of a row ("bad", "good") sets its colour. */
void table_json_text(FILE *, const struct table_column *, const json_t *rows);
void table_json_add(struct text *, enum table_form, const struct table_column *,
                    const json_t *rows);

#endif
