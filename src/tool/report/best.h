/* Finds the fastest run of results: for each problem (computation, machine, clock and output) and
 * each size, all comparable runs, the fastest first. */
#ifndef REPORT_BEST_H
#define REPORT_BEST_H

#include "result/figures.h"
#include "report/results.h"

struct best_wish {
    struct results_wish which;
    const char *const *across; /* [n_across] keys of "delivers" that may differ */
    uint32_t n_across;
    double close;                /* a loss up to this fraction counts as none */
    const struct figure *figure; /* compared figure, one with a direction */
};

struct best;

/* Compares the results. Runs that do not take part are removed; the results must outlive *out.
 * EPA_ERR_CONFIG: there are no runs to compare; err has the reason. */
enum epa_status best_create(struct results *, const struct best_wish *, struct best **out,
                            struct epa_error *);
void best_destroy(struct best *);

void best_text(FILE *, const struct best *);
void best_markdown(struct text *, const struct best *);
json_t *best_json(const struct best *);

#endif
