/* Geometric means of totals. */
#ifndef MEANS_H
#define MEANS_H

#include "base/text.h"
#include "report/rows.h"

/* Times of which report_means() takes geometric means. */
enum means_of {
    MEANS_OF_MEDIANS,
    MEANS_OF_MEANS, /* the score of GPU MODE's contests */
    MEANS_OF,
};

/* Adds "geometric means of totals over 3 shapes: ll_v2 12.3 us, ll_v1 14.1 us", for all settings
 * with a total at each shape. Adds nothing with one shape, and for medians of a single setting. */
void report_means(const struct report_row *, uint32_t n, enum means_of, struct text *out);

/* Returns the row with the denominator of a question's ratios; NULL: no row has a total. */
const struct report_row *report_base(const struct report_row *, uint32_t n, const char *question);

#endif
