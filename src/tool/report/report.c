/* The table: experiment and machine, one row for each stage, then the facts that explain the
 * numbers. Fits 100 columns, so that users can paste it anywhere. */
#include "report/report.h"

#include "report/verdicts.h"
#include "report/result_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/stats.h"
#include "base/terminal.h"
#include "base/text.h"
#include "config/experiment.h"
#include "config/expect.h"
#include "config/experiment_show.h"
#include "report/figures.h"
#include "report/table.h"
#include "report/fill.h"
#include "report/lines.h"

/* ---- experiment and machine ---- */

/* Adds "0-3, 6, 7": consecutive cores are shortened, the order is kept. */
static void add_cores(struct text *out, const struct session *s)
{
    uint32_t ranks = s->experiment->problem.ranks, last;

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

    for (uint32_t r = 0; r < x->problem.ranks; r++)
        pinned += session_rank(s, r)->core >= 0;
    text_add(&cores, pinned > 0 ? "pinned in order to cores " : "not pinned");
    if (pinned > 0)
        add_cores(&cores, s);
    text_comment(file, "%u rank%s by %s, %s; seed %llu", x->problem.ranks,
                 x->problem.ranks == 1 ? "" : "s", x->launcher.plugin->name, cores.data,
                 (unsigned long long)x->problem.seed);
}

/* Adds "hosta (ranks 0, 2, 4)"; returns false if no rank is on that node. */
static bool add_node(struct text *out, const struct session *s, uint32_t node)
{
    uint32_t ranks = s->experiment->problem.ranks, n = 0;

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

    size_t bytes = strlen(d->section);

    if (v->section == NULL || strncmp(v->section, d->section, bytes) != 0)
        return;
    if (v->section[bytes] == '.') /* nested: "between_nodes.tls tcp" */
        text_add(d->options, "%s%s %s", d->options->bytes == 0 ? "" : ", ", v->path + bytes + 1,
                 v->value);
    else if (v->section[bytes] != '\0')
        return;
    else if (strcmp(v->key, "name") == 0 || strcmp(v->key, "kind") == 0)
        text_add(d->main, "%s", v->value);
    else
        text_add(d->options, "%s%s %s", d->options->bytes == 0 ? "" : ", ", v->key, v->value);
}

/* Prints "algorithm: ll_v2 (dispatch_dtype fp8, buffers 2); transport: shm; ..." */
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

/* Prints the members of an object: "NAME=TEXT, ..." or "NAME TEXT, ...". */
static void print_pairs(FILE *file, const json_t *object, const char *before, char between)
{
    text_auto line = {0};

    for (struct json_walk it = {object}; json_next(&it);)
        text_add(&line, "%s%s%c%s", line.bytes == 0 ? before : ", ", it.key, between,
                 json_string_value(it.value));
    if (line.data != NULL)
        text_comment(file, "%s", line.data);
}

/* Prints "expert: mlp (ffn 2048, ...)", and the library or kernels that compute it. */
static void print_operation_section(FILE *file, const struct session *s)
{
    const struct operation *op = session_operation(s);
    const char *section = op->head_also != NULL ? op->head_also(&s->experiment->problem) : NULL;

    if (s->notes != NULL && s->notes->products_by[0] != '\0')
        text_comment(file, "products by %s", s->notes->products_by);
    if (section == NULL)
        return;
    print_sections(file, s->experiment, &section, 1);
    if (s->notes->between_by[0] != '\0')
        text_comment(file, "%s by %s", op->between_name, s->notes->between_by);
}

static void print_model(FILE *file, const struct model_options *m)
{
    text_auto line = {0};

    if (m->name == NULL)
        return;
    text_add(&line, "model: %s", m->name);
    if (m->layers > 0 && m->moe_layers > 0)
        text_add(&line, "; %u of %u layers are MoE layers", m->moe_layers, m->layers);
    if (m->shared_experts > 0)
        text_add(&line, "; %u shared expert%s, not run", m->shared_experts,
                 m->shared_experts == 1 ? "" : "s");
    text_comment(file, "%s", line.data);
}

/* Prints the time of a forward pass: a layer's time once for each MoE layer. */
static void print_layers(FILE *file, const struct model_options *m, const json_t *result)
{
    const json_t *total = result_total(result);
    double median = json_number_at(total, "ns.median");

    if (m->name != NULL && m->moe_layers > 0 && median > 0)
        text_comment(file, "%u MoE layers of %s: %u x %s = %.3f ms", m->moe_layers, m->name,
                     m->moe_layers, json_text_at(total, "name"), m->moe_layers * median / 1e6);
}

