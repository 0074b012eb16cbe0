/* The runs of a command: text and Markdown have one line for each distinct run; CSV and JSON also
 * have one for each repetition. */
#ifndef SUMMARY_H
#define SUMMARY_H

#include <stdio.h>

#include "base/json.h"
#include "base/text.h"
#include "report/results.h"
#include "report/rows.h"
#include "op/op.h"

/* Returns the row of a run that has not started. `who` is its label, with the file if there are
 * several; id NULL: unknown without its plugin. A caller may add "question" (equal for runs of the
 * same problem), "repetition" from 1, and "baseline": ratios of that question use its total as
 * denominator, otherwise the total of the first. Medians are the medians of the result's table;
 * figures that were not measured, or have no stage, are null. */
json_t *report_row(const char *who, const char *file, const char *label, const char *id);
void report_row_end(json_t *row, const char *end, enum epa_status, const char *error);

/* Fills the row from a result and its "experiment"; the caller marks skipped runs. */
void report_row_fill(json_t *row, const struct session *, const struct run_figures *,
                     json_t *experiment);
/* The same for a successful run of a file, with its row of "summary". */
void report_row_read(json_t *row, const struct results_run *, const json_t *saved);

void report_batch_text(FILE *, const struct report_batch *);
/* Adds the summary as Markdown or HTML. */
void report_batch_page(struct text *, const struct report_batch *, bool html);
void report_batch_csv(struct text *, const struct report_batch *);

/* Returns the document of a list of results, whose reference is taken; with the rows as `summary`,
 * unless `batch` is NULL. */
json_t *report_document(json_t *results, const struct report_batch *);

#endif
