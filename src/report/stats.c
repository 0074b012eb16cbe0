/* Statistics of samples. Everything is read off the sorted samples; the deviations from the
 * median are sorted in turn for the MAD. */
#include "report/stats.h"

#include <math.h>

#include "base/stats.h"

/* Two passes: with one, what is left of times of 10^9 after the squares is noise. */
static void moments(const double *sample, uint64_t n, struct stats *s)
{
    double sum = 0, squares = 0;

    for (uint64_t i = 0; i < n; i++)
        sum += sample[i];
    s->mean = sum / (double)n;
    for (uint64_t i = 0; i < n; i++)
        squares += (sample[i] - s->mean) * (sample[i] - s->mean);
    s->stdev = n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
    s->cv = s->stdev / s->mean;
}

static void deviations(const double *sample, uint64_t n, double *scratch, struct stats *s)
{
    for (uint64_t i = 0; i < n; i++)
        scratch[i] = fabs(sample[i] - s->median);
    stats_sort(scratch, n);
    s->mad = stats_percentile(scratch, n, 500);
    for (uint64_t i = n; s->mad > 0 && i > 0; i--) {
        if (scratch[i - 1] / s->mad <= STATS_OUTLIER)
            break;
        s->outliers++;
    }
}

struct stats stats_of(const double *sample, uint64_t n, double *scratch)
{
    struct stats s = {.n = 0,
                      .min = NAN,
                      .median = NAN,
                      .p95 = NAN,
                      .p99 = NAN,
                      .p999 = NAN,
                      .max = NAN,
                      .mean = NAN,
                      .stdev = NAN,
                      .mad = NAN,
                      .cv = NAN,
                      .low = NAN,
                      .high = NAN};
    uint64_t k = interval_of_median(n);

    if (n == 0)
        return s;
    s.n = n;
    for (uint64_t i = 0; i < n; i++)
        scratch[i] = sample[i];
    stats_sort(scratch, n);
    s.min = scratch[0];
    s.median = stats_percentile(scratch, n, 500);
    s.p95 = stats_percentile(scratch, n, 950);
    s.p99 = stats_percentile(scratch, n, 990);
    if (n >= STATS_P999_LEAST)
        s.p999 = stats_percentile(scratch, n, 999);
    s.max = scratch[n - 1];
    if (k > 0) {
        s.low = scratch[k - 1];
        s.high = scratch[n - k];
    }
    moments(sample, n, &s);
    deviations(sample, n, scratch, &s);
    return s;
}
