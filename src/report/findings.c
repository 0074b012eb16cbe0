/* Findings of a result: its end, missed expectations, and warnings; for several results, geometric
 * means. An expectation on a figure that was not measured is missed: a user that expects a rate
 * must learn that no rate was measured. Each warning states the condition with its figures and the
 * remedy. Most warnings concern measured times, so only bench prints them. */
#include "report/findings.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/stats.h"
#include "base/text.h"
#include "config/expect.h"
#include "config/experiment.h"
#include "config/option_text.h"
#include "report/fill.h"
#include "report/report.h"
#include "report/result.h"
#include "report/results.h"
#include "report/summary.h"

/* ---- end of a run ---- */

/* Returns the message of the caller, otherwise of the first rank that failed by itself. */
json_t *result_error(const struct session *s, const struct result_end *end)
{
    const struct session_rank *first = NULL;
    char words[sizeof(first->text) + 1] = "";

    if (end->status == EPA_OK)
        return json_null();
    for (uint32_t r = 0; r < s->experiment->ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);

        if (rank->status != EPA_OK && rank->status != EPA_ERR_ABORTED &&
            (first == NULL || rank->failed_ns < first->failed_ns))
            first = rank;
    }
    if (first != NULL)
        snprintf(words, sizeof(words), "%.*s", (int)sizeof(first->text), first->text);
    return json_object_of(
        "status", json_text(status_name(end->status)), "text",
        json_text(end->error != NULL && end->error[0] != '\0' ? end->error : words), NULL);
}

/* Returns "status", a fixed set of words for scripts; verdicts_make() adds "missed". */
const char *result_outcome(const struct result_end *end)
{
    switch (end->status) {
    case EPA_ERR_UNSUPPORTED:
        return end->skips ? "skipped" : "failed";
    case EPA_OK:
    case EPA_ERR_MISMATCH:
    case EPA_ERR_TIMEOUT:
    case EPA_ERR_DIED:
    case EPA_ERR_INTERRUPTED:
        return status_name(end->status);
    default:
        return "failed";
    }
}

/* ---- expectations ---- */

static void append_verdict(json_t *result, const char *row, const char *figure, const char *unit,
                           bool most, double bound, double measured)
{
    json_t *verdict = json_object_of(
        "stage", json_text_or_null(row), "figure", json_text(figure), "unit", json_text(unit),
        most ? "most" : "least", most ? json_whole(bound) : json_number(bound), "measured",
        most ? json_whole(measured) : json_number(measured), "met",
        json_boolean(most ? measured <= bound : measured >= bound), NULL); /* false for NaN */

    json_array_append_new(json_object_get(result, "expect"), verdict);
}

/* Adds the verdict on one bound. The ranks have already rejected unknown rows; an empty name means
 * the last row. */
static void add_verdict(json_t *result, const char *name, const struct epa_option *figure,
                        double bound)
{
    bool most = figure->type == EPA_OPTION_DURATION, part = strcmp(figure->name, "of_peak") == 0;
    const json_t *row = name[0] == '\0'
                            ? result_total(result)
                            : json_find(json_object_get(result, "stages"), "name", name);
    char path[64];

    snprintf(path, sizeof(path), "%s%s", most ? "ns." : part ? "" : "rate.", figure->name);
    append_verdict(result, row != NULL ? json_text_at(row, "name") : name, figure->name,
                   most   ? "ns"
                   : part ? "part"
                          : "GB/s",
                   most, bound, json_number_at(row, path));
}

/* ---- words ---- */

/* Expectation; then "131.4 us (+9.5 %)", or the reason of a missing figure. */
static const char wanted[] =
    "[{of=elements}wrong <= {most%.0f} elements|{of=ns}{row} {figure} <= {most/scale%.10g} {in}"
    "|{of=part}{row} >= {least/.01%.10g} % of its limit|{row} {figure} >= {least%.10g} GB/s]";
