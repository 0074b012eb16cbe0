/* Statistics of samples: percentiles and spread of one run, the interval of a median, and the
 * comparison of two sides. */
#include "base/stats.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

enum { REPLICATES = 2000 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* ---- the interval of a median ---- */

/* Returns the probability of m heads in n coins, m = n / 2 rounded down, as a product of numbers
 * near 1: the product of (2i - 1) / 2i, i up to m, is the probability for 2m coins. */
static double central_probability(uint64_t n)
{
    uint64_t m = n / 2;
    double p = 1;

    for (uint64_t i = 1; i <= m; i++)
        p *= (double)(2 * i - 1) / (double)(2 * i);
    return n % 2 == 0 ? p : p * (double)n / (double)(2 * (m + 1));
}

/* Sums the tail of the binomial distribution for one half from its middle, where terms neither
 * vanish nor overflow. */
uint64_t interval_of_median(uint64_t n)
{
    uint64_t heads = n / 2;
    double term = central_probability(n), below;

    if (n < INTERVAL_LEAST)
        return 0;
    /* Up to `heads` heads, inclusive: with even n the middle counts for both halves. */
    below = n % 2 == 0 ? 0.5 + term / 2 : 0.5;
    while (below > 0.025) {
        below -= term;
        term *= (double)heads / (double)(n - heads + 1);
        heads--;
    }
    return heads + 1; /* fewer than this number means at most `heads` */
}

/* ---- one run ---- */

void stats_sort(double *sample, uint64_t n)
{
    qsort(sample, n, sizeof(*sample), by_value);
}

double stats_percentile(const double *sorted, uint64_t n, uint32_t permille)
{
    uint64_t rank = n / 1000 * permille + (n % 1000 * permille + 999) / 1000;

    return sorted[rank > 0 ? rank - 1 : 0];
}

double stats_quantile(double *sample, uint64_t n, uint32_t permille)
{
    stats_sort(sample, n);
    return n > 0 ? stats_percentile(sample, n, permille) : NAN;
}

void stats_histogram(const double *sample, uint64_t n, double low, double high, uint64_t *place,
                     uint32_t places)
{
    memset(place, 0, places * sizeof(*place));
    for (uint64_t i = 0; i < n; i++) {
        double at = high > low ? (sample[i] - low) / (high - low) * places : 0;

        place[at >= places ? places - 1 : (uint32_t)at]++;
    }
}

/* Two passes: in one pass, the difference of the squares of times near 10^9 would be noise. */
static void compute_moments(const double *sample, uint64_t n, struct stats *s)
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
    struct stats s = {0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 0};
    uint64_t k = interval_of_median(n);

    if (n == 0)
        return s;
    s.n = n;
    memcpy(scratch, sample, n * sizeof(*scratch));
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
    compute_moments(sample, n, &s);
    deviations(sample, n, scratch, &s);
    return s;
}

/* ---- two sides ---- */

/* Returns the k-th smallest of n, from 0 (Hoare). Reorders the values. */
static double select_kth(double *x, uint64_t n, uint64_t k)
{
    uint64_t low = 0, high = n - 1;

    while (low < high) {
        double pivot = x[low + (high - low) / 2];
        uint64_t i = low, j = high;

        for (;;) {
            double swap;

            while (x[i] < pivot)
                i++;
            while (x[j] > pivot)
                j--;
            if (i >= j)
                break;
            swap = x[i];
            x[i++] = x[j];
            x[j--] = swap;
        }
        if (k <= j && j < high)
            high = j;
        else if (k <= j)
            high--; /* the pivot is the largest value */
        else
            low = j + 1;
    }
    return x[k];
}

/* Returns the median by nearest rank, see stats.h. Reorders the samples. */
static double median(double *sample, uint64_t n)
{
    return select_kth(sample, n, (n - 1) / 2);
}

static uint64_t samples_of(const struct compare_side *s)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->n; i++)
        n += s->run[i].n;
    return n;
}

/* Returns the length of a block of samples. */
static uint64_t block_of(uint64_t n)
{
    uint64_t block = (uint64_t)sqrt((double)n);

    return block > 0 ? block : 1;
}

static double median_of_all(const struct compare_side *s, double *scratch)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        memcpy(scratch + n, s->run[i].sample, s->run[i].n * sizeof(*scratch));
        n += s->run[i].n;
    }
    return median(scratch, n);
}

