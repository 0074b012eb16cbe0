/* The table: experiment and machine, one row for each stage, then the facts that explain the
 * numbers. Fits 100 columns, so that users can paste it anywhere. */
#include "report/figure_column.h"
#include "report/report.h"

#include "result/verdicts.h"

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
#include "result/figures.h"
#include "report/table.h"
#include "report/lines.h"

/* ---- experiment and machine ---- */

/* Adds "0-3, 6, 7": consecutive cores are shortened, the order is kept. */
static void add_cores(struct text *out, const struct run_facts *s)
{
    uint32_t ranks = s->experiment->problem.ranks, last;

    for (uint32_t r = 0; r < ranks; r = last + 1) {
        int32_t core = s->rank[r].core;

        for (last = r; last + 1 < ranks && core >= 0; last++) {
            if (s->rank[last + 1].core != s->rank[last].core + 1)
                break;
        }
        text_add(out, r == 0 ? "" : ", ");
        if (core < 0)
            text_add(out, "any");
        else if (last > r)
            text_add(out, "%d-%d", core, s->rank[last].core);
        else
            text_add(out, "%d", core);
    }
}

static void print_pins(FILE *file, const struct run_facts *s)
{
    const struct experiment *x = s->experiment;
    text_auto cores = {0};
    uint32_t pinned = 0;

    for (uint32_t r = 0; r < x->problem.ranks; r++)
        pinned += s->rank[r].core >= 0;
    text_add(&cores, pinned > 0 ? "pinned in order to cores " : "not pinned");
    if (pinned > 0)
        add_cores(&cores, s);
    text_comment(file, "%u rank%s by %s, %s; seed %llu", x->problem.ranks,
                 x->problem.ranks == 1 ? "" : "s", x->launcher.plugin->name, cores.data,
                 (unsigned long long)x->problem.seed);
}

/* Adds "hosta (ranks 0, 2, 4)"; returns false if no rank is on that node. */
static bool add_node(struct text *out, const struct run_facts *s, uint32_t node)
{
    uint32_t ranks = s->experiment->problem.ranks, n = 0;

    for (uint32_t r = 0; r < ranks; r++) {
        const struct run_rank *rank = &s->rank[r];

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

static void print_nodes(FILE *file, const struct run_facts *s)
{
    text_auto line = {0};
    uint32_t nodes = 0;

    while (add_node(&line, s, nodes))
        nodes++;
    if (s->started_by[0] != '\0')
        text_comment(file, "found: %s", s->started_by);
    if (nodes > 1)
        text_comment(file, "%u nodes: %s", nodes, line.data);
}

/* One section of the experiment: "ll_v2 (dispatch_dtype fp8, buffers 2)". */
struct description {
    const char *section;
    struct text *main, *options;
};

static void describe_value(void *arg, const struct experiment_value *v)
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

        experiment_visit(x, describe_value, &(struct description){section[i], &main, &more});
        text_add(&line, "%s%s: %s", i == 0 ? "" : "; ", section[i],
                 main.data != NULL ? main.data : "");
        if (more.data != NULL)
            text_add(&line, main.data != NULL ? " (%s)" : "%s", more.data);
    }
    if (line.data != NULL)
        text_comment(file, "%s", line.data);
}

/* Prints the notes of the user: "context: NAME=TEXT, ..." */
static void print_context(FILE *file, const struct facts *facts)
{
    text_auto line = {0};

    for (uint32_t i = 0; i < facts->n_context; i++)
        text_add(&line, "%s%s", i == 0 ? "context: " : ", ", facts->context[i]);
    if (line.data != NULL)
        text_comment(file, "%s", line.data);
}

/* Prints facts of the device, or of the links, of rank 0: "rank 0's NAME TEXT, ..." */
static void print_facts(FILE *file, const struct session_facts *facts)
{
    text_auto line = {0};

    for (uint32_t i = 0; i < facts->n; i++)
        text_add(&line, "%s%s %s", i == 0 ? "rank 0's " : ", ", facts->fact[i].key,
                 facts->fact[i].value);
    if (line.data != NULL)
        text_comment(file, "%s", line.data);
}

