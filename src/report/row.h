/* A run's row of the summary. */
#ifndef ROW_H
#define ROW_H

#include <jansson.h>

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
    uint64_t
        question; /* of runs that differ in nothing but the algorithm's side: the same number */
    uint32_t repetition; /* from 1 */
    bool baseline; /* ratios of its question are over its total, else over that of the first */
};

/* All that a result says. SKIPPED is left to the caller. */
enum epa_status report_row_fill(struct report_row *, const struct result *, struct epa_error *);
/* The same of a run that ended well, from its result and its row as JSON. */
void report_row_read(struct report_row *, const json_t *result, const json_t *row);

#endif