/* ---- the interval ---- */

/* Draws blocks of a run at any position; the end of the run is joined to its start. */
static void draw_run_blocks(struct random *r, const struct compare_run *run, double *out)
{
    uint64_t block = block_of(run->n);

    for (uint64_t i = 0; i < run->n;) {
        uint64_t at = random_below(r, (uint32_t)run->n);

        for (uint64_t k = 0; k < block && i < run->n; k++)
            out[i++] = run->sample[(at + k) % run->n];
    }
}

static double draw_median(struct random *r, const struct compare_side *s, double *scratch)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        const struct compare_run *run = &s->run[s->n > 1 ? random_below(r, s->n) : 0];

        draw_run_blocks(r, run, scratch + n);
        n += run->n;
    }
    return median(scratch, n);
}

/* ---- p ---- */

struct ranked {
    double value;
    bool of_a;
};

static int by_rank(const void *a, const void *b)
{
    return by_value(&((const struct ranked *)a)->value, &((const struct ranked *)b)->value);
}

/* Returns twice the ranks of all values in order (twice, so that the mean rank of a tie is whole),
 * twice the rank sum of a, and the sum of t^3 - t over ties of t values. */
static uint32_t rank_all(const double *a, uint32_t n_a, const double *b, uint32_t n_b,
                         uint32_t *twice, double *ties)
{
    uint32_t n = n_a + n_b, of_a = 0;
    struct ranked *all = memory_alloc(n, sizeof(*all));

    *ties = 0;
    for (uint32_t i = 0; i < n; i++)
        all[i] = (struct ranked){i < n_a ? a[i] : b[i - n_a], i < n_a};
    qsort(all, n, sizeof(*all), by_rank);
    for (uint32_t i = 0, end; i < n; i = end) {
        double count;

        for (end = i + 1; end < n && !(all[end].value > all[i].value); end++)
            ;
        count = end - i;
        *ties += count * count * count - count;
        for (uint32_t k = i; k < end; k++) { /* each has the mean of ranks i + 1 to end */
            twice[k] = i + 1 + end;
            of_a += all[k].of_a ? twice[k] : 0;
        }
    }
    free(all);
    return of_a;
}

/* Returns the fraction of all draws of n_a of n ranks whose sum is at least as far from the
 * mean. */
static double exact_p(const uint32_t *twice, uint32_t n, uint32_t n_a, uint32_t sum)
{
    uint32_t sums = n * (n + 1) + 1, mean = n_a * (n + 1);
    /* [n_a + 1][sums] number of draws of so many ranks with that sum, for the ranks so far */
    double *ways = memory_alloc((size_t)(n_a + 1) * sums, sizeof(*ways)), far = 0, all = 0;

    ways[0] = 1;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i < n_a ? i + 1 : n_a; k > 0; k--)
            for (uint32_t s = twice[i]; s < sums; s++)
                ways[k * sums + s] += ways[(k - 1) * sums + s - twice[i]];
    for (uint32_t s = 0; s < sums; s++) {
        double w = ways[n_a * sums + s];

        all += w;
        far += abs((int32_t)(s - mean)) >= abs((int32_t)(sum - mean)) ? w : 0;
    }
    free(ways);
    return far / all;
}

double compare_ranks(const double *a, uint32_t n_a, const double *b, uint32_t n_b)
{
    uint32_t n = n_a + n_b, *twice = memory_alloc(n, sizeof(*twice)), sum;
    double ties, variance, z, p = 1;

    sum = rank_all(a, n_a, b, n_b, twice, &ties);
    if (n <= COMPARE_EXACT) {
        p = exact_p(twice, n, n_a, sum);
    } else {
        variance = (double)n_a * n_b / 12 * (n + 1 - ties / ((double)n * (n - 1)));
        z = (fabs((double)sum - (double)n_a * (n + 1)) / 2 - 0.5) / sqrt(variance);
        if (variance > 0 && z > 0)
            p = erfc(z / sqrt(2));
    }
    free(twice);
    return p;
}