static void print_header(FILE *file, const struct session *s, const json_t *result)
{
    static const char *const plugins[] = {"algorithm", "transport", "backend"};
    const struct experiment *x = s->experiment;
    const json_t *machine = json_object_get(result, "machine");

    text_comment(file, "epa2a %s: %s", session_verb(s), x->name);
    if (x->label != NULL)
        text_comment(file, "run: %s; id %s", x->label, x->id);
    print_sections(file, x, plugins, 3);
    print_model(file, &x->model);
    for (const char *const *line = session_operation(s)->head; *line != NULL;) {
        uint32_t n = 0;

        while (line[n] != NULL)
            n++;
        print_sections(file, x, line, n);
        line += n + 1;
    }
    print_operation_section(file, s);
    if (x->api != API_NONE)
        text_comment(file, "path: epa2a.h, %s", x->api == API_LAYER ? "complete layers" : "calls");
    fill_comment(file, "PLANTED FAULT, no measurement: {fault.text}", result);
    print_pins(file, s);
    print_nodes(file, s);
    fill_comment(file,
                 "machine: {cpu}, {cores} core{cores?s}[, {memory_bytes%size}], {kernel}, {host}",
                 machine);
    fill_comment(file,
                 "build: epa2a {build.version}, {build.compiler}, {build.type}"
                 "[, sanitizers: {build.sanitizers!none}{build.sanitizers}], {build.isa} kernels",
                 machine);
    print_pairs(file, json_object_get(result, "context"), "context: ", '=');
    print_pairs(file, json_object_get(machine, "device"), "rank 0's ", ' ');
    print_pairs(file, json_at(result, "world.ranks.0.transport"), "rank 0's ", ' ');
    fill_comment(file,
                 "[link peak: {links.rate%.1f} GB/s out of a rank while all send"
                 "[, {links.latency_ns/1e3%.2f} us for a signal|; the time of a signal is "
                 "unknown, since other programs used the cores]"
                 "|link peak: {links.latency_ns/1e3%.2f} us for a signal; the rate is not known "
                 "and left out]",
                 machine);
}

/* ---- stages ---- */

/* Prints a row for each stage. With link limits, and with a percentile that needs many samples, the
 * columns are narrower. A peak below the measured rate is shown as a question mark. */
static void print_stages(FILE *file, const json_t *result)
{
    bool peak = json_is_object(json_at(result, "machine.links"));
    bool p999 = json_number_at(result, "stop.samples") >= STATS_P999_LEAST;
    int time = peak && p999 ? 6 : peak || p999 ? 8 : 9, rate = peak ? 7 : 8;
    int digits = json_number_at(result_total(result), "ns.median") < 100e3 ? 2 : 1;
    struct table_column *column = memory_alloc(figures_count() + 2, sizeof(*column));
    json_auto_t *rows = json_array();
    uint32_t n = 0;

    column[n++] = (struct table_column){"name", "stage", .digits = 10};
    for (const struct figure *f = figures; f->path != NULL; f++) {
        bool is_peak = f->needs == FIGURE_LINKS;

        if (f->heading == NULL || (is_peak && !peak) || (f->needs == FIGURE_TAIL && !p999))
            continue;
        column[n] = figure_column(f, f->path, is_peak ? 7 : f->kind == FIGURE_NS ? time : rate);
        if (f->kind == FIGURE_NS)
            column[n].digits = digits;
        n++;
    }
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
    free(column);
}

/* ---- explanations below the table ---- */

