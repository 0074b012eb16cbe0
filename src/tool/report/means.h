/* Geometric means of totals. */
#ifndef MEANS_H
#define MEANS_H

#include "base/json.h"
#include "base/text.h"
#include "report/result_parts.h"

/* Times of which report_means() takes geometric means. */
enum means_of {
    MEANS_OF_MEDIANS,
    MEANS_OF_MEANS, /* the score of GPU MODE's contests */
    MEANS_OF,
};

/* Adds "geometric means of totals over 3 shapes: ll_v2 12.3 us, ll_v1 14.1 us", for all settings
 * with a total at each shape. Adds nothing with one shape, and for medians of a single setting. */
void report_means(const json_t *lines, enum means_of, struct text *out);

/* Returns the line with the denominator of a question's ratios; NULL: no line has a total. */
const json_t *report_base(const json_t *lines, const json_t *question);

#endif
