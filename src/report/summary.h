/* A command's runs: as text and Markdown a line for each that differs, as CSV and JSON one for each
 * repetition too. */
#ifndef SUMMARY_H
#define SUMMARY_H

#include <stdio.h>

#include "base/json.h"
#include "base/text.h"
#include "report/result.h"

/* "end" of a row */
#define REPORT_NOT_RUN "not run" /* the command ended before */
#define REPORT_OK "ok"
#define REPORT_FAILED "failed"
#define REPORT_SKIPPED "skipped" /* what it needs is not here */

/* A row of a run that has not run: who is the label, with the file where there are several; id
 * NULL: not known without its plugin. A caller may add "question", alike for runs that differ in
 * nothing but the algorithm's side, "repetition" from 1, and "baseline": ratios of its question are
 * over its total, else over that of the first. Medians are those of the result's table; what was
 * not measured, or is no stage, is null. */
json_t *report_row(const char *who, const char *file, const char *label, const char *id);
void report_row_end(json_t *row, const char *end, enum epa_status, const char *error);

/* All that a result says; skipping is left to the caller. */
void report_row_fill(json_t *row, const struct session *, const json_t *result);
/* The same of a run that ended well, from its result and its row of "summary". */
void report_row_read(json_t *row, const json_t *result, const json_t *saved);

/* All of them, as written, and how they went. */
struct report_batch {
    enum verb verb;
    json_t *rows;
    const char *order;          /* "declared", "interleaved" or "shuffled" */
    uint64_t seed;              /* of that order; declared has none */
    const char *const *context; /* "NAME=TEXT", as in facts.h */
    uint32_t n_context;
};

void report_batch_text(FILE *, const struct report_batch *);
void report_batch_markdown(struct text *, const struct report_batch *);
void report_batch_html(struct text *, const struct report_batch *,
                       void (*add)(struct text *, const char *));
void report_batch_csv(struct text *, const struct report_batch *);

/* The document of a list of results, which it takes; with the rows as `summary`, unless `batch` is
 * NULL. */
json_t *report_document(json_t *results, const struct report_batch *);

/* ---- export.c: JUnit XML for CI, OpenMetrics text for monitoring, cells of CSV ---- */

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