/* Prints "expert: mlp (ffn 2048, ...)", and the library or kernels that compute it. */
static void print_operation_section(FILE *file, const struct run_facts *s)
{
    const struct operation *op = s->operation;
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
static void print_layers(FILE *file, const struct model_options *m, const struct run_stage *total)
{
    double median = total->figures.ns.median;

    if (m->name != NULL && m->moe_layers > 0 && median > 0)
        text_comment(file, "%u MoE layers of %s: %u x %s = %.3f ms", m->moe_layers, m->name,
                     m->moe_layers, total->name, m->moe_layers * median / 1e6);
}

static void print_machine(FILE *file, const struct machine_facts *m)
{
    const struct build_facts *b = &m->build;
    text_auto line = {0};
    char size[32];

    text_add(&line, "machine: %s, %u core%s", m->cpu, m->cores, m->cores == 1 ? "" : "s");
    if (m->memory_bytes > 0)
        text_add(&line, ", %s", text_size(size, sizeof(size), m->memory_bytes));
    text_comment(file, "%s, %s, %s", line.data, m->kernel, m->host);
    text_free(&line);
    text_add(&line, "build: epa2a %s, %s, %s", b->version, b->compiler, b->type);
    if (strcmp(b->sanitizers, "none") != 0)
        text_add(&line, ", sanitizers: %s", b->sanitizers);
    text_comment(file, "%s, %s kernels", line.data, b->isa);
}

static void print_links(FILE *file, const struct peak *links)
{
    double rate = links->bytes_per_ns, signal_us = links->latency_ns / 1e3;

    if (rate > 0 && signal_us > 0)
        text_comment(file,
                     "link peak: %.1f GB/s out of a rank while all send, %.2f us for a signal",
                     rate, signal_us);
    else if (rate > 0)
        text_comment(file,
                     "link peak: %.1f GB/s out of a rank while all send; the time of a signal is "
                     "unknown, since other programs used the cores",
                     rate);
    else if (signal_us > 0)
        text_comment(file, "link peak: %.2f us for a signal; the rate is not known and left out",
                     signal_us);
}

static void print_header(FILE *file, const struct run_facts *s, const struct run_figures *f,
                         const struct facts *facts)
{
    static const char *const plugins[] = {"algorithm", "transport", "backend"};
    const struct experiment *x = s->experiment;

    text_comment(file, "epa2a %s: %s", session_verb_name(s->verb), x->name);
    if (x->label != NULL)
        text_comment(file, "run: %s; id %s", x->label, x->id);
    print_sections(file, x, plugins, 3);
    print_model(file, &x->model);
    for (const char *const *line = s->operation->head; *line != NULL;) {
        uint32_t n = 0;

        while (line[n] != NULL)
            n++;
        print_sections(file, x, line, n);
        line += n + 1;
    }
    print_operation_section(file, s);
    if (x->api != API_NONE)
        text_comment(file, "path: epa2a.h, %s", x->api == API_LAYER ? "complete layers" : "calls");
    if (f->fault.text != NULL)
        text_comment(file, "PLANTED FAULT, no measurement: %s", f->fault.text);
    print_pins(file, s);
    print_nodes(file, s);
    print_machine(file, facts->machine);
    print_context(file, facts);
    print_facts(file, s->rank[0].device);
    print_facts(file, s->rank[0].transport);
    print_links(file, &f->links);
}

/* ---- stages ---- */

/* Returns true if the times of stages inside a pair are known. */
static bool has_split_pairs(const struct run_figures *f)
{
    for (uint32_t i = 0; i < f->n_stages; i++)
        if (isfinite(f->stage[i].figures.in_pair))
            return true;
    return false;
}

/* Prints a row for each stage. With link limits, with a percentile that needs many samples, and with
 * times inside pairs, the columns are narrower. A peak below the measured rate is shown as a question mark. */
static void print_stages(FILE *file, const struct run_figures *f)
{
    bool peak = run_has_links(f);
    bool p999 = f->stop.samples >= STATS_P999_LEAST;
    bool pairs = has_split_pairs(f);
    int time = peak && p999 ? 6 : peak || p999 ? 8 : 9, rate = peak ? 7 : 8;
    int narrow = peak && pairs ? p999 ? 1 : 2 : 0;
    int digits = run_total(f)->figures.ns.median < 100e3 ? 2 : 1;
    uint32_t room = figures_count() + 2, n = 0;
    struct table_column *column = memory_alloc(room, sizeof(*column));
    struct table_cell *cell = memory_alloc((size_t)f->n_stages * room, sizeof(*cell));
    struct table_row *row = memory_alloc(f->n_stages, sizeof(*row));

    column[n++] = (struct table_column){"name", "stage", .digits = 10};
    for (uint32_t i = 0; i < f->n_stages; i++) {
        row[i].cell = cell + (size_t)i * room;
        cell[i * room].text = f->stage[i].name;
    }
    for (const struct figure *of = figures; of->path != NULL; of++) {
        bool is_peak = of->needs == FIGURE_LINKS;

        if (of->heading == NULL || (is_peak && !peak) || (of->needs == FIGURE_TAIL && !p999) ||
            (of->needs == FIGURE_PAIRS && !pairs))
            continue;
        column[n] = figure_column(of, of->path,
                                  is_peak                 ? 7
                                  : of->kind == FIGURE_NS ? time - narrow
                                                          : rate);
        if (of->kind == FIGURE_NS)
            column[n].digits = digits;
        for (uint32_t i = 0; i < f->n_stages; i++)
            cell[i * room + n] = (struct table_cell){is_peak && f->stage[i].beaten ? "?" : NULL,
                                                     figure_value(of, &f->stage[i].figures)};
        n++;
    }
    fputs("#\n", file);
    table_text(file, column, row, f->n_stages);
    fputs("#\n", file);
    free(row);
    free(cell);
    free(column);
}

/* ---- explanations below the table ---- */

/* A finished run, for sentences about it. */
struct told {
    FILE *file;
    const struct result *result;
    const struct run_figures *f;
    const struct run_facts *s;
    const struct run_stage *total;
};

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

static void print_open_loop(const struct told *t)
{
    const struct session_arrivals *a = &t->s->notes->arrivals;
    const struct experiment *x = t->s->experiment;
    text_auto line = {0};

    if (!t->s->open || !(a->rate > 0))
        return;
    text_add(&line, "open loop: %s arrivals by seed %llu, %.6g due a second",
             x->bench.arrivals == ARRIVALS_POISSON ? "poisson" : "constant",
             (unsigned long long)x->problem.seed, a->rate);
    if (a->closed_rate > 0)
        text_add(&line, ", %.3g of the %.6g of a closed loop", a->rate / a->closed_rate,
                 a->closed_rate);
    text_add(&line, "; latency counts from when one was due, service from when it began");
    if (isfinite(t->f->late))
        text_add(&line, "; %.0f %% were due before it could begin", 100 * t->f->late);
    text_comment(t->file, "%s", line.data);
}

static void print_graph(const struct told *t, const char *cache)
{
    const struct session_notes *notes = t->s->notes;
    uint32_t last = notes->n_stages > 0 ? notes->n_stages - 1 : 0;
    bool pairs = notes->stage_kind[last] != EPA_STAGE_WHOLE;
    uint32_t calls = t->s->calls;

    text_comment(t->file, "clock: graph of %u call%s%s, cache %s; a sample is one launch%s%s",
                 calls, plural(calls), pairs ? " of each stage" : "", cache,
                 calls > 1 ? " divided by calls" : "",
                 pairs ? ", total a pair as measured, dispatch and combine alone" : "");
}

/* Describes clocks other than the host's, and their limits. */
static void print_clock(const struct told *t)
{
    const struct session_notes *notes = t->s->notes;
    const struct experiment *x = t->s->experiment;
    bool bench = t->s->verb == VERB_BENCH;
    const char *cache = bench && x->bench.cache == CACHE_COLD ? "cold" : "warm";

    if (notes->clock == CLOCK_EVENTS)
        text_comment(t->file, "clock: events around each stage%s%s; total is their sum",
                     bench ? ", cache " : "", bench ? cache : "");
    if (notes->clock != CLOCK_AUTO)
        print_open_loop(t);
    if (notes->clock == CLOCK_END_TO_END)
        text_comment(t->file, "clock: rank 0's, from one barrier of all ranks to the next, cache "
                              "cold; it includes all stages and the time between them");
    if (notes->clock == CLOCK_GRAPH)
        print_graph(t, cache);
    if (notes->not_alone[FIGURE_DISPATCH])
        text_comment(t->file, "dispatch alone is not known: %s cannot discard a dispatch",
                     x->algorithm.plugin->name);
    if (notes->not_alone[FIGURE_COMBINE])
        text_comment(t->file, "combine alone is not known: %s cannot combine twice",
                     x->algorithm.plugin->name);
}

static void print_partial(const struct told *t)
{
    text_auto lost = {0};
    char count[32];

    if (!t->f->partial)
        return;
    for (uint32_t r = 0; r < t->f->ranks; r++)
        if (t->f->lost[r])
            text_add(&lost, "%s%u", lost.bytes > 0 ? ", " : "; the times of rank ", r);
    if (lost.bytes > 0)
        text_add(&lost, " are lost, and a sample is the time of the slowest other rank");
    text_comment(t->file, "partial: it ended after %s samples%s",
                 text_count(count, sizeof(count), t->f->stop.samples),
                 lost.bytes > 0 ? lost.data : "");
}

/* Prints the rule that ended the samples, and all rules. */
static void print_rules(const struct told *t)
{
    const struct bench_options *bench = &t->s->experiment->bench;
    enum stop_reason reason = t->f->stop.reason;
    text_auto rules = {0};

    if (t->s->verb != VERB_BENCH || !stop_is_on(bench))
        return;
    if (stop_name(reason) == NULL) {
        text_comment(t->file, "no stop rule was met before the end");
        return;
    }
    text_add(&rules, "%u samples", t->s->iterations);
    if (bench->ci95 > 0)
        text_add(&rules, "; an interval of %.3g %%", bench->ci95 / .01);
    if (bench->max_time_ns > 0)
        text_add(&rules, "; %.3g s of samples", (double)bench->max_time_ns / 1e9);
    text_comment(t->file, "stopped by bench.%s; rules: %s",
                 reason == STOP_TIME ? "max_time" : stop_name(reason), rules.data);
}

static void print_statistics(const struct told *t)
{
    const struct stats *ns = &t->total->figures.ns;

    if (ns->n > 0 && isfinite(ns->cv))
        text_comment(t->file,
                     "%s: mean %.1f us, stdev %.1f (cv %.1f %%), median deviation %.1f, %llu "
                     "outlier%s",
                     t->total->name, ns->mean / 1e3, ns->stdev / 1e3, ns->cv / .01, ns->mad / 1e3,
                     (unsigned long long)ns->outliers, plural(ns->outliers));
    if (isfinite(ns->low) && isfinite(t->f->stop.ci95))
        text_comment(t->file,
                     "%s: 95 %% interval of the median %.1f to %.1f us, %.2f %% of it, by order "
                     "statistics",
                     t->total->name, ns->low / 1e3, ns->high / 1e3, t->f->stop.ci95 / .01);
}

static void print_samples(const struct told *t)
{
    bool rule = t->s->verb == VERB_BENCH && stop_is_on(&t->s->experiment->bench);
    double first = 0;

    text_comment(
        t->file, "%llu of %s%u samples after %u of warm-up, each %s; percentiles by nearest rank",
        (unsigned long long)t->f->stop.samples, rule ? "at most " : "", t->s->iterations,
        t->s->warmup, t->s->notes->clock == CLOCK_END_TO_END ? "rank 0's" : "the slowest rank's");
    print_partial(t);
    print_rules(t);
    print_statistics(t);
    for (uint32_t r = 0; r < t->f->ranks; r++)
        first = fmax(first, t->s->rank[r].first_ns);
    if (first > 0)
        text_comment(t->file, "very first iteration: %.1f us", first / 1e3);
    if (t->f->ranks > 1 && t->f->skew.known)
        text_comment(t->file,
                     "skew: %.1f us from fastest to slowest rank (median); rank %u slowest in %.0f "
                     "%% of samples",
                     t->f->skew.median_ns / 1e3, t->f->skew.straggler,
                     t->f->skew.straggler_share / .01);
}

static void print_operations(const struct told *t)
{
    const struct run_compute *c = &t->f->compute;
    text_auto line = {0};

    text_add(&line, "computes: a rank does %.4g GFLOP an iteration", c->flops / 1e9);
    if (t->s->notes->between_by[0] != '\0' && isfinite(c->expert_flops))
        text_add(&line, ", %.3g TFLOP/s in %s", c->expert_flops / 1e12,
                 t->f->operation->between_name);
    if (isfinite(c->flops_per_s))
        text_add(&line, ", %.3g TFLOP/s in %s", c->flops_per_s / 1e12, t->total->name);
    text_comment(t->file, "%s", line.data);
}

/* Prints the lower bounds of an iteration on devices, and with synthetic experts its time relative to
 * their sum. */
static void print_device_limit(const struct told *t)
{
    const struct run_limit *l = &t->f->limit;
    double times = t->total->figures.ns.median / t->total->figures.peak_ns;
    text_auto line = {0};
    char bytes[32], cache[32];

    if (!run_has_links(t->f) || (isnan(l->launches_ns) && isnan(l->memory_ns)))
        return;
    text_add(&line, "limit:");
    if (isfinite(l->hops_ns))
        text_add(&line, " hops %.1f us,", l->hops_ns / 1e3);
    if (isfinite(l->launches_ns))
        text_add(&line, " launches %.1f us,", l->launches_ns / 1e3);
    if (isfinite(l->links_ns))
        text_add(&line, " bytes %.1f us,", l->links_ns / 1e3);
    if (isfinite(l->memory_ns))
        text_add(&line, " HBM %.1f us (%s less %s of L2, at %.0f GB/s),", l->memory_ns / 1e3,
                 text_size(bytes, sizeof(bytes), (uint64_t)llround(l->memory)),
                 text_size(cache, sizeof(cache), (uint64_t)llround(l->cache)), l->memory_per_ns);
    line.data[line.bytes - 1] = '\0'; /* the last comma */
    if (isfinite(times) && !(t->f->compute.flops > 0))
        text_comment(t->file,
                     "%s: %s takes %.2f times hops, launches and the larger of bytes and HBM",
                     line.data, t->total->name, times);
    else
        text_comment(t->file, "%s", line.data);
}

/* Prints the largest of the minimum times of products, weights and links: the lower bound of an
 * iteration. */
static void print_limit(const struct told *t)
{
    const struct run_compute *c = &t->f->compute;
    double times = t->total->figures.ns.median / t->total->figures.peak_ns;
    text_auto line = {0};
    char size[32];

    if (!isfinite(c->flops_ns) || !isfinite(times))
        return;
    text_add(&line, "limit: products %.1f us (%.3g TFLOP/s), weights %.1f us (%s at %.1f GB/s)",
             c->flops_ns / 1e3, c->peaks.flops_per_ns / 1e3, c->weights_ns / 1e3,
             text_size(size, sizeof(size), (uint64_t)llround(c->weights)), c->peaks.bytes_per_ns);
    if (isfinite(c->links_ns))
        text_add(&line, ", links %.1f us", c->links_ns / 1e3);
    text_comment(t->file, "%s: %s takes %.2f times the largest", line.data, t->total->name, times);
}

/* Prints the parts that ran alone, and the hidden share of the shorter part. */
static void print_parts(const struct told *t)
{
    const struct run_compute *c = &t->f->compute;
    double median = t->total->figures.ns.median, longest = 0;
    text_auto parts = {0};

    for (uint32_t i = 0; i < c->n_parts; i++) {
        longest = fmax(longest, c->part_ns[i]);
        text_add(&parts, "%s%s %.1f us", i > 0 ? ", " : "", t->s->notes->part[i],
                 c->part_ns[i] / 1e3);
    }
    if (median > 0 && isfinite(c->hidden) && longest > 0)
        text_comment(t->file,
                     "alone: %s; %.0f %% of the shorter hidden; total is %.2f of the longer",
                     parts.data, c->hidden / .01, median / longest);
}

/* Prints the overhead of the public interface in single calls, or in graphs. */
static void print_overhead(const struct told *t, const struct run_api *api, const char *where)
{
    uint32_t calls = t->s->notes->api_calls;

    if (t->s->experiment->api != API_NONE && api->turns > 0)
        text_comment(
            t->file,
            "epa2a.h%s: %.3f us of overhead per call: %.2f us with %u call%s an iteration, "
            "%.2f us without, medians of %llu turns",
            where, api->overhead_ns / 1e3, api->public_ns / 1e3, calls, plural(calls),
            api->direct_ns / 1e3, (unsigned long long)api->turns);
}

static void print_compute(const struct told *t)
{
    print_device_limit(t);
    if (t->f->compute.flops > 0) {
        print_operations(t);
        print_limit(t);
        print_parts(t);
    }
    print_overhead(t, &t->f->api, "");
    print_overhead(t, &t->f->api_graph, " in graphs");
}

static void print_profile(const struct told *t)
{
    const struct trace_written *p = &t->result->trace;
    double overhead_ns = p->event_ns * p->busiest;
    double share = overhead_ns / t->total->figures.ns.median;

    if (p->path[0] == '\0')
        return;
    text_comment(t->file,
                 "profile: %s has the last %llu iteration%s: %llu slices, %llu flows, %llu dropped",
                 p->path, (unsigned long long)p->iterations, plural(p->iterations),
                 (unsigned long long)p->slices, (unsigned long long)p->flows,
                 (unsigned long long)p->dropped);
    if (p->iterations > 0 && isfinite(p->error_ns))
        text_comment(t->file, "profile: clocks of ranks agree within %.1f us", p->error_ns / 1e3);
    if (p->iterations > 0 && isfinite(share))
        text_comment(t->file,
                     "profile: recording an event takes %.0f ns, at most %.0f times per thread and "
                     "iteration: %.2f us, %.2f %% of the median without waits; waiting ranks add "
                     "these times up, so `epa2a compare` with an unprofiled run shows the cost",
                     p->event_ns, p->event_ns > 0 ? p->busiest : 0, overhead_ns / 1e3, share / .01);
}

static bool ended_early(const struct run_figures *f)
{
    return f->error != NULL && strcmp(f->error, "missed") != 0;
}

/* Prints the error; a message that only repeats the word is left out. */
static void print_end(const struct told *t)
{
    const struct run_figures *f = t->f;
    bool has_text =
        f->error != NULL && f->error_text[0] != '\0' && strcmp(f->error_text, f->error) != 0;

    if (ended_early(f))
        text_comment(t->file, "ended early: %s (exit %d)%s%s", f->error, f->exit_code,
                     has_text ? ": " : "", has_text ? f->error_text : "");
}

static void print_traffic(FILE *file, const struct run_figures *f)
{
    for (uint32_t i = 0; i < f->operation->n_phases; i++) {
        const struct run_traffic *t = &f->phase[i];
        char needed[32], sent[32], most[32];

        if (t->needed > 0 || t->bottleneck > 0)
            text_comment(file, "%s: %s payload, %s sent per rank and iteration; busiest rank %s",
                         f->operation->phase[i].name,
                         text_size(needed, sizeof(needed), (uint64_t)llround(t->needed)),
                         text_size(sent, sizeof(sent), (uint64_t)llround(t->wire)),
                         text_size(most, sizeof(most), (uint64_t)llround(t->bottleneck)));
    }
}

/* Prints statistics of the operation's inputs. */
static void print_stats(FILE *file, const struct run_facts *s)
{
    for (const char *at = s->input_lines; *at != '\0'; at += strcspn(at, "\n") + 1)
        text_comment(file, "%.*s", (int)strcspn(at, "\n"), at);
}

/* Prints one line for each expectation. */
static void print_verdicts(FILE *file, const struct run_facts *s, const struct run_figures *f)
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
    else if (ended_early(f))
        text_comment(file, "expect: not looked at, as it ended early");
}

