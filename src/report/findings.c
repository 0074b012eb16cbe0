/* Findings of a result: missed expectations, and warnings. An expectation on a figure that was
 * not measured is missed: a user who asks for a rate must learn that there is none. Each warning
 * states the condition with its figures and what to do about it. Most warnings concern measured
 * times, so only bench prints them. */
#include "report/result.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/stats.h"
#include "config/experiment.h"

/* ---- expectations ---- */

static void add(json_t *result, const char *row, const char *figure, const char *unit, bool most,
                double bound, double measured)
{
    json_t *verdict = json_object_of(
        "stage", json_text_or_null(row), "figure", json_text(figure), "unit", json_text(unit),
        most ? "most" : "least", most ? json_whole(bound) : json_number(bound), "measured",
        most ? json_whole(measured) : json_number(measured), "met",
        json_boolean(most ? measured <= bound : measured >= bound), NULL); /* false of NaN */

    json_array_append_new(json_object_get(result, "expect"), verdict);
}

/* Ranks refused unknown rows already; no name means the last row. */
static void judge(json_t *result, const char *name, const struct epa_option *figure, double bound)
{
    bool most = figure->type == EPA_OPTION_DURATION, part = strcmp(figure->name, "of_peak") == 0;
    const json_t *stages = json_object_get(result, "stages"), *row = NULL;
    char path[64];

    for (size_t i = 0; i < json_array_size(stages) && row == NULL; i++)
        if (strcmp(json_text_at(json_array_get(stages, i), "name"), name) == 0)
            row = json_array_get(stages, i);
    if (name[0] == '\0')
        row = result_total(result);
    snprintf(path, sizeof(path), "%s%s", most ? "ns." : part ? "" : "rate.", figure->name);
    add(result, row != NULL ? json_text_at(row, "name") : name, figure->name,
        most   ? "ns"
        : part ? "part"
               : "GB/s",
        most, bound, json_number_at(row, path));
}

/* ---- words ---- */

struct unit {
    double ns;
    const char *name;
};

/* The one in which `ns` is at least 1. */
static struct unit unit_of(double ns)
{
    static const struct unit units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    size_t i = 0;

    while (i < 3 && !(ns >= units[i].ns))
        i++;
    return units[i];
}

char *verdict_wanted(const json_t *v, char *buf, size_t room)
{
    const char *row = json_text_at(v, "stage"), *figure = json_text_at(v, "figure");
    const char *of = json_text_at(v, "unit");
    double most = json_number_at(v, "most"), least = json_number_at(v, "least");
    double measured = json_number_at(v, "measured");
    struct unit unit = unit_of(isnan(measured) ? most : measured);

    if (strcmp(of, "elements") == 0)
        snprintf(buf, room, "wrong <= %.0f elements", most);
    else if (strcmp(of, "ns") == 0)
        snprintf(buf, room, "%s %s <= %.10g %s", row, figure, most / unit.ns, unit.name);
    else if (strcmp(of, "part") == 0)
        snprintf(buf, room, "%s >= %.10g %% of its limit", row, 100 * least);
    else
        snprintf(buf, room, "%s %s >= %.10g GB/s", row, figure, least);
    return buf;
}

/* The reason why a figure is missing. */
static const char *why_not(const json_t *result, const json_t *v)
{
    const char *unchecked = json_text_at(result, "verify.unchecked");
    double samples = json_number_at(result, "stop.samples");

    if (strcmp(json_text_at(v, "unit"), "elements") == 0)
        return unchecked[0] != '\0' ? unchecked : "nothing was compared";
    if (!(samples > 0))
        return "there is no sample";
    if (strcmp(json_text_at(v, "figure"), "p999") == 0 && samples < STATS_P999_LEAST)
        return "it needs 1000 samples (bench.iterations)";
    if (strcmp(json_text_at(v, "unit"), "part") == 0 &&
        json_is_null(json_at(result, "machine.links")))
        return "the transport does not measure what its links can do";
    return "this row has no such figure";
}