static const char found[] =
    "[{of=elements}{measured%.0f}|{of=ns}{measured/scale%.4g} {in}[ ({off/.01%+.1f} %)]"
    "|{of=part}{measured/.01%.4g} %|{measured%.4g} GB/s[ ({off/.01%+.1f} %)]"
    "|not known: [{of=elements}[{verify.unchecked}|nothing was compared]"
    "|{no_sample=true}there is no sample"
    "|{figure=p999}{stop.samples<1000}it needs 1000 samples (bench.iterations)"
    "|{of=part}{no_links=true}the transport does not measure its links"
    "|this row has no such figure]]";

/* Returns the result and a verdict, with a unit of time in which the measured value is at least
 * 1. */
static json_t *verdict_facts(const json_t *result, const json_t *v)
{
    static const struct {
        double ns;
        const char *name;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    double most = json_number_at(v, "most"), measured = json_number_at(v, "measured");
    double bound = fmax(most, json_number_at(v, "least"));
    size_t i = 0;

    while (i < 3 && !((isnan(measured) ? most : measured) >= units[i].ns))
        i++;
    return json_object_of(
        "verify", json_incref(json_object_get(result, "verify")), "stop",
        json_incref(json_object_get(result, "stop")), "row", json_text(json_text_at(v, "stage")),
        "figure", json_text(json_text_at(v, "figure")), "of", json_text(json_text_at(v, "unit")),
        "most", json_number(most), "least", json_number(json_number_at(v, "least")), "measured",
        json_number(measured), "off", json_number(bound > 0 ? measured / bound - 1 : NAN), "scale",
        json_number(units[i].ns), "in", json_text(units[i].name), "no_sample",
        json_boolean(!(json_number_at(result, "stop.samples") > 0)), "no_links",
        json_boolean(json_is_null(json_at(result, "machine.links"))), NULL);
}

void verdict_add(struct text *out, const json_t *result, const json_t *v, const char *between)
{
    json_auto_t *facts = verdict_facts(result, v);

    fill_add(out, wanted, facts, NULL);
    text_add(out, "%s", between);
    fill_add(out, found, facts, NULL);
}

/* Writes "expected total median <= 120 us, it is 131.4 us (+9.5 %), and 1 more". */
static void explain_missed(json_t *result)
{
    text_auto text = {0};
    unsigned missed = 0;

    for (struct json_walk v = {json_object_get(result, "expect")}; json_next(&v);) {
        if (json_is_true(json_object_get(v.value, "met")) || missed++ > 0)
            continue;
        text_add(&text, "expected ");
        verdict_add(&text, result, v.value, ", it is ");
    }
    if (missed == 0)
        return;
    if (missed > 1)
        text_add(&text, ", and %u more", missed - 1);
    json_object_set_new(result, "status", json_text("missed"));
    json_object_set_new(result, "exit_code", json_integer(EXIT_WRONG));
    json_object_set_new(
        result, "error",
        json_object_of("status", json_text("missed"), "text", json_text(text.data), NULL));
}

/* A verify without comparable outputs has verified nothing. */
static void check_overflow(json_t *result)
{
    if (!(json_number_at(result, "verify.outputs_overflowed") > 0) ||
        json_number_at(result, "verify.outputs_compared") > 0)
        return;
    json_object_set_new(result, "status", json_text("missed"));
    json_object_set_new(result, "exit_code", json_integer(EXIT_WRONG));
    json_object_set_new(result, "error",
                        json_object_of("status", json_text("missed"), "text",
                                       json_text("no output was compared: the right values of all "
                                                 "outputs may overflow; use smaller "
                                                 "routing.hidden_states"),
                                       NULL));
}

/* verify measures no times: only `wrong` is evaluated. */
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
                add_verdict(result, row, o, expect_bound(o, bounds));
    if (expect_wrong_is_set(x))
        append_verdict(result, "", "wrong", "elements", true, x->wrong,
                       compared > 0 ? json_number_at(result, "verify.wrong") : NAN);
    explain_missed(result);
    if (s->verb == VERB_VERIFY && strcmp(json_text_at(result, "status"), "ok") == 0)
        check_overflow(result);
}

/* ---- warnings ---- */

/* A first sample this much above the median is slow, not noise. It is not the first iteration: that
 * one is slow on every machine, and belongs to the warm-up. */
