/* A command's runs, a line for each: as text, Markdown, CSV and JSON. */
#ifndef SUMMARY_H
#define SUMMARY_H

#include <jansson.h>
#include <stdio.h>

#include "base/text.h"
#include "report/result.h"

enum report_end {
    REPORT_NOT_RUN, /* the command ended before */
    REPORT_OK,
    REPORT_FAILED,
    REPORT_SKIPPED, /* what it needs is not here */
};

struct report_row {
    const char *who;               /* the label, with the file where there are several */
    const char *file, *label, *id; /* id NULL: not known without its plugin */
    enum report_end end;
    enum epa_status status;
    char error[512]; /* "" if there is none */
    /* Medians, as in the result's table; NaN: not measured, or not a stage. */
    double dispatch_ns, experts_ns, combine_ns, total_ns;
    uint64_t checked, compared, wrong; /* iterations; elements */
    uint64_t samples;
    enum stop_reason stop; /* why there are no more of them */
    double ci95;           /* see result_ci95(); NaN: there is none */
};

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

/* All that a result says. SKIPPED is left to the caller. */
enum epa_status report_row_fill(struct report_row *, const struct result *, struct epa_error *);
/* The same of a run that ended well, from its result and its row as JSON. */
void report_row_read(struct report_row *, const json_t *result, const json_t *row);

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