/* Prints the share of compared outputs, the tolerance, and the reason if not all were compared. */
static void print_share(FILE *file, const struct verify_options *options,
                        const struct run_verify *v)
{
    const struct op_share *share = &v->share;
    double compared = (double)share->compared;
    text_auto bound = {0};
    char count[32];

    if (share->outputs == 0)
        return;
    if (options->tolerance == TOLERANCE_ALLCLOSE)
        text_add(&bound, "within %.3g + %.3g of the reference", options->atol, options->rtol);
    else if (share->compared > 0 && share->widest > 0)
        text_add(&bound, "in intervals of %.2g of the sum of magnitudes, %.2g at most",
                 share->widths / compared, share->widest);
    else
        text_add(&bound, "to the bit");
    text_comment(file, "outputs: %.3g %% of %s compared, %s%s%s",
                 100 * compared / (double)share->outputs,
                 text_count(count, sizeof(count), share->outputs), bound.data,
                 v->partly != NULL ? "; " : "", v->partly != NULL ? v->partly : "");
}

static void print_checks(FILE *file, const struct run_facts *s, const struct run_verify *v)
{
    const char *which = s->verb == VERB_BENCH ? ""
                        : v->iterations == 2  ? "first and last iteration "
                                              : "iterations ";
    char compared[32], wrong[32], count[32];
    text_auto more = {0};

    text_count(compared, sizeof(compared), v->compared);
    text_count(wrong, sizeof(wrong), v->wrong);
    text_add(&more, "%s", "");
    if (v->share.overflowed > 0)
        text_add(&more, ", %s not compared", text_count(count, sizeof(count), v->share.overflowed));
    fputs(v->wrong > 0 ? colour_on(file, COLOUR_BAD) : "", file);
    if (s->verb == VERB_VERIFY)
        fprintf(file, "verified %llu iteration%s: %s elements compared, %s wrong%s\n",
                (unsigned long long)v->iterations, plural(v->iterations), compared, wrong,
                more.data);
    else if (v->compared > 0)
        text_comment(file, "%schecked: %s elements, %s wrong%s", which, compared, wrong, more.data);
    else if (v->unchecked != NULL && v->unchecked[0] != '\0')
        text_comment(file, "not checked: %s", v->unchecked);
    fputs(v->wrong > 0 ? colour_off(file) : "", file);
}

void report_table(FILE *file, const struct result *result, const struct facts *facts)
{
    const struct run_figures *f = result->figures;
    const struct run_facts *s = &f->facts;
    const struct experiment *x = s->experiment;
    const struct told t = {file, result, f, s, run_total(f)};
    char size[32];

    print_header(file, s, f, facts);
    if (s->verb != VERB_VERIFY) {
        print_stages(file, f);
        print_clock(&t);
        print_samples(&t);
        print_layers(file, &x->model, t.total);
    }
    print_traffic(file, f);
    if (f->ranks > 1 && s->verb == VERB_VERIFY && s->uncounted[0] != '\0')
        text_comment(file, "sent: as planned, and not counted: %s", s->uncounted);
    print_compute(&t);
    if (s->footprint.device_bytes > 0)
        text_comment(file, "scratch memory of a rank's device: %s",
                     text_size(size, sizeof(size), s->footprint.device_bytes));
    if (s->verb == VERB_VERIFY)
        print_share(file, &x->verify, &f->verify);
    print_stats(file, s);
    print_profile(&t);
    print_end(&t);
    print_verdicts(file, s, f);
    print_checks(file, s, &f->verify);
}