char *verdict_found(const json_t *result, const json_t *v, char *buf, size_t room)
{
    const char *of = json_text_at(v, "unit");
    double measured = json_number_at(v, "measured");
    double bound = fmax(json_number_at(v, "most"), json_number_at(v, "least"));
    struct unit unit = unit_of(measured);
    char off[32] = "";

    if (bound > 0)
        snprintf(off, sizeof(off), " (%+.1f %%)", 100 * (measured / bound - 1));
    if (isnan(measured))
        snprintf(buf, room, "not known: %s", why_not(result, v));
    else if (strcmp(of, "elements") == 0)
        snprintf(buf, room, "%.0f", measured);
    else if (strcmp(of, "ns") == 0)
        snprintf(buf, room, "%.4g %s%s", measured / unit.ns, unit.name, off);
    else if (strcmp(of, "part") == 0)
        snprintf(buf, room, "%.4g %%", 100 * measured);
    else
        snprintf(buf, room, "%.4g GB/s%s", measured, off);
    return buf;
}

/* "expected total median <= 120 us, it is 131.4 us (+9.5 %), and 1 more". */
static void explain_missed(json_t *result)
{
    char wanted[128], found[256], more[32] = "";
    const json_t *first = NULL;
    unsigned missed = 0;

    for (struct json_walk v = {json_object_get(result, "expect")}; json_next(&v);) {
        if (json_is_true(json_object_get(v.value, "met")))
            continue;
        first = missed++ == 0 ? v.value : first;
    }
    if (missed == 0)
        return;
    if (missed > 1)
        snprintf(more, sizeof(more), ", and %u more", missed - 1);
    json_object_set_new(result, "status", json_text("missed"));
    json_object_set_new(result, "exit_code", json_integer(EXIT_WRONG));
    json_object_set_new(
        result, "error",
        json_object_of("status", json_text("missed"), "text",
                       json_sprintf("expected %s, it is %s%s",
                                    verdict_wanted(first, wanted, sizeof(wanted)),
                                    verdict_found(result, first, found, sizeof(found)), more),
                       NULL));
}

/* verify takes no times: `wrong` alone. */
void verdicts_make(json_t *result, const struct session *s)
{
    const struct expect_options *x = &s->experiment->expect;
    double compared = json_number_at(result, "verify.compared");
    const struct expect_bounds *bounds;
    const char *row;

    if (strcmp(json_text_at(result, "status"), "ok") != 0)
        return;
    for (const struct epa_option *o = expect_figures; o->name != NULL; o++)
        for (uint32_t i = 0; (bounds = expect_row_at(x, i, &row)) != NULL; i++)
            if (s->verb != VERB_VERIFY && option_is_set(o, bounds))
                judge(result, row, o, expect_bound(o, bounds));
    if (expect_wrong_is_set(x))
        add(result, "", "wrong", "elements", true, x->wrong,
            compared > 0 ? json_number_at(result, "verify.wrong") : NAN);
    explain_missed(result);
}

/* ---- warnings ---- */

/* A first sample this much above the median is slow, not noise. */
static const double slow_first = 1.5;

enum { WARMUP_LEAST = 20 }; /* of which a rate is made */

__attribute__((format(printf, 2, 3))) static void warn(json_t *result, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    json_array_append_new(json_object_get(result, "warnings"), json_text(text));
}

static void about_build(json_t *result)
{
    const json_t *m = json_object_get(result, "machine");

    if (json_is_true(json_at(m, "build.debug")))
        warn(result,
             "this program is a debug build (%s, sanitizers: %s): its times are no "
             "benchmark; build with --buildtype=release",
             json_text_at(m, "build.type"), json_text_at(m, "build.sanitizers"));
}

static void about_isa(json_t *result)
{
    const json_t *m = json_object_get(result, "machine");

    if (*json_text_at(m, "build.isa_refused") != '\0')
        warn(result, "EPA2A_ISA=%s is not supported by this CPU; %s was used",
             json_text_at(m, "build.isa_refused"), json_text_at(m, "build.isa"));
}

