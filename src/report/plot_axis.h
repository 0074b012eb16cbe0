/* Axes: ranges that fit, ticks at round numbers, and bins for histograms. */
#ifndef PLOT_AXIS_H
#define PLOT_AXIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct plot_axis {
    const char *label;
    uint32_t base; /* of a logarithmic one: 2 or 10; 0: it is linear */
    double low, high;
};

/* Makes the range hold low to high, ending at round numbers: powers of 2 on such an axis, 1,
 * 2 or 5 times a power of ten else. A range of one value gets room on both sides. On a
 * logarithmic axis both must be above 0. */
void plot_axis_fit(struct plot_axis *, double low, double high);

/* Where a value is on the axis: 0 at its low end, 1 at its high one. */
double plot_axis_place(const struct plot_axis *, double value);

enum { PLOT_TICKS = 16, PLOT_NUMBER = 24 };
struct plot_ticks {
    uint32_t n;
    double at[PLOT_TICKS];
};
/* Round numbers in the range, no more than `most`, which is 5 to PLOT_TICKS. */
void plot_ticks(const struct plot_axis *, uint32_t most, struct plot_ticks *out);

/* Three digits that say something, and no exponent between 0.001 and 10^7. Returns buf. */
char *plot_number(char *buf, size_t room, double value);

enum { PLOT_BINS = 30 };
struct plot_bins {
    double low, width;
    uint32_t n;
    uint64_t count[PLOT_BINS];
    bool open; /* the last one has everything from its low edge on */
};
/* Of n > 0 sorted samples. Width by Freedman and Diaconis (On the histogram as a density
 * estimator), made round; far outliers above are counted in an open last bin, so that they do
 * not press all others into one. */
void plot_bins(const double *sorted, uint64_t n, struct plot_bins *out);

/* Nearest rank, as stats.h has it, of n > 0 sorted samples. */
double plot_percentile(const double *sorted, uint64_t n, uint32_t percent);

#endif
