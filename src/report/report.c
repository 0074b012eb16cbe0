/* The table: what ran and where, one row a stage, then the facts that explain the numbers. Fits 100
 * columns, so that it can be pasted anywhere. */
#include "report/result.h"

#include <math.h>
#include <string.h>

#include "base/stats.h"
#include "base/text.h"
#include "config/experiment.h"
#include "report/summary.h"

/* ---- what ran, and where ---- */

/* "0-3, 6, 7": runs of neighbours shortened, order kept. */
static void add_cores(struct text *out, const struct session *s)
{
    uint32_t ranks = s->experiment->ranks, last;

    for (uint32_t r = 0; r < ranks; r = last + 1) {
        int32_t core = session_rank(s, r)->core;

        for (last = r; last + 1 < ranks && core >= 0; last++) {
            if (session_rank(s, last + 1)->core != session_rank(s, last)->core + 1)
                break;
        }
        text_add(out, r == 0 ? "" : ", ");
        if (core < 0)
            text_add(out, "any");
        else if (last > r)
            text_add(out, "%d-%d", core, session_rank(s, last)->core);
        else
            text_add(out, "%d", core);
    }
}

static void print_pins(FILE *file, const struct session *s)
{
    const struct experiment *x = s->experiment;
    text_auto cores = {0};
    uint32_t pinned = 0;

    for (uint32_t r = 0; r < x->ranks; r++)
        pinned += session_rank(s, r)->core >= 0;
    text_add(&cores, pinned > 0 ? "pinned in order to cores " : "not pinned");
    if (pinned > 0)
        add_cores(&cores, s);
    text_comment(file, "%u rank%s by %s, %s; seed %llu", x->ranks, x->ranks == 1 ? "" : "s",
                 x->launcher.plugin->name, cores.data, (unsigned long long)x->seed);
}

/* "hosta (ranks 0, 2, 4)"; false: no rank is on that node. */
static bool add_node(struct text *out, const struct session *s, uint32_t node)
{
    uint32_t ranks = s->experiment->ranks, n = 0;

    for (uint32_t r = 0; r < ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);

        if (rank->node != node)
            continue;
        if (n++ == 0)
            text_add(out, "%s%s (ranks ", node == 0 ? "" : ", ", rank->host);
        text_add(out, "%s%u", n == 1 ? "" : ", ", r);
    }
    if (n > 0)
        text_add(out, ")");
    return n > 0;
}

static void print_nodes(FILE *file, const struct session *s)
{
    text_auto line = {0};
    uint32_t nodes = 0;

    while (add_node(&line, s, nodes))
        nodes++;
    if (s->process_id.source[0] != '\0')
        text_comment(file, "found: %s", s->process_id.source);
    if (nodes > 1)
        text_comment(file, "%u nodes: %s", nodes, line.data);
}

/* One section of the experiment: "ll_v2 (dispatch_dtype fp8, buffers 2)". */
struct description {
    const char *section;
    struct text *main, *options;
};

static void add_value(void *arg, const struct experiment_value *v)
{
    struct description *d = arg;

    if (v->section == NULL || strcmp(v->section, d->section) != 0)
        return;
    if (strcmp(v->key, "name") == 0 || strcmp(v->key, "kind") == 0)
        text_add(d->main, "%s", v->value);
    else
        text_add(d->options, "%s%s %s", d->options->bytes == 0 ? "" : ", ", v->key, v->value);
}

/* "algorithm: ll_v2 (dispatch_dtype fp8, buffers 2); transport: shm; ..." */
static void print_sections(FILE *file, const struct experiment *x, const char *const *section,
                           uint32_t n)
{
    text_auto line = {0};

    for (uint32_t i = 0; i < n; i++) {
        text_auto main = {0}, more = {0};

        experiment_visit(x, add_value, &(struct description){section[i], &main, &more});
        text_add(&line, "%s%s: %s", i == 0 ? "" : "; ", section[i],
                 main.data != NULL ? main.data : "");
        if (more.data != NULL)
            text_add(&line, main.data != NULL ? " (%s)" : "%s", more.data);
    }
    if (line.data != NULL)
        text_comment(file, "%s", line.data);
}