static const double slow_first = 1.5;

static const char fault[] =
    "[{fault.struck=0}a fault was planted, and the run ended before it struck: {fault.text}"
    "|a fault was planted, this is a rehearsal: {fault.text}"
    "[{fault.struck=1}; it struck once|{fault.struck>1}; it struck several times]]";

static const char isa[] = "EPA2A_ISA={machine.build.isa_refused} is not supported by this CPU; "
                          "{machine.build.isa} was used";

static const char overflow[] =
    "{verify.outputs_overflowed>0}{verify.outputs_overflowed%count} of {verify.outputs%count} outputs "
    "({verify.outputs_overflowed/verify.outputs/.01%.3g} %) were not compared: their right values may exceed "
    "the range of {experiment.moe.dtype} or float32; use smaller routing.hidden_states";

static const char *const of_bench[] = {
    "{profiled=true}ranks were profiled, which increases times; measure without profile",
    "{profiled=true}{timing.clock=graph}graphs run on the device: the trace has only launches and waits "
    "of the host, and the last call of kernels",
    isa,
    "{machine.build.debug=true}this program is a debug build ({machine.build.type}, sanitizers: "
    "{machine.build.sanitizers}): its times are no benchmark; build with --buildtype=release",
    "{share.ranks} ranks of {share.threads} thread{share.threads?s} share {share.cores} "
    "core{share.cores?s}: times include waiting for a core, and do not represent a machine with "
    "enough cores",
    "{loose>0}{loose} of {world.size} ranks are not pinned: the system may move them between cores",
    "{machine.governor!performance}the frequency governor is \"{machine.governor}\": times change "
    "with the clock; set \"performance\" (cpupower frequency-set -g performance)",
    "[{stop.samples=0}there is no sample: no iteration after warm-up was finished by all ranks"
    "|{stop.samples<20}p95 and p99 of {stop.samples} sample{stop.samples?s} are the maximum: p95 "
    "needs 20, p99 100, p99.9 1000 (bench.iterations)"
    "|{stop.samples<100}p99 of {stop.samples} samples is the maximum: it needs 100, p99.9 1000 "
    "(bench.iterations)"
    "|{no_p999=true}p99.9 of {stop.samples} samples is not known: it needs 1000 "
    "(bench.iterations)]",
    "{total.ns.outliers>0}{total.ns.outliers} of {stop.samples} samples are outliers (more than "
    "{outlier%.1f} median deviations off): [{cpu_quota.stops>0}the CPU quota stopped ranks"
    "|other programs may have run on these cores]",
    "{short_quota=true}the CPU quota of the cgroup is {cpu_quota.cores%.2f} cores' worth of time, "
    "and ranks have {busy} thread{busy?s} here: it was used up {cpu_quota.stops} "
    "time{cpu_quota.stops?s}, and ranks were stopped for {cpu_quota.stopped_ns/1e6%.0f} ms in all; "
    "raise cpu.max of the cgroup, or docker run --cpus",
    "{ci95>0}{stop.samples>0}{stop.reason!ci95}the 95 % interval of the median is not within "
    "bench.ci95 ({ci95/.01%.3g} %): with {stop.samples} samples it is "
    "[{stop.ci95/.01%.3g} % of it wide|too few for one]; "
    "bench.[{stop.reason=time}max_time|{stop.reason}] was reached before it, raise it",
    "{timing.arrivals.rate>0}{load>0}{warmup<20}bench.load is relative to the rate of {warmup} "
    "warm-up iterations: fewer than 20 give an inaccurate rate (bench.warmup)",
    "{queue_grows=true}{timing.arrivals.rate%.6g} arrivals per second, and a closed loop reaches "
    "{timing.arrivals.closed_rate%.6g}: the queue grows during the run, and latency depends on "
    "bench.iterations",
    "{slow_first=true}the first sample took {total.samples_ns.0/1e3%.1f} us, "
    "{total.samples_ns.0/total.ns.median%.1f} times the median: warm-up was too short "
    "(bench.warmup is {warmup})",
    "the clock moves in steps of {machine.timer_ns%.0f} ns[ ({machine.clocksource})], more than 1 "
    "% of {short.name} ({short.ns.median/1e3%.2f} us): raise {size_key} or read it with care",
};

