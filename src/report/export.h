/* JUnit XML, OpenMetrics text, tables and CSV. */
#ifndef REPORT_EXPORT_H
#define REPORT_EXPORT_H

#include "report/summary.h"

/* Escapes text for XML and HTML, also in attributes. */
void export_add_xml(struct text *, const char *text);

/* Adds a test case for each row, by file; `results` (a list) contain the durations of runs. */
void export_junit(struct text *, const struct report_batch *, const json_t *results);

/* Adds the further cells of CSV to rows: percentiles and rates of stages, and a cell for each key
 * of the experiment. Returns an object with the names of these columns, in order. */
json_t *export_cells(json_t *rows, bool stages);

/* Adds percentiles and rates of each stage of each result, and the figures of comparisons. */
void export_openmetrics(struct text *, const json_t *results);

/* Prints a comment with the headings, one with the units, and a line for each row. A last text
 * without a heading is not padded. The key "colour" of a row ("bad", "good") sets the colour of its
 * last text. */
void table_text(FILE *, const struct table_column *, const json_t *rows);

void table_add(struct text *, enum table_form, const struct table_column *, const json_t *rows);

#endif