static void print_machine(FILE *file, const json_t *m)
{
    const char *sanitizers = json_text_at(m, "build.sanitizers");
    double cores = json_number_at(m, "cores"), bytes = json_number_at(m, "memory_bytes");
    char memory[32];

    text_comment(file, "machine: %s, %.0f core%s, %s, %s, %s", json_text_at(m, "cpu"), cores,
                 cores > 1 ? "s" : "",
                 text_size(memory, sizeof(memory), bytes > 0 ? (uint64_t)bytes : 0),
                 json_text_at(m, "kernel"), json_text_at(m, "host"));
    text_comment(file, "build: epa2a %s, %s, %s%s%s, %s kernels", json_text_at(m, "build.version"),
                 json_text_at(m, "build.compiler"), json_text_at(m, "build.type"),
                 strcmp(sanitizers, "none") != 0 ? ", sanitizers: " : "",
                 strcmp(sanitizers, "none") != 0 ? sanitizers : "", json_text_at(m, "build.isa"));
}

/* Lists the members of an object: "NAME=TEXT, ..." or "NAME TEXT, ...". */
static void print_pairs(FILE *file, const json_t *object, const char *before, char between)
{
    text_auto line = {0};

    for (struct json_walk it = {object}; json_next(&it);)
        text_add(&line, "%s%s%c%s", line.bytes == 0 ? before : ", ", it.key, between,
                 json_string_value(it.value));
    if (line.data != NULL)
        text_comment(file, "%s", line.data);
}

/* One line each for the device and the links of rank 0. */
static void print_device(FILE *file, const json_t *result)
{
    const json_t *links = json_at(result, "machine.links");
    double rate = json_number_at(links, "rate"), us = json_number_at(links, "latency_ns") / 1e3;

    print_pairs(file, json_at(result, "machine.device"), "rank 0's ", ' ');
    print_pairs(file, json_at(result, "world.ranks.0.transport"), "rank 0's ", ' ');
    if (json_is_object(links) && isnan(us))
        text_comment(
            file,
            "link peak: %.1f GB/s out of a rank while all send; the time of a signal is not "
            "known, as other programs had the cores",
            rate);
    else if (json_is_object(links) && isnan(rate))
        text_comment(file, "link peak: %.2f us for a signal; the rate is not known and left out",
                     us);
    else if (json_is_object(links))
        text_comment(file,
                     "link peak: %.1f GB/s out of a rank while all send, %.2f us for a signal",
                     rate, us);
}

/* "expert: mlp (ffn 2048, ...)", and what computes it. */
static void print_operation_section(FILE *file, const struct session *s)
{
    const struct operation *op = session_operation(s);
    const char *section = op->head_also != NULL ? op->head_also(s->experiment) : NULL;

    if (s->notes != NULL && s->notes->products_by[0] != '\0')
        text_comment(file, "products by %s", s->notes->products_by);
    if (section == NULL)
        return;
    print_sections(file, s->experiment, &section, 1);
    if (s->notes->between_by[0] != '\0')
        text_comment(file, "%s by %s", op->between_name, s->notes->between_by);
}

static void print_header(FILE *file, const struct session *s, const json_t *result)
{
    static const char *const plugins[] = {"algorithm", "transport", "backend"};
    const struct experiment *x = s->experiment;

    text_comment(file, "epa2a %s: %s", session_verb(s), x->name);
    if (x->label != NULL)
        text_comment(file, "run: %s; id %s", x->label, x->id);
    print_sections(file, x, plugins, 3);
    for (const char *const *line = session_operation(s)->head; *line != NULL;) {
        uint32_t n = 0;

        while (line[n] != NULL)
            n++;
        print_sections(file, x, line, n);
        line += n + 1;
    }
    print_operation_section(file, s);
    if (json_is_object(json_object_get(result, "fault")))
        text_comment(file, "PLANTED FAULT, no measurement: %s", json_text_at(result, "fault.text"));
    print_pins(file, s);
    print_nodes(file, s);
    print_machine(file, json_object_get(result, "machine"));
    print_pairs(file, json_object_get(result, "context"), "context: ", '=');
    print_device(file, result);
}

/* ---- stages ---- */

/* A row a stage. With what links allow, and with a percentile that needs many samples, there is
 * less room for each figure. A peak that was beaten is a question mark. */
