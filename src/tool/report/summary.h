/* The runs of a command: text and Markdown have one line for each distinct run; CSV and JSON also
 * have one for each repetition. */
#ifndef SUMMARY_H
#define SUMMARY_H

#include <stdio.h>

#include "base/text.h"
#include "report/results.h"
#include "report/rows.h"
#include "report/table.h"
#include "op/op.h"

/* Initialises the row of a run that has not started; the texts must outlive it. */
void report_row(struct report_row *, const char *who, const char *file, const char *label,
                const char *id);
/* Sets the end of a run; the texts must outlive the row. */
void report_row_end(struct report_row *, const char *end, enum epa_status, const char *error);

/* Fills the row from a result, with texts in the arena; the caller sets the keys and marks skipped
 * runs. */
void report_row_fill(struct report_row *, const struct result *, struct arena *);
/* The same for a successful run of a file, with its keys. */
void report_row_read(struct report_row *, const struct results_run *, struct arena *);

void report_batch_text(FILE *, const struct report_batch *);
/* Adds the summary as Markdown. */
void report_batch_markdown(struct text *, const struct report_batch *);
void report_batch_csv(struct text *, const struct report_batch *);

/* A value of a row in "summary" of JSON: a text, which may be NULL, or a number, which may be NaN. */
struct summary_value {
    const char *key;
    bool is_text;
    struct table_cell cell;
};
/* Visits the values of all rows, row by row, with a row for each repetition. */
void summary_visit(const struct report_batch *,
                   void (*fn)(void *arg, uint32_t row, const struct summary_value *), void *arg);

#endif