/* Description of clocks other than the host's, and their limits. */
static const char *const clocks[] = {
    "{timing.clock=events}clock: events around each stage[{verb=bench}, cache {timing.cache}]; "
    "total is their sum",
    "{timing.arrivals.rate>0}open loop: {timing.arrivals.process} arrivals by seed "
    "{experiment.seed}, {timing.arrivals.rate%.6g} due a second[, "
    "{timing.arrivals.rate/timing.arrivals.closed_rate%.3g} of the "
    "{timing.arrivals.closed_rate%.6g} of a closed loop]; latency counts from when one was due, "
    "service from when it began[; {timing.arrivals.late/.01%.0f} % were due before it could begin]",
    "{timing.clock=end_to_end}clock: rank 0's, from one barrier of all ranks to the next, cache "
    "cold; it includes all stages and the time between them",
    "{timing.clock=graph}clock: graph of {timing.calls} call{timing.calls?s}[{pairs=true} of each "
    "stage], cache {timing.cache}; a sample is one launch[{timing.calls>1} divided by calls]"
    "[{pairs=true}, total a pair as measured, dispatch and combine alone]",
    "{no_dispatch=true}dispatch alone is not known: {experiment.algorithm.name} cannot discard a "
    "dispatch",
    "{no_combine=true}combine alone is not known: {experiment.algorithm.name} cannot combine twice",
    NULL,
};

static const char *const samples[] = {
    "{stop.samples} of [{rule=true}at most ]{iterations} samples after {warmup} of warm-up, each "
    "[{timing.clock=end_to_end}rank 0's|the slowest rank's]; percentiles by nearest rank",
    "partial: it ended after {partial.samples%count} samples[{lost!-}; the times of "
    "rank {lost} are lost, and a sample is the time of the slowest other rank]",
    "{rule=true}[{stop.reason!-}stopped by bench.[{stop.reason=time}max_time|{stop.reason}]; "
    "rules: {iterations} samples[; an interval of {ci95/.01%.3g} %]"
    "[; {max_time_ns/1e9%.3g} s of samples]"
    "|no stop rule was met before the end]",
    "{total.ns.n>0}{total.name}: mean {total.ns.mean/1e3%.1f} us, stdev {total.ns.stdev/1e3%.1f} "
    "(cv {total.cv/.01%.1f} %), median deviation {total.ns.mad/1e3%.1f}, {total.ns.outliers} "
    "outlier{total.ns.outliers?s}",
    "{total.name}: 95 % interval of the median {total.ns.ci95.0/1e3%.1f} to "
    "{total.ns.ci95.1/1e3%.1f} us, {stop.ci95/.01%.2f} % of it, by order statistics",
    "{first_ns>0}very first iteration: {first_ns/1e3%.1f} us",
    "{world.size>1}skew: {skew.median_ns/1e3%.1f} us from fastest to slowest rank (median); rank "
    "{skew.straggler} slowest in {skew.straggler_share/.01%.0f} % of samples",
    NULL,
};

/* The lower bound of an iteration is the largest of the minimum times of products, weights and
 * links; for parts that ran alone, the hidden share of the shorter part. */
static const char *const computes[] = {
    "computes: a rank does {compute.flops/1e9%.4g} GFLOP an iteration"
    "[, {compute.experts.flops_per_s/1e12%.3g} TFLOP/s in {between}]"
    "[, {compute.flops_per_s/1e12%.3g} TFLOP/s in {total.name}]",
    "limit: products {compute.limit.flops_ns/1e3%.1f} us ({compute.limit.flops_per_s/1e12%.3g} "
    "TFLOP/s), weights {compute.limit.weights_ns/1e3%.1f} us ({compute.limit.weights_bytes%size} "
    "at {compute.limit.memory_bytes_per_s/1e9%.1f} GB/s)[, links {compute.limit.links_ns/1e3%.1f} "
    "us]: {total.name} takes {total.ns.median/total.peak_ns%.2f} times the largest",
    "{total.ns.median>0}alone: {parts}; {compute.hidden/.01%.0f} % of the shorter hidden; total is "
    "{total.ns.median/longest_ns%.2f} of the longer",
    "{api.turns>0}epa2a.h: {api.overhead_ns/1e3%.3f} us of overhead per call: "
    "{api.api_ns/1e3%.2f} us with {api.calls} call{api.calls?s} an iteration, "
    "{api.direct_ns/1e3%.2f} us without, medians of {api.turns} turns",
    NULL,
};

static const char *const ends[] = {
    "profile: {profile.file} has the last {profile.iterations} iteration{profile.iterations?s}: "
    "{profile.slices} slices, {profile.flows} flows, {profile.dropped} dropped",
    "{profile.iterations>0}profile: clocks of ranks agree within {profile.clock_error_ns/1e3%.1f} "
    "us",
    "{profile.iterations>0}profile: recording an event takes {profile.event_ns%.0f} ns, at most "
    "[{profile.overhead_ns/profile.event_ns%.0f}|0] times per thread and iteration: "
    "{profile.overhead_ns/1e3%.2f} us, {profile.overhead_ns/total.ns.median/.01%.2f} % of the "
    "median without waits; waiting ranks add these times up, so `epa2a compare` with an unprofiled "
    "run shows the cost",
    "{error.status!missed}ended early: {error.status} (exit {exit_code})[: {why}]",
    NULL,
};