/* Computes the medians of runs, or of their blocks; out NULL: only counts. Returns their number. */
static uint64_t make_units(const struct compare_side *s, bool by_run, double *scratch, double *out)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        const struct compare_run *run = &s->run[i];
        uint64_t blocks = by_run ? 1 : run->n / block_of(run->n);

        for (uint64_t k = 0; k < blocks; k++, n++) {
            uint64_t at = k * run->n / blocks, size = (k + 1) * run->n / blocks - at;

            if (out == NULL)
                continue;
            memcpy(scratch, run->sample + at, size * sizeof(*scratch));
            out[n] = median(scratch, size);
        }
    }
    return n;
}

/* Extends the interval to the value itself. The medians of blocks, and resampled medians, may all
 * be on one side of the median of all samples. */
static void include_value(double value, double *low, double *high)
{
    *low = fmin(*low, value);
    *high = fmax(*high, value);
}

struct spread spread_of_side(const struct compare_side *s)
{
    bool by_run = s->n > 1;
    uint64_t n = make_units(s, by_run, NULL, NULL), samples = samples_of(s),
             k = interval_of_median(n);
    double *unit = memory_alloc(n + samples, sizeof(*unit)), *scratch = unit + n;
    struct spread out;

    make_units(s, by_run, scratch, unit);
    stats_sort(unit, n);
    out.units = (uint32_t)n;
    out.median = by_run ? stats_percentile(unit, n, 500) : median_of_all(s, scratch);
    out.low = unit[k > 0 ? k - 1 : 0];
    out.high = unit[k > 0 ? n - k : n - 1];
    for (uint64_t i = 0; k == 0 && !by_run && i < samples; i++)
        include_value(scratch[i], &out.low, &out.high);
    include_value(out.median, &out.low, &out.high);
    free(unit);
    return out;
}

double compare_ratio(double a, double b)
{
    return a == 0 && b == 0 ? 1 : b / a;
}

struct comparison compare_sides(const struct compare_side *a, const struct compare_side *b)
{
    uint64_t n_a = samples_of(a), n_b = samples_of(b), room = 0;
    double *scratch, *ratio = memory_alloc(REPLICATES + (size_t)a->n + b->n, sizeof(*ratio));
    double *unit = ratio + REPLICATES;
    struct random r = {.key = random_mix(1)};
    struct comparison out = {.p = NAN, .runs_a = a->n, .runs_b = b->n};

    for (uint32_t i = 0; i < a->n + b->n; i++) {
        uint64_t n = i < a->n ? a->run[i].n : b->run[i - a->n].n;

        room = n > room ? n : room;
    }
    room *= a->n > b->n ? a->n : b->n; /* each draw may select the longest run */
    scratch = memory_alloc(room + n_a + n_b, sizeof(*scratch));
    out.a = median_of_all(a, scratch);
    out.b = median_of_all(b, scratch);
    out.ratio = compare_ratio(out.a, out.b);
    for (uint32_t i = 0; i < REPLICATES; i++) {
        double of_a = draw_median(&r, a, scratch);

        ratio[i] = compare_ratio(of_a, draw_median(&r, b, scratch));
    }
    stats_sort(ratio, REPLICATES);
    out.low = ratio[REPLICATES * 25 / 1000];
    out.high = ratio[REPLICATES * 975 / 1000 - 1];
    include_value(out.ratio, &out.low, &out.high);
    if (a->n >= COMPARE_RUNS && b->n >= COMPARE_RUNS) {
        make_units(a, true, scratch, unit);
        make_units(b, true, scratch, unit + a->n);
        out.p = compare_ranks(unit, a->n, unit + a->n, b->n);
    }
    free(scratch);
    free(ratio);
    return out;
}

bool stats_are_separable(uint32_t n, uint32_t m)
{
    double orders = 1;

    for (uint32_t i = 1; i <= n && orders < 40; i++)
        orders *= (double)(m + i) / i;
    return orders >= 40; /* 2 of 40 are 5 % */
}

enum compare_verdict compare_interval(double ratio, double low, double high, double threshold)
{
    if (ratio <= 1 + threshold && ratio >= 1 / (1 + threshold))
        return COMPARE_SAME;
    if (low > 1)
        return COMPARE_SLOWER;
    return high < 1 ? COMPARE_FASTER : COMPARE_UNCLEAR;
}

enum compare_verdict compare_judge(const struct comparison *x, double threshold, double alpha)
{
    enum compare_verdict verdict = compare_interval(x->ratio, x->low, x->high, threshold);

