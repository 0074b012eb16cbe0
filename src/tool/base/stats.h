/* Statistics of samples that are neither normal nor independent: percentiles, spread and outliers
 * of one run, the interval of a median, and the comparison of two sides. */
#ifndef STATS_H
#define STATS_H

#include <stdbool.h>
#include <stdint.h>

enum { INTERVAL_LEAST = 6 }; /* an interval needs at least this number of samples */

/* Returns the largest k such that, in at least 95 % of all cases, the median of the distribution
 * lies between the k-th smallest and the k-th largest of n samples: fewer than k of n fair coins
 * show heads in at most 2.5 % of all throws (the sign test's interval). 0: n is less than
 * INTERVAL_LEAST. The formula assumes independent samples; successive samples are correlated. */
uint64_t interval_of_median(uint64_t n);

/* A percentile is a measured sample, never a value between two: the smallest sample that at least p
 * percent of all samples do not exceed. The median of an even number is therefore the lower of the
 * two in the middle. With fewer than 20 samples p95, and with fewer than 100 p99, is the maximum;
 * p99.9 is unknown (NaN) with fewer than 1000. */
struct stats {
    uint64_t n;
    double min, median, p95, p99, p999, max; /* NaN if n is 0, like all following fields */
    /* stdev: n - 1, 0 for one sample; mad: median absolute deviation, not scaled. */
    double mean, stdev, mad;
    double cv; /* coefficient of variation: stdev / mean */
    /* 95 % interval of the median by order statistics, both bounds are samples; NaN: fewer than
     * INTERVAL_LEAST. */
    double low, high;
    /* Modified z-score, |x - median| / mad, above STATS_OUTLIER; none where mad is 0. */
    uint64_t outliers;
};

enum { STATS_P999_LEAST = 1000 };
#define STATS_OUTLIER 14.826 /* ten standard deviations of normal samples */

/* Returns the statistics. Does not change `sample`. `scratch` has room for n. No sample may be
 * NaN. */
struct stats stats_of(const double *sample, uint64_t n, double *scratch);

/* Returns the percentile by nearest rank of n > 0 sorted samples; 500 is the median. */
double stats_percentile(const double *sorted, uint64_t n, uint32_t permille);
void stats_sort(double *sample, uint64_t n);
/* The same for unsorted samples, which the function sorts; NaN: n is 0. */
double stats_quantile(double *sample, uint64_t n, uint32_t permille);

/* Counts the samples in each of `places` equal parts of low to high; the last part includes samples
 * above. No sample may be less than low. */
void stats_histogram(const double *sample, uint64_t n, double low, double high, uint64_t *place,
                     uint32_t places);

/* The samples of one run, in the order of measurement. */
struct compare_run {
    const double *sample; /* > 0 */
    uint64_t n;
};

/* All runs of one experiment on one side. */
struct compare_side {
    const struct compare_run *run;
    uint32_t n;
};

/* The median of a side and its bounds. The units of a side with several runs are the runs; the
 * samples of a single run are cut into blocks of about sqrt(n) neighbours, and each sample belongs
 * to one block. low <= median <= high, also for few or skewed samples. */
struct spread {
    double median; /* of the medians of runs, or of all samples of a single run */
    /* 95 % by order statistics of the medians of units. With fewer than INTERVAL_LEAST units the
     * range of the medians of runs, or of all samples of a single run. */
    double low, high;
    uint32_t units; /* runs or blocks */
};

/* Returns the spread of a side with at least one sample. */
struct spread spread_of_side(const struct compare_side *);

enum { COMPARE_RUNS = 5 }; /* on each side, minimum for a test of runs against chance */

struct comparison {
    double a, b;      /* medians, nearest rank, of all samples of a side */
    double ratio;     /* b / a */
    double low, high; /* 95 % interval of the ratio */
    double p; /* two-sided probability of this difference between equal sides; NaN: unknown */
    uint32_t runs_a, runs_b;
};

enum compare_verdict { COMPARE_SAME, COMPARE_SLOWER, COMPARE_FASTER, COMPARE_UNCLEAR };

/* Returns b / a. A time of 0 is below one step of the clock, so two such times count as equal. */
double compare_ratio(double a, double b);

/* Compares two sides. The interval is a bootstrap over runs and, within a run, over blocks of about
 * sqrt(n) neighbours (neighbouring samples are correlated), 2000 draws with a fixed seed. p is the
 * Mann-Whitney test of the medians of runs, with COMPARE_RUNS or more on each side: the samples of
 * one process do not predict the next process. Both sides need a sample. */
struct comparison compare_sides(const struct compare_side *a, const struct compare_side *b);

/* Returns the verdict on a ratio b / a with its interval. SAME: the ratio differs from 1 by up to
 * `threshold`. SLOWER, FASTER: it differs by more, and the interval does not contain 1. UNCLEAR: it
 * differs by more, and the interval contains 1 or is unknown (NaN). */
enum compare_verdict compare_interval(double ratio, double low, double high, double threshold);

/* Returns true if the medians of n and m units of equal sides have ranges that meet in 95 % or more:
 * in any order of n + m units the n units come first or last in 2 of (n + m choose n). */
bool stats_are_separable(uint32_t n, uint32_t m);

/* Returns the verdict of compare_interval(), but UNCLEAR if p is above alpha or unknown. */
enum compare_verdict compare_judge(const struct comparison *, double threshold, double alpha);

/* Returns the figure of one round of two sides: the logarithm of b / a, at this per mille of their
 * sorted samples. block: the sides alternated, block by block, and the figure is the median over
 * pairs of blocks, without the first pair, in which caches and cores are still cold; 0: over all
 * samples. Swapping the sides negates the figure. */
double turns_figure(const struct compare_run *a, const struct compare_run *b, uint64_t block,
                    uint32_t permille);

/* Compares two sides that alternated: each round is A B or B A, and its figure is the logarithm of
 * b / a. Uses signed ranks (Hodges and Lehmann; Wilcoxon), which only assume that a round is above
 * or below the true value with equal probability. Looks follow rounds turns_look(1), turns_look(2),
 * ...; look k may err with alpha / (k (k + 1)), so all looks together with alpha. Fills ratio, low,
 * high (NaN: too few rounds) and p. SAME: both bounds are nearer to 1 than the threshold; UNCLEAR:
 * continue. At least one round. */
uint32_t turns_look(uint32_t k);
enum compare_verdict turns_judge(const double *log_ratio, uint32_t rounds, uint32_t look,
                                 double threshold, double alpha, struct comparison *out);

/* Returns the two-sided p of Mann and Whitney. Exact for up to COMPARE_EXACT values, also with
 * ties; otherwise by the normal distribution, corrected for ties and continuity; 1 if all values
 * are equal. Does not change the values. */
enum { COMPARE_EXACT = 40 };
double compare_ranks(const double *a, uint32_t n_a, const double *b, uint32_t n_b);

#endif
