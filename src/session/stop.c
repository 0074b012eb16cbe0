/* The rule alone, without ranks: numbers in, a decision and the next look out. */
#include "session/stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/stats.h"

bool stop_is_on(const struct bench_options *o)
{
    return o->ci95 > 0 || o->max_time_ns > 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Samples before ci95 may stop: where there are fewer in all, then all. */
static uint64_t at_least(const struct bench_options *o)
{
    return least(o->min_iterations, o->iterations);
}

/* With a limit of time the first sample says how long samples take. */
static uint64_t first_look(const struct bench_options *o)
{
    return o->max_time_ns > 0 ? 1 : at_least(o);
}

enum epa_status stop_init(struct stop *s, const struct bench_options *o, struct epa_error *err)
{
    *s = (struct stop){.options = o, .next = first_look(o)};
    s->ns = calloc(o->iterations, sizeof(*s->ns));
    s->sorted = calloc(o->iterations, sizeof(*s->sorted));
    if (s->ns != NULL && s->sorted != NULL)
        return EPA_OK;
    stop_finish(s);
    return epa_fail(err, EPA_ERR_NOMEM,
                    "no memory for the stop rule over %u samples: lower bench.iterations",
                    o->iterations);
}

void stop_finish(struct stop *s)
{
    free(s->ns);
    free(s->sorted);
    *s = (struct stop){0};
}

double stop_width(double *ns, uint64_t n)
{
    uint64_t k = interval_of_median(n);
    double median;

    if (k == 0)
        return INFINITY;
    stats_sort(ns, n);
    median = stats_percentile(ns, n, 500);
    return median > 0 ? (ns[n - k] - ns[k - 1]) / median : INFINITY;
}

static bool is_narrow(struct stop *s, uint64_t elapsed_ns)
{
    const struct bench_options *o = s->options;

    if (!(o->ci95 > 0) || s->n < at_least(o) || elapsed_ns < o->min_time_ns)
        return false;
    memcpy(s->sorted, s->ns, s->n * sizeof(*s->ns));
    return stop_width(s->sorted, s->n) <= o->ci95;
}

/* Samples that take as long as from now to `at`, if they are like those before. */
static uint64_t samples_until(const struct stop *s, uint64_t elapsed_ns, uint64_t at)
{
    double each = (double)elapsed_ns / (double)s->n;
    double n = at > elapsed_ns && each > 0 ? (double)(at - elapsed_ns) / each : 0;

    return n < (double)UINT32_MAX ? (uint64_t)n : UINT32_MAX;
}

static uint64_t next_look(const struct stop *s, uint64_t elapsed_ns)
{
    const struct bench_options *o = s->options;
    uint64_t n = s->n, more = n;

    if (o->ci95 > 0) {
        if (n < at_least(o))
            more = at_least(o) - n;
        else if (elapsed_ns < o->min_time_ns)
            more = least(n, samples_until(s, elapsed_ns, o->min_time_ns) + 1);
        else
            more = n / 4;
    }
    /* Half way, and again: samples may become slower, and n is no more than doubled. */
    if (o->max_time_ns > 0)
        more = least(least(more, n), samples_until(s, elapsed_ns, o->max_time_ns) / 2);
    return least(n + (more > 0 ? more : 1), o->iterations);
}

enum stop_reason stop_poll(struct stop *s, uint64_t elapsed_ns)
{
    const struct bench_options *o = s->options;

    if (is_narrow(s, elapsed_ns))
        return STOP_CI95;
    if (o->max_time_ns > 0 && elapsed_ns >= o->max_time_ns)
        return STOP_TIME;
    if (s->n >= o->iterations)
        return STOP_ITERATIONS;
    s->next = next_look(s, elapsed_ns);
    return STOP_NOT;
}

const char *stop_name(enum stop_reason reason)
{
    static const char *const name[] = {[STOP_NOT] = NULL,
                                       [STOP_ITERATIONS] = "iterations",
                                       [STOP_CI95] = "ci95",
                                       [STOP_TIME] = "time"};

    return name[reason];
}
