/* Medians of samples, and how sure one is: an interval that needs no distribution, by order
 * statistics. */
#ifndef BASE_STATS_H
#define BASE_STATS_H

#include <stdint.h>

enum { INTERVAL_LEAST = 6 }; /* with fewer samples there is no such interval */

/* The largest k such that of n sorted samples, counted from 1, the k-th from below and the
 * k-th from above have the median of what they were drawn from between them in 95 % of all
 * cases or more: fewer than k of n fair coins show heads in 2.5 % of all throws at most (the
 * sign test's interval). 0: n is less than INTERVAL_LEAST. Samples are taken to be
 * independent; those that follow each other are more alike than that. */
uint64_t interval_of_median(uint64_t n);

/* The percentile by nearest rank of n > 0 sorted samples; 500 is the median. */
double stats_percentile(const double *sorted, uint64_t n, uint32_t permille);
void stats_sort(double *sample, uint64_t n);

#endif