static void print_all(FILE *file, const char *const *line, const json_t *facts)
{
    for (; *line != NULL; line++)
        fill_comment(file, *line, facts);
}

/* Returns "1, 3"; null: an empty list. */
static json_t *list_json(const json_t *list)
{
    text_auto out = {0};

    for (struct json_walk it = {list}; json_next(&it);)
        text_add(&out, "%s%lld", it.n > 1 ? ", " : "", (long long)json_integer_value(it.value));
    return json_text_or_null(out.data);
}

json_t *report_facts(const struct session *s, const struct run_figures *f, const json_t *result)
{
    const struct bench_options *bench = &s->experiment->bench;
    const struct session_notes *notes = s->notes;
    bool has_text = f->error != NULL && strcmp(f->error_text, f->error) != 0;
    uint32_t last = notes->n_stages > 0 ? notes->n_stages - 1 : 0;
    json_t *out = json_copy((json_t *)(uintptr_t)result);
    double first = 0, longest = 0;
    text_auto parts = {0};

    for (struct json_walk rank = {json_at(result, "world.ranks")}; json_next(&rank);)
        first = fmax(first, json_number_at(rank.value, "first_ns"));
    for (struct json_walk part = {json_at(result, "compute.parts")}; json_next(&part);) {
        longest = fmax(longest, json_number_at(part.value, "median_ns"));
        text_add(&parts, "%s", part.n > 1 ? ", " : "");
        fill_add(&parts, "{name} {median_ns/1e3%.1f} us", part.value, NULL);
    }
    json_object_set(out, "total", (json_t *)(uintptr_t)result_total(result));
    json_object_set_new(out, "first_ns", json_number(first));
    json_object_set_new(out, "lost", list_json(json_at(result, "partial.lost_ranks")));
    json_object_set_new(out, "longest_ns", json_number(longest));
    json_object_set_new(out, "parts", json_text_or_null(parts.data));
    json_object_set_new(out, "rule",
                        json_boolean(s->verb == VERB_BENCH && stop_is_on(&s->experiment->bench)));
    json_object_set_new(out, "ci95", json_number(bench->ci95 > 0 ? bench->ci95 : NAN));
    json_object_set_new(out, "max_time_ns", json_count_or_null(bench->max_time_ns));
    json_object_set_new(out, "pairs", json_boolean(notes->stage_kind[last] != EPA_STAGE_WHOLE));
    json_object_set_new(out, "no_dispatch", json_boolean(notes->not_alone[FIGURE_DISPATCH]));
    json_object_set_new(out, "no_combine", json_boolean(notes->not_alone[FIGURE_COMBINE]));
    json_object_set_new(out, "between", json_text_or_null(session_operation(s)->between_name));
    /* signals have no further words */
    json_object_set_new(out, "why", json_text_or_null(has_text ? f->error_text : NULL));
    return out;
}

static void print_traffic(FILE *file, const struct session *s, const json_t *result)
{
    const struct operation *op = session_operation(s);

    for (uint32_t i = 0; i < op->n_phases; i++) {
        const json_t *t = json_object_get(json_object_get(result, "traffic"), op->phase[i].name);
        text_auto line = {0};

        text_add(&line, "%s", op->phase[i].name);
        fill_add(&line,
                 ": {needed_bytes%size} payload, {wire_bytes%size} sent per rank and iteration; "
                 "busiest rank {bottleneck_bytes%size}",
                 t, NULL);
        if (json_number_at(t, "needed_bytes") > 0 || json_number_at(t, "bottleneck_bytes") > 0)
            text_comment(file, "%s", line.data);
    }
}

/* Prints statistics of the operation's inputs. */
static void print_stats(FILE *file, const struct session *s)
{
    text_auto lines = {0};

    if (session_operation(s)->stats_lines == NULL)
        return;
    session_operation(s)->stats_lines(s->stats, &lines);
    for (const char *at = lines.data; at != NULL && *at != '\0'; at += strcspn(at, "\n") + 1)
        text_comment(file, "%.*s", (int)strcspn(at, "\n"), at);
}

