/* OpenMetrics text. */
#ifndef OPENMETRICS_H
#define OPENMETRICS_H

#include "base/json.h"
#include "base/text.h"

/* Adds percentiles and rates of each stage of each result, and the figures of comparisons. */
void export_openmetrics(struct text *, const json_t *results);

#endif
