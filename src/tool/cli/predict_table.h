/* The table of `epa2a predict --dry-run`. */
#ifndef PREDICT_TABLE_H
#define PREDICT_TABLE_H

#include <stdio.h>

#include "cli/predict_plan.h"

/* Prints the runs to measure, and a row for each stage of each world. */
void predict_table(FILE *, const struct predict_plan *);

#endif
