/* What a reader must know before believing the numbers. Each warning says what is so, with
 * its figures, and what to do about it; most conditions are those of measured times, so
 * they are for bench alone. */
#include "report/result.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "config/experiment.h"

/* A first sample this much above the median is slow, not noise. */
static const double slow_first = 1.5;

enum { WARMUP_LEAST = 20 }; /* of which a rate is made */

__attribute__((format(printf, 2, 3))) static void warn(struct result *result, const char *fmt, ...)
{
    char *text;
    va_list args;
    int n;

    if (result->n_warnings == RESULT_WARNINGS)
        return;
    va_start(args, fmt);
    n = vasprintf(&text, fmt, args);
    va_end(args);
    if (n >= 0)
        result->warning[result->n_warnings++] = text;
}

static void about_build(struct result *result)
{
    const struct facts *f = result->facts;

    if (f->debug_build)
        warn(result,
             "this program is a debug build (%s, sanitizers: %s): its times are no "
             "benchmark; build with --buildtype=release",
             f->build_type, f->sanitizers);
}

static void about_isa(struct result *result)
{
    const struct facts *f = result->facts;

    if (f->isa_refused[0] != 0)
        warn(result, "EPA2A_ISA=%s cannot be had here: %s was used", f->isa_refused, f->isa);
}

static void about_cores(struct result *result)
{
    const struct session *s = result->session;
    const struct facts *f = result->facts;
    const struct epa_backend_plugin *backend =
        (const struct epa_backend_plugin *)s->experiment->backend.plugin;
    uint32_t ranks = s->experiment->ranks, loose = 0;
    uint32_t threads = backend->threads(s->experiment->backend.config);
    uint32_t near = ranks, cores = f->cores; /* of this process, where ranks have not said theirs */

    /* mpirun may have bound each to a core of its own: those of all ranks of a node count. */
    for (uint32_t r = 0, known = 0; s->block != NULL && r < ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);

        if (rank->local_size == 0 || (known++ > 0 && (uint64_t)rank->local_size * cores <=
                                                         (uint64_t)near * rank->local_cores))
            continue;
        near = rank->local_size;
        cores = rank->local_cores;
    }
    if ((uint64_t)near * threads > cores)
        warn(result,
             "%u ranks of %u thread%s share %u core%s: times include waiting for a core, "
             "and are no measure of a machine that has enough of them",
             near, threads, threads == 1 ? "" : "s", cores, cores == 1 ? "" : "s");
    for (uint32_t r = 0; s->block != NULL && r < ranks; r++)
        loose += session_rank(s, r)->core < 0;
    if (loose > 0)
        warn(result, "%u of %u ranks are not pinned: the system may move them between cores", loose,
             ranks);
    if (f->governor[0] != 0 && strcmp(f->governor, "performance") != 0)
        warn(result,
             "the frequency governor is \"%s\": times change with the clock; set "
             "\"performance\" (cpupower frequency-set -g performance)",
             f->governor);
}

static void about_samples(struct result *result)
{
    const struct stats *total = &result->stage[result->n_stages - 1].slowest;
    unsigned long long n = result->n_samples;

    if (n == 0) {
        warn(result, "there is no sample: no iteration after warm-up was finished by all ranks");
        return;
    }
    if (n < 20)
        warn(result,
             "p95 and p99 of %llu sample%s are the maximum: p95 needs 20, p99 100, p99.9 "
             "1000 (bench.iterations)",
             n, n == 1 ? "" : "s");
    else if (n < 100)
        warn(result,
             "p99 of %llu samples is the maximum: it needs 100, p99.9 1000 (bench.iterations)", n);
    else if (n < STATS_P999_LEAST && result->session->experiment->expect.p999 != NULL)
        warn(result, "p99.9 of %llu samples is not known: it needs 1000 (bench.iterations)", n);
    if (total->outliers > 0)
        warn(result,
             "%llu of %llu samples are outliers (more than %.1f median deviations off): "
             "something else may have run on these cores",
             (unsigned long long)total->outliers, n, STATS_OUTLIER);
}

/* What was asked for was not reached. */
static void about_stop(struct result *result)
{
    const struct bench_options *o = &result->session->experiment->bench;
    bool time = result->stop == STOP_TIME;
    double width = result_ci95(result);
    char have[64] = "too few for one";

    if (!(o->ci95 > 0) || result->n_samples == 0 || result->stop == STOP_CI95 ||
        result->stop == STOP_NOT)
        return;
    if (width == width)
        snprintf(have, sizeof(have), "%.3g %% of it wide", 100 * width);
    warn(result,
         "the 95 %% interval of the median is not within bench.ci95 (%.3g %%): with "
         "%llu samples it is %s; bench.%s was reached before it, raise it",
         100 * o->ci95, (unsigned long long)result->n_samples, have,
         time ? "max_time" : "iterations");
}

/* The first sample, not the first iteration: that one is slow on every machine, and warm-up
 * is there to take it. */
static void about_first(struct result *result)
{
    const struct result_stage *total = &result->stage[result->n_stages - 1];
    const struct stats *s = &total->slowest;

    if (s->n < 3 || total->sample[0] <= slow_first * s->median ||
        total->sample[0] - s->median <= STATS_OUTLIER * s->mad)
        return;
    warn(result,
         "the first sample took %.1f us, %.1f times the median: warm-up was too short "
         "(bench.warmup is %u)",
         total->sample[0] / 1e3, total->sample[0] / s->median, result->session->warmup);
}