/* Returns the node whose ranks have the fewest cores, if ranks share a core. mpirun may bind each
 * rank to its own core, so the cores of all ranks of a node are counted. */
static json_t *share_json(const struct session *s, const json_t *result)
{
    uint32_t near = s->experiment->ranks, threads = threads_of(s->experiment);
    uint32_t cores = (uint32_t)json_number_at(
        result, "machine.cores"); /* of this process, if the ranks reported none */

    for (uint32_t r = 0, known = 0; r < s->experiment->ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);

        if (rank->local_size == 0 || (known++ > 0 && (uint64_t)rank->local_size * cores <=
                                                         (uint64_t)near * rank->local_cores))
            continue;
        near = rank->local_size;
        cores = rank->local_cores;
    }
    if ((uint64_t)near * threads <= cores)
        return json_null();
    return json_object_of("ranks", json_count(near), "threads", json_count(threads), "cores",
                          json_count(cores), NULL);
}

/* Returns the first stage, except the last row, that takes less than 100 steps of the host's
 * clock. */
static json_t *short_json(const struct session *s, const json_t *result)
{
    const json_t *stages = json_object_get(result, "stages");

    for (size_t i = 0; i + 1 < json_array_size(stages); i++) {
        json_t *stage = json_array_get(stages, i);

        if (s->notes->clock != CLOCK_EVENTS && s->notes->clock != CLOCK_GRAPH &&
            json_number_at(stage, "ns.median") <= 100 * json_number_at(result, "machine.timer_ns"))
            return json_incref(stage);
    }
    return json_null();
}

/* Adds the facts for warnings of bench, in addition to report_facts(). */
static void add_facts(json_t *facts, const struct session *s)
{
    const json_t *total = json_object_get(facts, "total");
    const struct session_arrivals *arrivals = &s->notes->arrivals;
    const struct expect_bounds *bounds;
    const char *row;
    double first = json_number_at(total, "samples_ns.0");
    double median = json_number_at(total, "ns.median");
    uint64_t busy = (uint64_t)session_rank(s, 0)->local_size * threads_of(s->experiment);
    uint32_t loose = 0;
    bool p999 = false;

    for (uint32_t r = 0; r < s->experiment->ranks; r++)
        loose += session_rank(s, r)->core < 0;
    for (uint32_t i = 0; (bounds = expect_row_at(&s->experiment->expect, i, &row)) != NULL; i++)
        p999 = p999 || bounds->p999 != UINT64_MAX;
    json_object_set_new(facts, "profiled", json_boolean(s->trace.lanes > 0));
    json_object_set_new(facts, "share", share_json(s, facts));
    json_object_set_new(facts, "loose", json_count(loose));
    json_object_set_new(
        facts, "no_p999",
        json_boolean(p999 && json_number_at(facts, "stop.samples") < STATS_P999_LEAST));
    json_object_set_new(facts, "outlier", json_number(STATS_OUTLIER));
    json_object_set_new(facts, "busy", json_count(busy));
    json_object_set_new(facts, "short_quota",
                        json_boolean(json_number_at(facts, "cpu_quota.stops") > 0 ||
                                     json_number_at(facts, "cpu_quota.cores") < (double)busy));
    json_object_set_new(facts, "load", json_number(s->experiment->bench.load));
    json_object_set_new(
        facts, "queue_grows",
        json_boolean(session_is_open(s) && arrivals->rate >= arrivals->closed_rate));
    json_object_set_new(
        facts, "slow_first",
        json_boolean(json_number_at(total, "ns.n") >= 3 && median > 0 &&
                     first > slow_first * median &&
                     first - median > STATS_OUTLIER * json_number_at(total, "ns.mad")));
    json_object_set_new(facts, "short", short_json(s, facts));
    json_object_set_new(facts, "size_key", json_text(session_operation(s)->size_key));
}

static void append_warning(json_t *result, const char *form, const json_t *facts)
{
    text_auto text = {0};

    if (fill_add(&text, form, facts, NULL))
        json_array_append_new(json_object_get(result, "warnings"), json_text(text.data));
}

