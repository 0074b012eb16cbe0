/* Reports of a search. */
#ifndef TUNE_REPORT_H
#define TUNE_REPORT_H

#include <stdio.h>

#include "base/text.h"
#include "cli/tune.h"

/* Returns the median of a setting's turns in ns; NaN: no turn. */
double tune_median(const struct tune_setting *);
/* Adds "best: ...", a sentence without a full stop. */
void tune_verdict(const struct tune *, struct text *out);
/* Adds YAML comments with program, date, machine and the file of the search. */
void tune_origin(const char *what, const char *from, const char *how, struct text *out);
void tune_print(FILE *, const struct tune *);
json_t *tune_json(const struct tune *);
/* Adds comments about the search and then `yaml`, the text of experiment_show(). */
void tune_yaml(const struct tune *, const struct text *yaml, struct text *out);

#endif