static void about_timer(struct result *result)
{
    double step = result->facts->timer_ns;

    if (result->session->clock == CLOCK_EVENTS || result->session->clock == CLOCK_GRAPH)
        return; /* not this clock */
    for (uint32_t i = 0; i + 1 < result->n_stages; i++) {
        const struct result_stage *stage = &result->stage[i];

        if (stage->slowest.n == 0 || stage->slowest.median > 100 * step)
            continue;
        warn(result,
             "the clock moves in steps of %.0f ns (%s), more than 1 %% of %s (%.2f us): "
             "raise %s or read it with care",
             step, result->facts->clocksource, stage->name, stage->slowest.median / 1e3,
             session_operation(result->session)->size_key);
        return;
    }
}

/* How many different iterations' inputs are made. */
static uint64_t inputs_made(const struct session *s)
{
    return s->verb == VERB_BENCH ? s->experiment->bench.input_sets : s->iterations;
}

/* What the operation says of its inputs. */
static void about_inputs(struct result *result)
{
    const struct session *s = result->session;
    struct text lines = {0};

    if (session_operation(s)->warn == NULL)
        return;
    session_operation(s)->warn(s->experiment, s->source, inputs_made(s), &lines);
    for (const char *at = lines.data; at != NULL && *at != '\0'; at += strcspn(at, "\n") + 1)
        warn(result, "%.*s", (int)strcspn(at, "\n"), at);
    text_free(&lines);
}

/* Times that are printed beside a trace are not those of a run without. */
static void about_trace(struct result *result)
{
    const struct session *s = result->session;

    if (s->trace.lanes == 0)
        return;
    if (s->verb == VERB_BENCH)
        warn(result, "ranks were profiled: times are with that on; leave profile out to measure");
    if (s->verb == VERB_BENCH && s->clock == CLOCK_GRAPH)
        warn(result, "what is in graphs runs on the device, and profile has what hosts do: only "
                     "launches and waits are in the trace");
}

/* A rate that is not sure, or a queue that only grows. */
static void about_arrivals(struct result *result)
{
    const struct session *s = result->session;
    const struct session_arrivals *a = &s->arrivals;

    if (!session_is_open(s))
        return;
    if (s->experiment->bench.load > 0 && s->warmup < WARMUP_LEAST)
        warn(result,
             "bench.load is a part of what %u iterations of warm-up did a second: that is "
             "not known well from fewer than %d (bench.warmup)",
             s->warmup, WARMUP_LEAST);
    if (a->rate >= a->closed_rate)
        warn(result,
             "%.6g were due a second, and a closed loop does %.6g: the queue grows as long "
             "as it is measured, and latency is what bench.iterations makes it",
             a->rate, a->closed_rate);
}

/* What was meant to happen is told beside what came of it. */
static void about_fault(struct result *result)
{
    const struct session *s = result->session;
    struct text what = {0};
    uint64_t struck;

    if (!fault_is_planted(s->experiment))
        return;
    fault_describe(&s->experiment->fault, &what);
    if (!result_fault_struck(result, &struck))
        warn(result, "a fault was planted, this is a rehearsal: %s", what.data);
    else if (struck == 0)
        warn(result, "a fault was planted, and the run ended before it struck: %s", what.data);
    else
        warn(result, "a fault was planted, this is a rehearsal: %s; it struck %s", what.data,
             struck == 1 ? "once" : "several times");
    text_free(&what);
}

void result_warn(struct result *result)
{
    about_fault(result);
    about_inputs(result);
    about_trace(result);
    about_isa(result);
    if (result->session->verb != VERB_BENCH)
        return;
    about_build(result);
    about_cores(result);
    about_samples(result);
    about_stop(result);
    about_arrivals(result);
    about_first(result);
    about_timer(result);
}

/* ---- told ---- */

void report_warnings(FILE *file, const struct result *result)
{
    for (uint32_t i = 0; i < result->n_warnings; i++)
        fprintf(file, "%swarning:%s %s\n", colour_on(file, COLOUR_WARNING), colour_off(file),
                result->warning[i]);
}

struct warnings_kind {
    char *text, *who; /* of the first run */
    uint32_t n;
};

static const char *skip_number(const char *text)
{
    return text + strspn(text, "0123456789.,");
}

/* Whether texts differ only in numbers. */
static bool is_same_kind(const char *a, const char *b)
{
    while (*a != '\0' || *b != '\0') {
        const char *after_a = skip_number(a), *after_b = skip_number(b);

        if (after_a > a && after_b > b) {
            a = after_a;
            b = after_b;
        } else if (*a++ != *b++) {
            return false;
        }
    }
    return true;
}

void warnings_add(struct warnings *w, const char *who, const struct result *result)
{
    w->runs++;
    for (uint32_t i = 0; i < result->n_warnings; i++) {
        struct warnings_kind *grown;
        uint32_t k = 0;

        while (k < w->n && !is_same_kind(w->kind[k].text, result->warning[i]))
            k++;
        grown = k < w->n ? w->kind : realloc(w->kind, (w->n + 1) * sizeof(*w->kind));
        if (grown == NULL)
            return;
        w->kind = grown;
        if (k == w->n)
            w->kind[w->n++] = (struct warnings_kind){strdup(result->warning[i]), strdup(who), 0};
        w->kind[k].n++;
    }
}

void warnings_print(FILE *file, const struct warnings *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const struct warnings_kind *kind = &w->kind[i];

        fprintf(file, "%swarning:%s ", colour_on(file, COLOUR_WARNING), colour_off(file));
        text_print_clean(file, kind->who);
        if (kind->n > 1)
            fprintf(file, " and %u more of %u runs", kind->n - 1, w->runs);
        fprintf(file, ": %s\n", kind->text);
    }
}

void warnings_free(struct warnings *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        free(w->kind[i].text);
        free(w->kind[i].who);
    }
    free(w->kind);
    *w = (struct warnings){0};
}
