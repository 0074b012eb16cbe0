/* Statistics of samples that are neither normal nor independent: percentiles, spread and outliers
 * of one run, the interval of a median, and whether one side is slower than another. */
#ifndef STATS_H
#define STATS_H

#include <stdint.h>

enum { INTERVAL_LEAST = 6 }; /* with fewer samples there is no such interval */

/* The largest k such that of n sorted samples, counted from 1, the k-th from below and the
 * k-th from above have the median of what they were drawn from between them in 95 % of all
 * cases or more: fewer than k of n fair coins show heads in 2.5 % of all throws at most (the
 * sign test's interval). 0: n is less than INTERVAL_LEAST. Samples are taken to be
 * independent; those that follow each other are more alike than that. */
uint64_t interval_of_median(uint64_t n);

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
                       * samples; NaN: fewer than INTERVAL_LEAST */
    uint64_t outliers; /* modified z-score, |x - median| / mad, above STATS_OUTLIER;
                        * none where mad is 0 */
};

enum { STATS_P999_LEAST = 1000 };
#define STATS_OUTLIER 14.826 /* ten standard deviations, if samples were normal */

/* Does not change `sample`. `scratch` has room for n. No sample may be NaN. */
struct stats stats_of(const double *sample, uint64_t n, double *scratch);

/* The percentile by nearest rank of n > 0 sorted samples; 500 is the median. */
double stats_percentile(const double *sorted, uint64_t n, uint32_t permille);
void stats_sort(double *sample, uint64_t n);
/* The same of samples that are not, which it sorts; NaN: there are none. */
double stats_quantile(double *sample, uint64_t n, uint32_t permille);

/* How many samples fall into each of `places` equal parts of low to high; the last one has those
 * above, too. None may be less than low. */
void stats_histogram(const double *sample, uint64_t n, double low, double high, uint64_t *place,
                     uint32_t places);

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

/* The median of a side and its bounds. The units are the runs of a side with several runs; the
 * samples of a single run are cut into blocks of about sqrt(n) neighbours, and every sample is in
 * one block. low <= median <= high, also where samples are few or skewed. */
struct spread {
    double median; /* of the medians of runs, or of all samples of a single run */
    /* 95 % by order statistics of the medians of units. With fewer than INTERVAL_LEAST units the
     * range of the medians of runs, or of all samples of a single run. */
    double low, high;
    uint32_t units; /* runs or blocks */
};

/* A side with a sample. */
struct spread spread_of_side(const struct compare_side *);

enum { COMPARE_RUNS = 5 }; /* on each side, from which on runs differ from chance */

struct comparison {
    double a, b;      /* medians, nearest rank, of all samples of a side */
    double ratio;     /* b / a */
    double low, high; /* of the ratio, 95 % */
    double p;         /* that both sides are alike, two-sided; NaN: not known */
    uint32_t runs_a, runs_b;
};

enum compare_verdict { COMPARE_SAME, COMPARE_SLOWER, COMPARE_FASTER, COMPARE_UNCLEAR };

/* b / a. A time of 0 is below one step of the clock, and so two such times are equal as far as the
 * clock can tell. */
double compare_ratio(double a, double b);

/* The interval is the bootstrap's over runs and, within a run, over blocks of about sqrt(n)
 * neighbours (samples that stand side by side are alike), 2000 times by a fixed seed; p is that of
 * Mann and Whitney of the medians of runs, with COMPARE_RUNS or more a side: samples of one
 * process tell nothing of the next one. Both sides need a sample. */
struct comparison compare_sides(const struct compare_side *a, const struct compare_side *b);

/* The verdict on a ratio b / a with its interval. SAME: the ratio differs from 1 by up to
 * `threshold`. SLOWER, FASTER: it differs by more, and the interval does not contain 1. UNCLEAR:
 * it differs by more, and the interval contains 1 or is not known (NaN). */
enum compare_verdict compare_interval(double ratio, double low, double high, double threshold);

/* The verdict of compare_interval(), but UNCLEAR where p is above alpha or not known. */
enum compare_verdict compare_judge(const struct comparison *, double threshold, double alpha);

/* What a round of two sides says: the logarithm of b / a, by so many per mille of their samples in
 * order; block: these alternated, block by block, and it is the middle of what pairs of blocks say,
 * but for the first pair, in which caches and cores are still cold; 0: of all. The other way round
 * it is the negative of it. */
double turns_figure(const struct compare_run *a, const struct compare_run *b, uint64_t block,
                    uint32_t permille);

/* Two sides that took turns: each round is A B or B A, and
 * its figure the logarithm of b / a. By signed ranks (Hodges and Lehmann; Wilcoxon), which assume
 * no more than rounds that are as likely above as below the truth. Looks are taken after rounds
 * turns_look(1), turns_look(2), ...; look k may err with alpha / (k (k + 1)), so all of them
 * together with alpha. Fills ratio, low, high (NaN: too few rounds) and p. SAME: both bounds are
 * nearer to 1 than the threshold; UNCLEAR: go on. At least one round. */
uint32_t turns_look(uint32_t k);
enum compare_verdict turns_judge(const double *log_ratio, uint32_t rounds, uint32_t look,
                                 double threshold, double alpha, struct comparison *out);

/* Two-sided p of Mann and Whitney. Exact for up to COMPARE_EXACT values, with ties as well; else
 * by the normal distribution, corrected for ties and continuity; 1 where all are equal. Leaves
 * the values as they are. */
enum { COMPARE_EXACT = 40 };
double compare_ranks(const double *a, uint32_t n_a, const double *b, uint32_t n_b);

#endif
