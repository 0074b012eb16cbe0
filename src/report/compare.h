/* Whether one side is slower than another, of samples that are neither normal nor
 * independent. */
#ifndef COMPARE_H
#define COMPARE_H

#include <epa2a/status.h>
#include <stdint.h>

/* The samples of one run, in the order in which they were taken. */
struct compare_run {
    const double *sample; /* > 0 */
    uint64_t n;
};

/* All runs of one experiment on one side. */
struct compare_side {
    const struct compare_run *run;
    uint32_t n;
};

struct comparison {
    uint64_t samples_a, samples_b;
    double a, b;               /* medians, nearest rank, of all samples of a side */
    double ratio;              /* b / a */
    double low, high;          /* of the ratio, 95 % */
    double p;                  /* that both sides are alike, two-sided */
    uint32_t units_a, units_b; /* what p was taken of: runs, or blocks of samples */
};

enum { COMPARE_RUNS = 5 }; /* on each side, from which on runs are the units of p */

/* Samples that stand side by side are alike: noise comes in phases. So the interval is the
 * bootstrap's over runs and, within a run, over blocks of about sqrt(n) neighbours, 2000
 * times by a fixed seed; and p is that of Mann and Whitney, with ties, of the medians of
 * runs, or with fewer than COMPARE_RUNS of them of the medians of blocks. Both sides need a
 * sample. EPA_ERR_NOMEM. */
enum epa_status compare_sides(const struct compare_side *a, const struct compare_side *b,
                              struct comparison *out);

/* Two-sided p of Mann and Whitney. Exact for up to COMPARE_EXACT values without ties; else by
 * the normal distribution, corrected for ties and continuity; 1 where all are equal. Leaves
 * the values as they are. NaN: no memory. */
enum { COMPARE_EXACT = 40 };
double compare_ranks(const double *a, uint32_t n_a, const double *b, uint32_t n_b);

#endif