static void print_stages(FILE *file, const json_t *result)
{
    bool peak = json_is_object(json_at(result, "machine.links"));
    bool p999 = json_number_at(result, "stop.samples") >= STATS_P999_LEAST;
    int time = peak && p999 ? 6 : peak || p999 ? 8 : 9, rate = peak ? 7 : 8;
    int digits = json_number_at(result_total(result), "ns.median") < 100e3 ? 2 : 1;
    const struct table_column all[] = {{"name", "stage", .digits = 10},
                                       {"ns.min", "min", "us", 1e3, digits, time},
                                       {"ns.median", "median", "us", 1e3, digits, time},
                                       {"ns.p95", "p95", "us", 1e3, digits, time},
                                       {"ns.p99", "p99", "us", 1e3, digits, time},
                                       {p999 ? "ns.p999" : "", "p99.9", "us", 1e3, digits, time},
                                       {"ns.max", "max", "us", 1e3, digits, time},
                                       {"rate.goodput", "goodput", "GB/s", 0, -2, rate},
                                       {"rate.wire", "wire", "GB/s", 0, -2, rate},
                                       {"rate.bottleneck", "bottleneck", "GB/s", 0, -2, 10},
                                       {peak ? "peak_ns" : "", "at peak", "us", 1e3, digits, 7},
                                       {peak ? "of_peak" : "", "of peak", "%", 0.01, 1, 7}};
    struct table_column column[sizeof(all) / sizeof(all[0]) + 1] = {{0}};
    json_auto_t *rows = json_array();
    uint32_t n = 0;
    size_t i;

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].key[0] != '\0')
            column[n++] = all[i];
    for (struct json_walk stage = {json_object_get(result, "stages")}; json_next(&stage);) {
        json_t *row = json_copy((json_t *)stage.value);

        if (json_is_true(json_object_get(row, "beaten"))) {
            json_object_set_new(row, "peak_ns", json_string("?"));
            json_object_set_new(row, "of_peak", json_string("?"));
        }
        json_array_append_new(rows, row);
    }
    fputs("#\n", file);
    table_text(file, column, rows);
    fputs("#\n", file);
}

/* ---- explanations below the table ---- */

/* The offered rate against the sustained rate of an open loop. */
static void print_arrivals(FILE *file, const json_t *timing, uint64_t seed)
{
    double rate = json_number_at(timing, "arrivals.rate");
    double closed_rate = json_number_at(timing, "arrivals.closed_rate");
    char closed[96] = "";

    if (closed_rate > 0)
        snprintf(closed, sizeof(closed), ", %.3g of the %.6g of a closed loop", rate / closed_rate,
                 closed_rate);
    text_comment(
        file,
        "open loop: %s arrivals by seed %llu, %.6g due a second%s; latency counts from when "
        "one was due, service from when it began; %.0f %% were due before it could begin",
        json_text_at(timing, "arrivals.process"), (unsigned long long)seed, rate, closed,
        100 * json_number_at(timing, "arrivals.late"));
}

/* How times were taken where that is not by the host's clock, and what they do not say. */
static void print_clock(FILE *file, const struct session *s, const json_t *result)
{
    const char *plugin = s->experiment->algorithm.plugin->name;
    const json_t *timing = json_object_get(result, "timing");
    const char *cache = json_text_at(timing, "cache");
    bool bench = s->verb == VERB_BENCH, one = session_calls(s) == 1;

    if (s->notes->clock == CLOCK_EVENTS)
        text_comment(file, "clock: events around each stage%s%s%s", bench ? ", cache " : "",
                     bench ? cache : "", "; total is their sum");
    if (session_is_open(s))
        print_arrivals(file, timing, s->experiment->seed);
    if (s->notes->clock == CLOCK_END_TO_END)
        text_comment(file,
                     "clock: rank 0's, from one barrier of all ranks to the next, cache cold; "
                     "all stages and what is between them are in it");
    if (s->notes->clock != CLOCK_GRAPH)
        return;
    if (s->notes->stage_kind[s->notes->n_stages - 1] == EPA_STAGE_WHOLE) {
        text_comment(file, "clock: graph of %u call%s, cache %s; a sample is one launch%s",
                     session_calls(s), one ? "" : "s", cache, one ? "" : " divided by calls");
        return;
    }
    text_comment(
        file,
        "clock: graph of %u call%s of each stage, cache %s; a sample is one launch%s, total "
        "a pair as measured, dispatch and combine alone",
        session_calls(s), one ? "" : "s", cache, one ? "" : " divided by calls");
    if (s->notes->not_alone[FIGURE_DISPATCH])
        text_comment(file, "dispatch alone is not known: %s cannot give up a dispatch", plugin);
    if (s->notes->not_alone[FIGURE_COMBINE])
        text_comment(file, "combine alone is not known: %s cannot combine twice", plugin);
}