static void about_cores(json_t *result, const struct session *s)
{
    const json_t *m = json_object_get(result, "machine");
    const char *governor = json_text_at(m, "governor");
    uint32_t ranks = s->experiment->ranks, loose = 0;
    uint32_t threads = threads_of(s->experiment);
    uint32_t near = ranks;
    uint32_t cores = (uint32_t)json_number_at(
        m, "cores"); /* of this process, where ranks have not said theirs */

    /* mpirun may have bound each to a core of its own: those of all ranks of a node count. */
    for (uint32_t r = 0, known = 0; r < ranks; r++) {
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
    for (uint32_t r = 0; r < ranks; r++)
        loose += session_rank(s, r)->core < 0;
    if (loose > 0)
        warn(result, "%u of %u ranks are not pinned: the system may move them between cores", loose,
             ranks);
    if (*governor != '\0' && strcmp(governor, "performance") != 0)
        warn(result,
             "the frequency governor is \"%s\": times change with the clock; set "
             "\"performance\" (cpupower frequency-set -g performance)",
             governor);
}

static void about_samples(json_t *result, const struct session *s)
{
    double outliers = json_number_at(result_total(result), "ns.outliers");
    unsigned long long n = (unsigned long long)json_number_at(result, "stop.samples");
    const struct expect_bounds *bounds;
    const char *row;
    bool p999 = false;

    for (uint32_t i = 0; (bounds = expect_row_at(&s->experiment->expect, i, &row)) != NULL; i++)
        p999 = p999 || bounds->p999 != UINT64_MAX;
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
    else if (n < STATS_P999_LEAST && p999)
        warn(result, "p99.9 of %llu samples is not known: it needs 1000 (bench.iterations)", n);
    if (outliers > 0)
        warn(result,
             "%.0f of %llu samples are outliers (more than %.1f median deviations off): "
             "something else may have run on these cores",
             outliers, n, STATS_OUTLIER);
}

/* Warns of a stop rule (ci95) that was not satisfied. */
static void about_stop(json_t *result, const struct session *s)
{
    const struct bench_options *o = &s->experiment->bench;
    const char *reason = json_text_at(result, "stop.reason");
    double n = json_number_at(result, "stop.samples"), width = json_number_at(result, "stop.ci95");
    char have[64] = "too few for one";

    if (!(o->ci95 > 0) || n <= 0 || strcmp(reason, "ci95") == 0 || reason[0] == '\0')
        return;
    if (!isnan(width))
        snprintf(have, sizeof(have), "%.3g %% of it wide", 100 * width);
    warn(result,
         "the 95 %% interval of the median is not within bench.ci95 (%.3g %%): with "
         "%.0f samples it is %s; bench.%s was reached before it, raise it",
         100 * o->ci95, n, have, strcmp(reason, "time") == 0 ? "max_time" : reason);
}

/* The first sample, not the first iteration: that one is slow on every machine, and warm-up
 * is there to take it. */
static void about_first(json_t *result, const struct session *s)
{
    const json_t *total = result_total(result);
    double first = json_number_at(total, "samples_ns.0"),
           median = json_number_at(total, "ns.median");

    if (json_number_at(total, "ns.n") < 3 || !(first > slow_first * median) ||
        first - median <= STATS_OUTLIER * json_number_at(total, "ns.mad"))
        return;
    warn(result,
         "the first sample took %.1f us, %.1f times the median: warm-up was too short "
         "(bench.warmup is %u)",
         first / 1e3, first / median, s->warmup);
}

static void about_timer(json_t *result, const struct session *s)
{
    double step = json_number_at(result, "machine.timer_ns");
    const json_t *stages = json_object_get(result, "stages");

    if (s->notes->clock == CLOCK_EVENTS || s->notes->clock == CLOCK_GRAPH)
        return; /* not this clock */
    for (size_t i = 0; i + 1 < json_array_size(stages); i++) {
        const json_t *stage = json_array_get(stages, i);
        double median = json_number_at(stage, "ns.median");

        if (!(median <= 100 * step))
            continue;
        warn(result,
             "the clock moves in steps of %.0f ns (%s), more than 1 %% of %s (%.2f us): "
             "raise %s or read it with care",
             step, json_text_at(result, "machine.clocksource"), json_text_at(stage, "name"),
             median / 1e3, session_operation(s)->size_key);
        return;
    }
}

/* Number of different input sets that iterations use. */
static uint64_t inputs_made(const struct session *s)
{
    return s->verb == VERB_BENCH ? s->experiment->bench.input_sets : s->iterations;
}

/* Adds the warnings of the operation about its inputs. */
static void about_inputs(json_t *result, const struct session *s)
{
    text_auto lines = {0};

    if (session_operation(s)->warn == NULL)
        return;
    session_operation(s)->warn(s->experiment, s->source, inputs_made(s), &lines);
    for (const char *at = lines.data; at != NULL && *at != '\0'; at += strcspn(at, "\n") + 1)
        warn(result, "%.*s", (int)strcspn(at, "\n"), at);
}

/* Warns that tracing slows the measured iterations. */
static void about_trace(json_t *result, const struct session *s)
{
    if (s->trace.lanes == 0)
        return;
    if (s->verb == VERB_BENCH)
        warn(result, "ranks were profiled: times are with that on; leave profile out to measure");
    if (s->verb == VERB_BENCH && s->notes->clock == CLOCK_GRAPH)
        warn(result, "what is in graphs runs on the device: of the host only launches and waits "
                     "are in the trace, and of kernels the last call");
}

/* Warns if the warm-up is too short for bench.load, or if more arrives than a closed loop
 * sustains: then the queue grows without bound. */
static void about_arrivals(json_t *result, const struct session *s)
{
    const struct session_arrivals *a = &s->notes->arrivals;

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

/* Names the injected fault and says whether it took effect. */
static void about_fault(json_t *result)
{
    const json_t *fault = json_object_get(result, "fault");
    double struck = json_number_at(fault, "struck");

    if (!json_is_object(fault))
        return;
    if (struck <= 0)
        warn(result, "a fault was planted, and the run ended before it struck: %s",
             json_text_at(fault, "text"));
    else
        warn(result, "a fault was planted, this is a rehearsal: %s%s", json_text_at(fault, "text"),
             isnan(struck) ? ""
             : struck <= 1 ? "; it struck once"
                           : "; it struck several times");
}

void result_warn(json_t *result, const struct session *s)
{
    about_fault(result);
    about_inputs(result, s);
    about_trace(result, s);
    about_isa(result);
    if (s->verb != VERB_BENCH)
        return;
    about_build(result);
    about_cores(result, s);
    about_samples(result, s);
    about_stop(result, s);
    about_arrivals(result, s);
    about_first(result, s);
    about_timer(result, s);
}

/* ---- printed ---- */

void report_warnings(FILE *file, const json_t *result)
{
    for (struct json_walk warning = {json_object_get(result, "warnings")}; json_next(&warning);)
        fprintf(file, "%swarning:%s %s\n", colour_on(file, COLOUR_WARNING), colour_off(file),
                json_string_value(warning.value));
}

static const char *skip_number(const char *text)
{
    return text + strspn(text, "0123456789.,");
}

/* Whether two warnings differ only in their numbers. */
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

void warnings_add(struct warnings *w, const char *who, const json_t *result)
{
    w->runs++;
    w->kinds = w->kinds != NULL ? w->kinds : json_array();
    for (struct json_walk warning = {json_object_get(result, "warnings")}; json_next(&warning);) {
        const char *text = json_string_value(warning.value);
        json_t *kind = NULL;

        for (struct json_walk other = {w->kinds}; json_next(&other);)
            if (kind == NULL && is_same_kind(json_text_at(other.value, "text"), text))
                kind = other.value;
        if (kind == NULL)
            json_array_append_new(w->kinds,
                                  json_object_of("text", json_text(text), "who", json_text(who),
                                                 "more", json_count(0), NULL));
        else
            json_object_set_new(kind, "more",
                                json_count((uint64_t)json_number_at(kind, "more") + 1));
    }
}

/* Prints each kind of warning once, with the first run that has it. */
void warnings_print(FILE *file, const struct warnings *w)
{
    for (struct json_walk kind = {w->kinds}; json_next(&kind);) {
        double more = json_number_at(kind.value, "more");

        fprintf(file, "%swarning:%s ", colour_on(file, COLOUR_WARNING), colour_off(file));
        text_print_clean(file, json_text_at(kind.value, "who"));
        if (more > 0)
            fprintf(file, " and %.0f more of %u runs", more, w->runs);
        fprintf(file, ": %s\n", json_text_at(kind.value, "text"));
    }
}
