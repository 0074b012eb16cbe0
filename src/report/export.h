/* Results for programs of others: JUnit XML for CI, OpenMetrics text for monitoring. */
#ifndef EXPORT_H
#define EXPORT_H

#include "report/summary.h"

/* Text as XML and HTML have it, in attributes too. */
void export_add_xml(struct text *, const char *text);

/* A test case for each row, by file; `results` (a list) have how long runs took. */
void export_junit(struct text *, const struct report_batch *, const json_t *results);

/* Puts into rows what CSV has of a run besides: percentiles and rates of its stages, and a cell for
 * each key of its experiment. Returns an object with the names of these columns, in order. */
json_t *export_cells(json_t *rows, bool stages);

/* Percentiles and rates of each stage of each result, and what was compared. */
void export_openmetrics(struct text *, const json_t *results);

#endif
