/* Geometric means of totals. */
#ifndef MEANS_H
#define MEANS_H

#include "base/json.h"
#include "base/text.h"
#include "report/result_parts.h"

/* Adds "geometric means of totals over 3 shapes: ...", or nothing. */
void report_means(const json_t *lines, struct text *out);

/* Returns the line with the denominator of a question's ratios; NULL: no line has a total. */
const json_t *report_base(const json_t *lines, const json_t *question);

#endif