/* The stop rules, and which one ended the run. */
static void print_stop(FILE *file, const struct bench_options *o, const char *reason)
{
    char ci95[64] = "", time[64] = "";

    if (o->ci95 > 0)
        snprintf(ci95, sizeof(ci95), "; an interval of %.3g %%", 100 * o->ci95);
    if (o->max_time_ns > 0)
        snprintf(time, sizeof(time), "; %.3g s of samples", (double)o->max_time_ns / 1e9);
    if (reason[0] == '\0')
        text_comment(file, "no stop rule was met before the end");
    else
        text_comment(file, "stopped by bench.%s; rules: %u samples%s%s",
                     strcmp(reason, "time") == 0 ? "max_time" : reason, o->iterations, ci95, time);
}

static void print_samples(FILE *file, const struct session *s, const json_t *result)
{
    const json_t *row = result_total(result), *ns = json_object_get(row, "ns");
    const char *name = json_text_at(row, "name");
    bool wall = s->notes->clock == CLOCK_END_TO_END,
         rule = s->verb == VERB_BENCH && stop_is_on(&s->experiment->bench);
    double first = 0, outliers = json_number_at(ns, "outliers");

    text_comment(file,
                 "%.0f of %s%u samples after %u of warm-up, each %s; percentiles by nearest rank",
                 json_number_at(result, "stop.samples"), rule ? "at most " : "", s->iterations,
                 s->warmup, wall ? "rank 0's" : "the slowest rank's");
    if (rule)
        print_stop(file, &s->experiment->bench, json_text_at(result, "stop.reason"));
    if (json_number_at(ns, "n") > 0)
        text_comment(file,
                     "%s: mean %.1f us, stdev %.1f (cv %.1f %%), median deviation %.1f, %.0f "
                     "outlier%s",
                     name, json_number_at(ns, "mean") / 1e3, json_number_at(ns, "stdev") / 1e3,
                     100 * json_number_at(row, "cv"), json_number_at(ns, "mad") / 1e3, outliers,
                     outliers > 0 && outliers < 2 ? "" : "s");
    if (json_is_array(json_object_get(ns, "ci95")))
        text_comment(file,
                     "%s: 95 %% interval of the median %.1f to %.1f us, %.2f %% of it, by "
                     "order statistics",
                     name, json_number_at(ns, "ci95.0") / 1e3, json_number_at(ns, "ci95.1") / 1e3,
                     100 * json_number_at(result, "stop.ci95"));
    for (struct json_walk rank = {json_at(result, "world.ranks")}; json_next(&rank);)
        first = fmax(first, json_number_at(rank.value, "first_ns"));
    if (first > 0)
        text_comment(file, "very first iteration: %.1f us", first / 1e3);
    if (json_is_object(json_object_get(result, "skew")) && s->experiment->ranks > 1)
        text_comment(file,
                     "skew: %.1f us from fastest to slowest rank (median); rank %.0f slowest in "
                     "%.0f %% of samples",
                     json_number_at(result, "skew.median_ns") / 1e3,
                     json_number_at(result, "skew.straggler"),
                     100 * json_number_at(result, "skew.straggler_share"));
}

static char *size_at(const json_t *object, const char *key, char buf[32])
{
    double bytes = json_number_at(object, key);

    return text_size(buf, 32, bytes > 0 ? (uint64_t)llround(bytes) : 0);
}

static void print_traffic(FILE *file, const char *what, const json_t *t)
{
    char needed[32], out[32], bottleneck[32];

    if (json_number_at(t, "needed_bytes") <= 0 && json_number_at(t, "bottleneck_bytes") <= 0)
        return;
    text_comment(file, "%s: %s payload, %s sent per rank and iteration; busiest rank %s", what,
                 size_at(t, "needed_bytes", needed), size_at(t, "wire_bytes", out),
                 size_at(t, "bottleneck_bytes", bottleneck));
}

/* The least that an iteration takes: the largest of what products, weights and links take at
 * their best. */
