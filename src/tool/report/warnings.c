/* Warnings about results. Each warning states the condition with its figures and the remedy. Most
 * warnings concern measured times, so only bench prints them. */
#include "report/warnings.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/stats.h"
#include "base/terminal.h"
#include "base/text.h"
#include "config/expect.h"
#include "config/experiment.h"
#include "report/fill.h"
#include "report/lines.h"
#include "report/report.h"
#include "report/result_parts.h"

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
    uint32_t near = s->experiment->problem.ranks, threads = threads_of(s->experiment);
    uint32_t cores = (uint32_t)json_number_at(
        result, "machine.cores"); /* of this process, if the ranks reported none */

    for (uint32_t r = 0, known = 0; r < s->experiment->problem.ranks; r++) {
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

    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++)
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

void result_warn(json_t *result, const struct run_figures *f, const struct session *s)
{
    uint64_t sets = s->verb == VERB_BENCH ? s->experiment->bench.input_sets : s->iterations;
    json_auto_t *facts = report_facts(s, f, result);
    text_auto lines = {0};

    append_warning(result, fault, facts);
    append_warning(result, overflow, facts);
    text_add(&lines, "%s", "");
    if (session_operation(s)->warn != NULL)
        session_operation(s)->warn(&s->experiment->problem, s->source, sets, &lines);
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
