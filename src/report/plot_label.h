/* What the lines of a chart are called: as little as tells them apart. */
#ifndef PLOT_LABEL_H
#define PLOT_LABEL_H

#include "base/arena.h"
#include "report/results.h"

/* A run that is drawn. */
struct plot_source {
    const struct results_run *run;
    const char *path; /* of its file */
    const struct results_stage *stage;
    double tokens; /* of a rank, at most; 0: not known */
    const char *label;
};

/* Sets `label` to "ALGORITHM/TRANSPORT key=value ...", with the keys in which experiments
 * differ, tokens and lengths of runs aside; where two files have one run, its file too. Runs
 * of one label and as many tokens are one experiment, repeated. */
void plot_label_lines(struct arena *, struct plot_source *, uint32_t n);

/* Sets `label` to what the run is called, and its file where that is needed. */
void plot_label_runs(struct arena *, struct plot_source *, uint32_t n);

#endif
