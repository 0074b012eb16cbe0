/* The report of a result as text. */
#ifndef REPORT_REPORT_H
#define REPORT_REPORT_H

#include <stdio.h>
#include "report/result_parts.h"
#include "result/result.h"

/* Prints the table; for VERB_VERIFY the lines about the comparison. Data only: no warnings. Lines
 * that begin with '#' explain, the others are rows. Fits 100 columns. */
void report_table(FILE *, const struct result *, const struct facts *);

#endif
