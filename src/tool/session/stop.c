/* Stop rules of bench, which decide from samples alone. */
#include "session/stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/stats.h"

bool stop_is_on(const struct bench_options *o)
{
    return o->ci95 > 0 || o->max_time_ns > 0;
}

static uint64_t least_iterations(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Minimum number of samples of a stop by ci95. */
static uint64_t at_least(const struct bench_options *o)
{
    return least_iterations(o->min_iterations, o->iterations);
}

enum epa_status stop_init(struct stop *s, const struct bench_options *o, struct epa_error *err)
{
    /* With max_time the first sample gives an estimate of the duration of samples. */
    *s = (struct stop){.options = o, .next = o->max_time_ns > 0 ? 1 : at_least(o)};
    s->ns = calloc(o->iterations, sizeof(*s->ns));
    if (s->ns != NULL)
        return EPA_OK;
    return epa_fail_key(err, EPA_ERR_NOMEM, "bench.iterations",
                        "no memory for the stop rule over %u samples: lower bench.iterations",
                        o->iterations);
}

void stop_finish(struct stop *s)
{
    free(s->ns);
    *s = (struct stop){0};
}

/* Sorts ns. Returns the width of the median's 95 % confidence interval relative to the median;
 * INFINITY if there are too few samples for an interval. */
static double width_of(double *ns, uint64_t n)
{
    uint64_t k = interval_of_median(n);
    double median;

    if (k == 0)
        return INFINITY;
    stats_sort(ns, n);
    median = stats_percentile(ns, n, 500);
    return median > 0 ? (ns[n - k] - ns[k - 1]) / median : INFINITY;
}

/* Estimates the number of samples until the time `at` from the mean of the previous samples. */
static uint64_t samples_until(const struct stop *s, uint64_t elapsed_ns, uint64_t at)
{
    double each = (double)elapsed_ns / (double)s->n;
    double n = at > elapsed_ns && each > 0 ? (double)(at - elapsed_ns) / each : 0;

    return n < (double)UINT32_MAX ? (uint64_t)n : UINT32_MAX;
}

/* Returns the number of samples of the next evaluation. */
static uint64_t next_evaluation(const struct stop *s, uint64_t elapsed_ns)
{
    const struct bench_options *o = s->options;
    uint64_t n = s->n, more = n;

    if (o->ci95 > 0) {
        if (n < at_least(o))
            more = at_least(o) - n;
        else if (elapsed_ns < o->min_time_ns)
            more = least_iterations(n, samples_until(s, elapsed_ns, o->min_time_ns) + 1);
        else
            more = n / 4;
    }
    /* Evaluates again at half of the remaining time, since samples may become slower, and at most at
     * twice the present number of samples. */
    if (o->max_time_ns > 0)
        more = least_iterations(least_iterations(more, n),
                                samples_until(s, elapsed_ns, o->max_time_ns) / 2);
    return least_iterations(n + (more > 0 ? more : 1), o->iterations);
}

enum stop_reason stop_poll(struct stop *s, uint64_t elapsed_ns)
{
    const struct bench_options *o = s->options;

    if (o->ci95 > 0 && s->n >= at_least(o) && elapsed_ns >= o->min_time_ns &&
        width_of(s->ns, s->n) <= o->ci95)
        return STOP_CI95;
    if (o->max_time_ns > 0 && elapsed_ns >= o->max_time_ns)
        return STOP_TIME;
    if (s->n >= o->iterations)
        return STOP_ITERATIONS;
    s->next = next_evaluation(s, elapsed_ns);
    return STOP_NOT;
}

const char *stop_name(enum stop_reason reason)
{
    return reason == STOP_ITERATIONS ? "iterations"
           : reason == STOP_CI95     ? "ci95"
           : reason == STOP_TIME     ? "time"
                                     : NULL;
}

enum stop_reason stop_reason(const char *name)
{
    enum stop_reason reason = STOP_TIME;

    while (reason != STOP_NOT && strcmp(stop_name(reason), name) != 0)
        reason--;
    return reason;
}