/* Prints one line for each expectation. */
static void print_verdicts(FILE *file, const struct session *s, const struct run_figures *f)
{
    for (uint32_t i = 0; i < f->n_verdicts; i++) {
        bool met = f->verdict[i].met;
        text_auto line = {0};

        verdict_add(&line, f, &f->verdict[i], ", ");
        fputs(met ? "" : colour_on(file, COLOUR_BAD), file);
        text_comment(file, "expect: %s: %s", line.data, met ? "met" : "MISSED");
        fputs(met ? "" : colour_off(file), file);
    }
    if (!expect_is_set(&s->experiment->expect))
        return;
    if (s->verb == VERB_VERIFY)
        text_comment(file, "expect: verify takes no times; only expect.wrong is looked at");
    else if (f->error != NULL && strcmp(f->error, "missed") != 0)
        text_comment(file, "expect: not looked at, as it ended early");
}

/* Prints the share of compared outputs, the tolerance, and the reason if not all were compared. */
static void print_share(FILE *file, const struct session *s, const json_t *result)
{
    const struct verify_options *v = &s->experiment->verify;
    double outputs = json_number_at(result, "verify.outputs");
    double compared = json_number_at(result, "verify.outputs_compared");
    double widest = json_number_at(result, "verify.outputs_bound");
    const char *partly = json_text_at(result, "verify.outputs_partly");
    text_auto bound = {0};
    char count[32];

    if (!(outputs > 0))
        return;
    if (v->tolerance == TOLERANCE_ALLCLOSE)
        text_add(&bound, "within %.3g + %.3g of the reference", v->atol, v->rtol);
    else if (widest > 0)
        text_add(&bound, "in intervals of %.2g of the sum of magnitudes, %.2g at most",
                 json_number_at(result, "verify.outputs_mean_bound"), widest);
    else
        text_add(&bound, "to the bit");
    text_comment(file, "outputs: %.3g %% of %s compared, %s%s%s", 100 * compared / outputs,
                 text_count(count, sizeof(count), (uint64_t)outputs), bound.data,
                 partly[0] != '\0' ? "; " : "", partly);
}

static void print_checks(FILE *file, const struct session *s, const json_t *result)
{
    bool wrong = json_number_at(result, "verify.wrong") > 0;
    text_auto line = {0};

    fputs(wrong ? colour_on(file, COLOUR_BAD) : "", file);
    if (s->verb == VERB_VERIFY) {
        fill_add(&line,
                 "verified {iterations} iteration{iterations?s}: {compared%count} elements "
                 "compared, {wrong%count} wrong"
                 "[{outputs_overflowed>0}, {outputs_overflowed%count} not compared]",
                 json_object_get(result, "verify"), NULL);
        fprintf(file, "%s\n", line.data);
    } else {
        fill_comment(file,
                     "[{verify.compared>0}[{verb=bench}|{verify.iterations=2}first and last "
                     "iteration |iterations ]checked: {verify.compared%count} elements, "
                     "{verify.wrong%count} wrong"
                     "[{verify.outputs_overflowed>0}, {verify.outputs_overflowed%count} not "
                     "compared]|not checked: {verify.unchecked}]",
                     result);
    }
    fputs(wrong ? colour_off(file) : "", file);
}

void report_table(FILE *file, const struct session *s, const struct run_figures *f,
                  const json_t *result)
{
    json_auto_t *facts = report_facts(s, f, result);

    print_header(file, s, result);
    if (s->verb != VERB_VERIFY) {
        print_stages(file, result);
        print_all(file, clocks, facts);
        print_all(file, samples, facts);
        print_layers(file, &s->experiment->model, result);
    }
    print_traffic(file, s, result);
    if (s->experiment->problem.ranks > 1)
        fill_comment(file, "sent: as planned, and not counted: {verify.uncounted}", facts);
    print_all(file, computes, facts);
    fill_comment(file,
                 "{memory.device_bytes>0}scratch memory of a rank's device: "
                 "{memory.device_bytes%size}",
                 facts);
    if (s->verb == VERB_VERIFY)
        print_share(file, s, result);
    print_stats(file, s);
    print_all(file, ends, facts);
    print_verdicts(file, s, f);
    print_checks(file, s, result);
}
