/* Names that distinguish runs: the name in runs:, otherwise "ALGORITHM/TRANSPORT", followed by the
 * keys in which runs of that name or algorithm differ, except the size. */
#ifndef RESULTS_NAMES_H
#define RESULTS_NAMES_H

#include "report/results.h"

/* Initially {0}. The runs that are added must outlive it. */
struct results_names {
    struct arena *arena;
    struct slot **slot; /* [n], sorted by name */
    uint32_t n;
};

void results_names_add(struct results_names *, const struct results_run *);
void results_name(struct results_names *, const struct results_run *, struct text *out);
void results_names_free(struct results_names *);

#endif