void result_warn(json_t *result, const struct session *s)
{
    uint64_t sets = s->verb == VERB_BENCH ? s->experiment->bench.input_sets : s->iterations;
    json_auto_t *facts = report_facts(s, result);
    text_auto lines = {0};

    append_warning(result, fault, facts);
    append_warning(result, overflow, facts);
    text_add(&lines, "%s", "");
    if (session_operation(s)->warn != NULL)
        session_operation(s)->warn(s->experiment, s->source, sets, &lines);
    for (char *at = strtok(lines.data, "\n"); at != NULL; at = strtok(NULL, "\n"))
        json_array_append_new(json_object_get(result, "warnings"), json_text(at));
    if (s->verb != VERB_BENCH) {
        append_warning(result, isa, facts);
        return;
    }
    add_facts(facts, s);
    for (size_t i = 0; i < sizeof(of_bench) / sizeof(of_bench[0]); i++)
        append_warning(result, of_bench[i], facts);
}

/* ---- output ---- */

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

/* Returns true if two warnings differ only in their numbers. */
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

/* ---- geometric means ---- */

/* Runs with one algorithm, transport, backend and launcher: logarithms of their totals, summed over
 * shapes. */
struct means {
    json_t *keys; /* results_part() */
    double sum;
    uint32_t n;
};

static const json_t *means_algorithm(const struct means *m)
{
    return json_object_get(m->keys, "algorithm.name");
}

/* Adds "ll_v2", or "ll_v2 buffers=1" if other entries of that algorithm have another value. */
static void add_means_name(struct text *out, const struct means *all, uint32_t n,
                           const struct means *of)
{
    text_add(out, "%s", json_string_value(means_algorithm(of)));
    for (struct json_walk it = {of->keys}; json_next(&it);) {
        bool differs = false;

        for (uint32_t i = 0; i < n; i++)
            differs = differs || (json_equal(means_algorithm(&all[i]), means_algorithm(of)) &&
                                  !json_equal(json_object_get(all[i].keys, it.key), it.value));
        if (!differs)
            continue;
        text_add(out, " %s=", strncmp(it.key, "algorithm.", 10) == 0 ? it.key + 10 : it.key);
        results_add_value(out, it.value, false);
    }
}

static void add_total(struct means *means, uint32_t *n, const json_t *line)
{
    json_t *keys = results_part(json_object_get(line, "experiment"), RESULTS_MEANS);
    uint32_t k = 0;

    while (k < *n && !json_equal(means[k].keys, keys))
        k++;
    if (k == *n)
        means[(*n)++].keys = json_incref(keys);
    means[k].sum += log(json_number_at(line, "total_ns"));
    means[k].n++;
    json_decref(keys);
}

/* Adds "geometric means of totals over 3 shapes: ll_v2 12.3 us, ll_v1 14.1 us", for all settings
 * with a total at each shape; adds nothing with one shape, or fewer than two such settings. */
void report_means(const json_t *lines, struct text *out)
{
    struct means *means = memory_alloc(json_array_size(lines) + 1, sizeof(*means));
    uint32_t n = 0, shapes = 0, whole = 0;

    for (struct json_walk line = {lines}; json_next(&line);) {
        shapes += report_base(lines, json_object_get(line.value, "question")) == line.value;
        if (json_number_at(line.value, "total_ns") > 0)
            add_total(means, &n, line.value);
    }
    for (uint32_t i = 0; i < n; i++)
        whole += means[i].n == shapes;
    for (uint32_t i = 0, done = 0; i < n && shapes > 1 && whole > 1; i++) {
        if (means[i].n != shapes)
            continue;
        if (done++ == 0)
            text_add(out, "geometric means of totals over %u shapes: ", shapes);
        else
            text_add(out, ", ");
        add_means_name(out, means, n, &means[i]);
        text_add(out, " %.1f us", exp(means[i].sum / shapes) / 1e3);
    }
    for (uint32_t i = 0; i < n; i++)
        json_decref(means[i].keys);
    free(means);
}