static void print_limit(FILE *file, const json_t *result)
{
    const json_t *total = result_total(result), *limit = json_at(result, "compute.limit");
    double links_ns = json_number_at(limit, "links_ns");
    char weights[32], links[64] = "";

    if (json_is_null(json_object_get(total, "peak_ns")) || !json_is_object(limit))
        return;
    if (!isnan(links_ns))
        snprintf(links, sizeof(links), ", links %.1f us", links_ns / 1e3);
    text_comment(
        file,
        "limit: products %.1f us (%.3g TFLOP/s), weights %.1f us (%s at %.1f GB/s)%s: "
        "%s takes %.2f times the largest",
        json_number_at(limit, "flops_ns") / 1e3, json_number_at(limit, "flops_per_s") / 1e12,
        json_number_at(limit, "weights_ns") / 1e3, size_at(limit, "weights_bytes", weights),
        json_number_at(limit, "memory_bytes_per_s") / 1e9, links, json_text_at(total, "name"),
        1 / json_number_at(total, "of_peak"));
}

/* Floating-point operations and their rate: of the experts' stage, and of a whole iteration. */
static void print_flops(FILE *file, const struct session *s, const json_t *result)
{
    const json_t *compute = json_object_get(result, "compute");
    const struct operation *op = session_operation(s);
    double experts = json_number_at(compute, "experts.flops_per_s");
    double all = json_number_at(compute, "flops_per_s");
    text_auto rate = {0};

    if (!json_is_object(compute))
        return;
    if (!isnan(experts))
        text_add(&rate, ", %.3g TFLOP/s in %s", experts / 1e12, op->between_name);
    if (!isnan(all))
        text_add(&rate, ", %.3g TFLOP/s in %s", all / 1e12,
                 json_text_at(result_total(result), "name"));
    text_comment(file, "computes: a rank does %.4g GFLOP an iteration%s",
                 json_number_at(compute, "flops") / 1e9, rate.data != NULL ? rate.data : "");
    print_limit(file, result);
}

/* Times of communication and computation alone, and how much of the shorter is hidden. */
static void print_parts(FILE *file, const json_t *result)
{
    double longest = 0, total = json_number_at(result_total(result), "ns.median");
    text_auto line = {0};

    for (struct json_walk part = {json_at(result, "compute.parts")}; json_next(&part);) {
        double ns = json_number_at(part.value, "median_ns");

        longest = fmax(longest, ns);
        text_add(&line, "%s%s %.1f us", part.n > 1 ? ", " : "", json_text_at(part.value, "name"),
                 ns / 1e3);
    }
    if (line.data != NULL && total > 0)
        text_comment(file, "alone: %s; %.0f %% of the shorter hidden; total is %.2f of the longer",
                     line.data, 100 * json_number_at(result, "compute.hidden"), total / longest);
}

/* Statistics of the operation's inputs. */
static void print_stats(FILE *file, const struct session *s)
{
    text_auto lines = {0};

    if (session_operation(s)->stats_lines == NULL)
        return;
    session_operation(s)->stats_lines(s->stats, &lines);
    for (const char *at = lines.data; at != NULL && *at != '\0'; at += strcspn(at, "\n") + 1)
        text_comment(file, "%.*s", (int)strcspn(at, "\n"), at);
}

/* The events of a trace, and the overhead of recording them. */
static void print_trace(FILE *file, const json_t *result)
{
    const json_t *t = json_object_get(result, "profile");
    double median = json_number_at(result_total(result), "ns.median");
    double error_ns = json_number_at(t, "clock_error_ns"), iterations;
    double event_ns = json_number_at(t, "event_ns"), ns = json_number_at(t, "overhead_ns");

    if (!json_is_object(t))
        return;
    iterations = json_number_at(t, "iterations");
    text_comment(
        file, "profile: %s has the last %.0f iteration%s: %.0f slices, %.0f flows, %.0f dropped",
        json_text_at(t, "file"), iterations, iterations > 0 && iterations < 2 ? "" : "s",
        json_number_at(t, "slices"), json_number_at(t, "flows"), json_number_at(t, "dropped"));
    if (iterations <= 0)
        return;
    if (!isnan(error_ns))
        text_comment(file, "profile: clocks of ranks agree within %.1f us", error_ns / 1e3);
    if (!isnan(median))
        text_comment(
            file,
            "profile: noting takes %.0f ns, at most %.0f times a thread and iteration: that "
            "alone is %.2f us, %.2f %% of the median; ranks that wait for each other add "
            "theirs up, so `epa2a compare` with a run without profile says what it costs",
            event_ns, event_ns > 0 ? ns / event_ns : 0, ns / 1e3, 100 * ns / median);
}

