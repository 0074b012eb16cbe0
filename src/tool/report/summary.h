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

/* Initialises the row of a run that has not started; the texts must outlive it. */
void report_row(struct report_row *, const char *who, const char *file, const char *label,
                const char *id);
/* Sets the end of a run; the texts must outlive the row. */
void report_row_end(struct report_row *, const char *end, enum epa_status, const char *error);

/* Fills the row from a result and its "experiment", with texts in the arena; the caller marks skipped
 * runs. */
void report_row_fill(struct report_row *, const struct result *, const json_t *experiment,
                     struct arena *);
/* The same for a successful run of a file, with its row of "summary". */
void report_row_read(struct report_row *, const struct results_run *, const json_t *saved,
                     struct arena *);

void report_batch_text(FILE *, const struct report_batch *);
/* Adds the summary as Markdown or HTML. */
void report_batch_page(struct text *, const struct report_batch *, bool html);
void report_batch_csv(struct text *, const struct report_batch *);

/* Returns the document of a list of results, whose reference is taken; with the rows as `summary`,
 * unless `batch` is NULL. */
json_t *report_document(json_t *results, const struct report_batch *);

#endif
