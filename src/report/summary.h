/* A command's runs: as text and Markdown a line for each that differs, as CSV and JSON one for each
 * repetition too. */
#ifndef SUMMARY_H
#define SUMMARY_H

#include <stdio.h>

#include "base/text.h"
#include "report/row.h"

/* All of them, as written, and how they went. */
struct report_batch {
    enum verb verb;
    const struct report_row *row;
    uint32_t n;
    const char *order;          /* "declared", "interleaved" or "shuffled" */
    uint64_t seed;              /* of that order; declared has none */
    const char *const *context; /* "NAME=TEXT", as in facts.h */
    uint32_t n_context;
};

void report_batch_text(FILE *, const struct report_batch *);
void report_batch_markdown(struct text *, const struct report_batch *);
void report_batch_csv(struct text *, const struct report_batch *);

/* The document of results that are JSON already, as report_json_add() made them, on lines or all on
 * one; valid whenever it is written. With the rows as `summary`, where `batch` is not NULL. */
enum epa_status report_json_text(struct text *out, const struct text *results,
                                 const struct report_batch *, struct epa_error *);
enum epa_status report_json_line(struct text *out, const struct text *results,
                                 const struct report_batch *, struct epa_error *);

#endif
