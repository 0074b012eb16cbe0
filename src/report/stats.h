/* Percentiles (nearest rank), spread and outliers of samples. */
#ifndef STATS_H
#define STATS_H

#include <stdint.h>

/* A percentile is a sample that was measured, never a value between two: the smallest one
 * that at least p percent of all do not exceed. The median of an even number is therefore
 * the lower of the two in the middle. With fewer than 20 samples p95, and with fewer than
 * 100 p99, is the largest of all; p99.9 is not known (NaN) with fewer than 1000. */
struct stats {
    uint64_t n;
    double min, median, p95, p99, p999, max; /* NaN where n is 0, as all that follow */
    double mean, stdev, mad;                 /* stdev: n - 1, 0 for one sample;
                                        * mad: median absolute deviation, not scaled */
    double cv;                               /* coefficient of variation: stdev / mean */
    double low, high;  /* 95 % interval of the median by order statistics, both of them
                       * samples; NaN: fewer than INTERVAL_LEAST (base/stats.h) */
    uint64_t outliers; /* modified z-score, |x - median| / mad, above STATS_OUTLIER;
                        * none where mad is 0 */
};

enum { STATS_P999_LEAST = 1000 };
#define STATS_OUTLIER 14.826 /* ten standard deviations, if samples were normal */

/* Does not change `sample`. `scratch` has room for n. No sample may be NaN. */
struct stats stats_of(const double *sample, uint64_t n, double *scratch);

#endif