static void print_end(FILE *file, const json_t *result)
{
    const char *name = json_text_at(result, "error.status");
    const char *why = json_text_at(result, "error.text");

    if (name[0] == '\0' || strcmp(name, "missed") == 0)
        return;
    if (strcmp(why, name) == 0) /* a signal needs no more words */
        why = "";
    text_comment(file, "ended early: %s (exit %d)%s%s", name, result_exit_code(result),
                 why[0] != 0 ? ": " : "", why);
}

/* One line for each expectation. */
static void print_verdicts(FILE *file, const struct session *s, const json_t *result)
{
    bool expects = expect_is_set(&s->experiment->expect);
    bool missed = strcmp(json_text_at(result, "status"), "missed") == 0;
    char wanted[128], found[256];

    for (struct json_walk v = {json_object_get(result, "expect")}; json_next(&v);) {
        bool met = json_is_true(json_object_get(v.value, "met"));

        fputs(met ? "" : colour_on(file, COLOUR_BAD), file);
        text_comment(file, "expect: %s, %s: %s", verdict_wanted(v.value, wanted, sizeof(wanted)),
                     verdict_found(result, v.value, found, sizeof(found)), met ? "met" : "MISSED");
        fputs(met ? "" : colour_off(file), file);
    }
    if (s->verb == VERB_VERIFY && expects)
        text_comment(file, "expect: verify takes no times; only expect.wrong is looked at");
    else if (json_text_at(result, "error.status")[0] != '\0' && !missed && expects)
        text_comment(file, "expect: not looked at, as it ended early");
}

static void print_checks(FILE *file, const struct session *s, const json_t *result)
{
    const json_t *verify = json_object_get(result, "verify");
    double checked = json_number_at(verify, "iterations");
    double n = json_number_at(verify, "compared"), bad = json_number_at(verify, "wrong");
    char compared[32], wrong[32];

    text_count(compared, sizeof(compared), (uint64_t)n);
    text_count(wrong, sizeof(wrong), (uint64_t)bad);
    fputs(bad > 0 ? colour_on(file, COLOUR_BAD) : "", file);
    if (s->verb == VERB_VERIFY)
        fprintf(file, "verified %.0f iteration%s: %s elements compared, %s wrong\n", checked,
                checked > 0 && checked < 2 ? "" : "s", compared, wrong);
    else if (s->verb == VERB_BENCH && n > 0)
        text_comment(file, "checked: %s elements, %s wrong", compared, wrong);
    else if (n > 0)
        text_comment(file, "%s checked: %s elements, %s wrong",
                     checked > 1 && checked < 3 ? "first and last iteration" : "iterations",
                     compared, wrong);
    else if (json_text_at(verify, "unchecked")[0] != '\0')
        text_comment(file, "not checked: %s", json_text_at(verify, "unchecked"));
    fputs(bad > 0 ? colour_off(file) : "", file);
}

void report_table(FILE *file, const struct session *s, const json_t *result)
{
    const json_t *traffic = json_object_get(result, "traffic");
    char bytes[32];

    print_header(file, s, result);
    if (s->verb != VERB_VERIFY) {
        print_stages(file, result);
        print_clock(file, s, result);
        print_samples(file, s, result);
    }
    for (uint32_t i = 0; i < session_operation(s)->n_phases; i++)
        print_traffic(file, session_operation(s)->phase[i].name,
                      json_object_get(traffic, session_operation(s)->phase[i].name));
    if (s->verb == VERB_VERIFY && s->uncounted[0] != '\0' && s->experiment->ranks > 1)
        text_comment(file, "sent: as planned, and not counted: %s", s->uncounted);
    print_flops(file, s, result);
    print_parts(file, result);
    if (s->footprint.device_bytes > 0)
        text_comment(file, "scratch memory of a rank's device: %s",
                     text_size(bytes, sizeof(bytes), s->footprint.device_bytes));
    print_stats(file, s);
    print_trace(file, result);
    print_end(file, result);
    print_verdicts(file, s, result);
    print_checks(file, s, result);
}
