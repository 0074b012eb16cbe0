/* Reports of a search. */
#ifndef TUNE_REPORT_H
#define TUNE_REPORT_H

#include <stdio.h>

#include "base/text.h"
#include "cli/tune.h"

/* Returns the median of a setting's turns in ns; NaN: no turn. */
double tune_median(const struct tune_setting *);
/* Return the median ratio to the file's settings in the same rounds, and the mean ratio; NaN: no
 * turn. */
double tune_ratio(const struct tune_setting *);
double tune_estimate(const struct tune *, const struct tune_setting *);
/* Returns "best", "kept", or the reason of the end of the setting's turns. */
const char *tune_outcome(const struct tune *, const struct tune_setting *);
/* Adds "best: ...", a sentence without a full stop. */
void tune_verdict(const struct tune *, struct text *out);
/* Adds YAML comments with program, date, machine and the file of the search. */
void tune_origin(const char *what, const struct machine_facts *, const char *from, const char *how,
                 struct text *out);
void tune_print(FILE *, const struct tune *);
/* Adds comments about the search and then `yaml`, the text of experiment_show(). */
void tune_yaml(const struct tune *, const struct text *yaml, struct text *out);

#endif
