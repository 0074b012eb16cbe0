/* OpenMetrics text. */
#ifndef OPENMETRICS_H
#define OPENMETRICS_H

#include "base/text.h"
#include "report/results.h"

/* Adds percentiles and rates of each stage of each result, and the counts of comparisons. */
void export_openmetrics(struct text *, const struct results *);

#endif
