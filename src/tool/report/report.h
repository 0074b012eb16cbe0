/* The report of a result as text. */
#ifndef REPORT_REPORT_H
#define REPORT_REPORT_H

#include <stdio.h>
#include "base/json.h"
#include "report/result.h"

/* Returns the result, and "total", "ci95", ... for sentences about it. */
json_t *report_facts(const struct session *, const struct run_figures *, const json_t *result);

/* Prints the table; for VERB_VERIFY the lines about the comparison. Data only: no warnings. Lines
 * that begin with '#' explain, the others are rows. Fits 100 columns. */
void report_table(FILE *, const struct session *, const struct run_figures *, const json_t *result);

#endif
