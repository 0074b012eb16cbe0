/* The rule alone, without ranks: numbers in, a decision and the next look out. Behind it the rule
 * between ranks. A sample's headline is the slowest rank's, so ranks exchange their times; elapsed
 * time is rank 0's, as no two clocks agree. All of it goes by the bootstrap, after a sample and
 * before the next: nothing of it is timed. With the same numbers all ranks make the same
 * decision, after the same sample. */
#include "session/rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
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

/* ---- between ranks ---- */

enum { EXCHANGED = 128 }; /* samples at once */

struct rank_stop {
    struct stop rule;
    uint64_t start_ns; /* of the first sample */
    struct exchanged {
        uint64_t elapsed_ns;
        double ns[EXCHANGED];
    } mine, all[]; /* [ranks] */
};

void rank_stop_create(struct rank *r)
{
    const struct bench_options *o = &experiment_of(r)->bench;

    if (!rank_good(r) || !stop_is_on(o))
        return;
    r->stop = memory_alloc(1, sizeof(*r->stop) + r->boot->world.size * sizeof(struct exchanged));
    r->status = stop_init(&r->stop->rule, o, &r->err);
}

void rank_stop_destroy(struct rank *r)
{
    if (r->stop != NULL)
        stop_finish(&r->stop->rule);
    free(r->stop);
    r->stop = NULL;
}

/* This rank's time of a sample: what the report has in its last row. */
static double own_ns(const struct rank *r, uint64_t sample)
{
    const struct session *s = r->session;
    uint32_t me = r->boot->world.rank, row = session_total_row(r->clock, last_kind(r));
    double sum = 0;

    if (r->clock == CLOCK_END_TO_END && me != 0) /* only rank 0's are used */
        return 0;
    if (row != UINT32_MAX)
        return session_times(s, me, row)[sample];
    for (uint32_t i = 0; i < r->n_stages; i++)
        sum += session_times(s, me, i)[sample];
    return sum;
}

bool rank_stop_poll(struct rank *r, uint64_t samples)
{
    struct rank_stop *stop = r->stop;
    enum stop_reason reason;

    if (stop == NULL || !rank_good(r))
        return false;
    if (samples == 0)
        stop->start_ns = clock_ns();
    if (samples == 0 || samples < stop->rule.next)
        return false;
    while (stop->rule.n < samples) {
        uint64_t n = least(samples - stop->rule.n, EXCHANGED);

        stop->mine.elapsed_ns = clock_ns() - stop->start_ns;
        for (uint64_t k = 0; k < n; k++)
            stop->mine.ns[k] = own_ns(r, stop->rule.n + k);
        if (!rank_boot(r, r->boot->allgather(r->boot, &stop->mine, sizeof(stop->mine), stop->all)))
            return false;
        for (uint64_t k = 0; k < n; k++) {
            double slowest = 0;

            for (uint32_t rank = 0; rank < r->boot->world.size; rank++)
                slowest = fmax(slowest, stop->all[rank].ns[k]);
            stop->rule.ns[stop->rule.n++] = slowest;
        }
    }
    reason = stop_poll(&stop->rule, stop->all[0].elapsed_ns);
    if (r->boot->world.rank == 0)
        r->session->notes->stop = reason;
    return reason != STOP_NOT;
}
