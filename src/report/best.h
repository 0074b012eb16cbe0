/* Which run of results is fastest: for each question (what is computed, where, how it is timed and
 * what is delivered) and each size, all runs that answer it, the fastest first. */
#ifndef BEST_H
#define BEST_H

#include <stdio.h>

#include "report/results.h"

struct best_wish {
    const char *stage;       /* NULL: whole iterations */
    const char *const *only; /* globs of labels or ids; none: all */
    uint32_t n_only;
    const char *const *across; /* [n_across] what may differ: keys of "delivers", best_across() */
    uint32_t n_across;
    double close; /* a loss up to this, as a fraction, is none */
};

/* Keys that `across` may have, by position; NULL ends. */
const char *best_across(uint32_t i);

struct best;

/* The results must outlive it. EPA_ERR_CONFIG: there is nothing to choose from, in words. */
enum epa_status best_create(const struct results *, uint32_t n, const struct best_wish *,
                            struct best **out, struct epa_error *);
void best_destroy(struct best *);

void best_text(FILE *, const struct best *);
void best_markdown(struct text *, const struct best *);
enum epa_status best_json(struct text *, const struct best *, struct epa_error *);

#endif
