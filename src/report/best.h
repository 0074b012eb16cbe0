/* Which run of results is fastest: for each question (what is computed, where, how it is timed and
 * what is delivered) and each size, all runs that answer it, the fastest first. */
#ifndef BEST_H
#define BEST_H

#include <stdio.h>

#include "base/json.h"
#include "report/results.h"

struct best_wish {
    struct results_wish which;
    const char *const *across; /* [n_across] what may differ: keys of "delivers" */
    uint32_t n_across;
    double close; /* a loss up to this, as a fraction, is none */
};

struct best;

/* The results, of which those are left that take part, must outlive it. EPA_ERR_CONFIG: there is
 * nothing to choose from, in words. */
enum epa_status best_create(struct results *, const struct best_wish *, struct best **out,
                            struct epa_error *);
void best_destroy(struct best *);

void best_text(FILE *, const struct best *);
void best_markdown(struct text *, const struct best *);
json_t *best_json(const struct best *);

#endif
