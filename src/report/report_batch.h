/* A command's runs, a line for each: as text, Markdown, CSV and, in the document of --json,
 * as `summary`. */
#ifndef REPORT_BATCH_H
#define REPORT_BATCH_H

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
    /* Medians, as in the result's table; NaN: not measured. experts_ns also 0: not a stage. */
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

/* Total over that of the first row that has one; NaN: there is none. */
double report_ratio(const struct report_row *row, uint32_t n, uint32_t i);
/* "ok", "failed", "skipped", "not run". */
const char *report_end_name(enum report_end);

/* Whether the order is another than the declared one. */
bool report_batch_mixed(const struct report_batch *);

void report_batch_text(FILE *, const struct report_batch *);
void report_batch_markdown(struct text *, const struct report_batch *);
void report_batch_csv(struct text *, const struct report_batch *);

#endif
