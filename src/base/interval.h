/* Medians of samples, and how sure one is: an interval that needs no distribution, by order
 * statistics. */
#ifndef INTERVAL_H
#define INTERVAL_H

#include <stdint.h>

enum { INTERVAL_LEAST = 6 }; /* with fewer samples there is no such interval */

/* The largest k such that of n sorted samples, counted from 1, the k-th from below and the
 * k-th from above have the median of what they were drawn from between them in 95 % of all
 * cases or more: fewer than k of n fair coins show heads in 2.5 % of all throws at most (the
 * sign test's interval). 0: n is less than INTERVAL_LEAST. Samples are taken to be
 * independent; those that follow each other are more alike than that. */
uint64_t interval_of_median(uint64_t n);

/* Of n > 0 samples, which it sorts; of an even number the lower of the two in the middle. */
double median_by_sorting(double *sample, uint64_t n);

#endif
