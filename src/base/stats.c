/* The tail of the binomial distribution for one half, summed up from its middle, where terms
 * are neither lost nor overflow. */
#include "base/stats.h"

#include <stdlib.h>

/* The probability of m heads in n coins, m = n / 2 rounded down, as a product of numbers near
 * 1: (2i - 1) / 2i, i up to m, is that of 2m coins. */
static double middle(uint64_t n)
{
    uint64_t m = n / 2;
    double p = 1;

    for (uint64_t i = 1; i <= m; i++)
        p *= (double)(2 * i - 1) / (double)(2 * i);
    return n % 2 == 0 ? p : p * (double)n / (double)(2 * (m + 1));
}

uint64_t interval_of_median(uint64_t n)
{
    uint64_t heads = n / 2;
    double term = middle(n), below;

    if (n < INTERVAL_LEAST)
        return 0;
    /* Up to `heads` heads, itself included: of an even n the middle counts for both halves. */
    below = n % 2 == 0 ? 0.5 + term / 2 : 0.5;
    while (below > 0.025) {
        below -= term;
        term *= (double)heads / (double)(n - heads + 1);
        heads--;
    }
    return heads + 1; /* fewer than that many, that is up to `heads` */
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void stats_sort(double *sample, uint64_t n)
{
    qsort(sample, n, sizeof(*sample), by_value);
}

/* The ceil(n * permille / 1000)-th. */
double stats_percentile(const double *sorted, uint64_t n, uint32_t permille)
{
    uint64_t rank = n / 1000 * permille + (n % 1000 * permille + 999) / 1000;

    return sorted[rank > 0 ? rank - 1 : 0];
}
