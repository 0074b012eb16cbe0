/* What the lines of a chart are called: as little as tells them apart. */
#ifndef PLOT_LABEL_H
#define PLOT_LABEL_H

#include <jansson.h>

#include "base/arena.h"
#include "op/op.h"
#include "report/results.h"

/* A run that is drawn. */
struct plot_source {
    const struct results_run *run;
    const char *path; /* of its file */
    const struct results_stage *stage;
    const struct operation *operation;
    double size; /* of a rank's inputs, by the operation's size_key; 0: not known */
    const char *label;
};

/* The value of "bench.warmup" in the experiment of a run; NULL: it has none. */
const json_t *plot_value(const struct plot_source *, const char *key);

/* Sets `label` to "ALGORITHM/TRANSPORT key=value ...", with the keys in which experiments
 * differ, sizes and lengths of runs aside; where two files have one run, its file too. Runs
 * of one label and size are one experiment, repeated. */
void plot_label_lines(struct arena *, struct plot_source *, uint32_t n);

/* Sets `label` to what the run is called, and its file where that is needed. */
void plot_label_runs(struct arena *, struct plot_source *, uint32_t n);

#endif
