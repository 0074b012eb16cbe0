/* Geometric means of totals. */
#ifndef MEANS_H
#define MEANS_H

#include "report/result.h"
#include "report/summary.h"

/* Adds "geometric means of totals over 3 shapes: ...", or nothing. */
void report_means(const json_t *lines, struct text *out);

#endif