    if (x->a == 0 && x->b == 0)
        return COMPARE_UNCLEAR;
    return verdict == COMPARE_SAME || x->p <= alpha ? verdict : COMPARE_UNCLEAR;
}

/* ---- two alternating sides ---- */

static double log_percentile(const double *sample, uint64_t n, uint32_t permille, double *scratch)
{
    memcpy(scratch, sample, n * sizeof(*scratch));
    stats_sort(scratch, n);
    return log(stats_percentile(scratch, n, permille));
}

double turns_figure(const struct compare_run *a, const struct compare_run *b, uint64_t block,
                    uint32_t permille)
{
    uint64_t shorter = a->n < b->n ? a->n : b->n, pairs = block > 0 ? shorter / block : 0;
    double *figure = memory_alloc(pairs + a->n + b->n, sizeof(*figure)), *scratch = figure + pairs;
    uint64_t first = pairs > 1 ? 1 : 0, n;
    double out;

    /* Blocks whose percentile is below one step of the clock have no figure. */
    n = 0;
    for (uint64_t k = first; k < pairs; k++) {
        figure[n] = log_percentile(b->sample + k * block, block, permille, scratch) -
                    log_percentile(a->sample + k * block, block, permille, scratch);
        n += isfinite(figure[n]);
    }
    stats_sort(figure, n);
    out = n > 0 ? (figure[(n - 1) / 2] + figure[n / 2]) / 2
                : log_percentile(b->sample, b->n, permille, scratch) -
                      log_percentile(a->sample, a->n, permille, scratch);
    free(figure);
    return out;
}

uint32_t turns_look(uint32_t k)
{
    double rounds = 10;

    for (uint32_t i = 1; i < k; i++)
        rounds *= 1.5;
    return (uint32_t)rounds;
}

/* below[s]: the probability that the sum of ranks above, of n fair coins, is s or less. */
static double *signed_ranks(uint32_t n)
{
    uint32_t most = n * (n + 1) / 2;
    double *below = memory_alloc(most + 1, sizeof(*below));

    below[0] = 1;
    for (uint32_t rank = 1; rank <= n; rank++)
        for (uint32_t s = rank * (rank + 1) / 2 + 1; s-- > 0;)
            below[s] = (below[s] + (s >= rank ? below[s - rank] : 0)) / 2;
    for (uint32_t s = 1; s <= most; s++)
        below[s] += below[s - 1];
    return below;
}

enum compare_verdict turns_judge(const double *log_ratio, uint32_t rounds, uint32_t look,
                                 double threshold, double alpha, struct comparison *out)
{
    uint32_t pairs = rounds * (rounds + 1) / 2, n = 0, above = 0, cut = 0;
    double *mean = memory_alloc(pairs, sizeof(*mean)), *below = signed_ranks(rounds);
    double near = log1p(threshold), middle;
    enum compare_verdict verdict = COMPARE_UNCLEAR;
    bool known = true;

    for (uint32_t i = 0; i < rounds; i++)
        known = known && isfinite(log_ratio[i]);
    if (!known) {
        free(mean);
        free(below);
        out->ratio = out->low = out->high = out->p = NAN;
        return COMPARE_UNCLEAR;
    }
    for (uint32_t i = 0; i < rounds; i++)
        for (uint32_t k = i; k < rounds; k++)
            mean[n++] = (log_ratio[i] + log_ratio[k]) / 2;
    stats_sort(mean, pairs);
    for (uint32_t i = 0; i < pairs; i++)
        above += mean[i] > 0;
    middle = (mean[(pairs - 1) / 2] + mean[pairs / 2]) / 2;
    out->ratio = exp(middle);
    out->p = fmin(1, 2 * below[above < pairs - above ? above : pairs - above]);
    alpha /= (double)look * (look + 1);
    while (2 * cut < pairs && 2 * below[cut] <= alpha)
        cut++;
    out->low = out->high = NAN;
    if (cut > 0) {
        double low = mean[cut - 1], high = mean[pairs - cut];

        out->low = exp(low);
        out->high = exp(high);
        if (low > -near && high < near)
            verdict = COMPARE_SAME;
        else if (low > 0 && middle > near)
            verdict = COMPARE_SLOWER;
        else if (high < 0 && middle < -near)
            verdict = COMPARE_FASTER;
    }
    free(mean);
    free(below);
    return verdict;
}
