/* The table: comment lines that say what ran and where, one row a stage, then the facts
 * that explain the numbers. Fits 100 columns, so that it can be pasted anywhere. */
#include "report/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum {
    WIDTH = 100,
    NAME_LEAST = 10,
    NAME_MOST = 20,  /* what five times and three rates leave of WIDTH */
    NAME_LIMIT = 12, /* and with the limit in two more columns */
};

/* Widths of columns. */
struct widths {
    int name, time, rate, limit, share; /* limit 0: neither of the last two */
    int digits;                         /* of microseconds */
};

/* One comment, folded at blanks. Names come from files: nothing in them moves the
 * cursor. */
__attribute__((format(printf, 2, 3))) static void comment(FILE *file, const char *fmt, ...)
{
    const char *lead = "# ", *at;
    va_list args;
    char *text;
    int n;

    va_start(args, fmt);
    n = vasprintf(&text, fmt, args);
    va_end(args);
    if (n < 0)
        return;
    for (char *c = text; *c != 0; c++)
        *c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c;
    for (at = text; *at != 0; lead = "#   ") {
        size_t room = WIDTH - strlen(lead), cut = strlen(at);

        if (cut > room) {
            for (cut = room; cut > 0 && at[cut] != ' '; cut--)
                ;
            cut = cut > 0 ? cut : strcspn(at, " ");
        }
        fprintf(file, "%s%.*s\n", lead, (int)cut, at);
        at += cut;
        at += strspn(at, " ");
    }
    free(text);
}

static const char *counted(char *buf, size_t room, uint64_t n)
{
    char digits[24];
    size_t len = (size_t)snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n),
           to = 0;

    for (size_t i = 0; i < len && to + 2 < room; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            buf[to++] = ',';
        buf[to++] = digits[i];
    }
    buf[to] = 0;
    return buf;
}

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
    const char *plural = x->ranks == 1 ? "" : "s";
    struct text cores = {0};
    uint32_t pinned = 0;

    for (uint32_t r = 0; s->block != NULL && r < x->ranks; r++)
        pinned += session_rank(s, r)->core >= 0;
    if (pinned > 0)
        add_cores(&cores, s);
    if (cores.data != NULL)
        comment(file, "%u rank%s by %s, pinned in order to cores %s; seed %llu", x->ranks,
                plural, x->launcher.plugin->name, cores.data, (unsigned long long)x->seed);
    else
        comment(file, "%u rank%s by %s, not pinned; seed %llu", x->ranks, plural,
                x->launcher.plugin->name, (unsigned long long)x->seed);
    text_free(&cores);
}

/* "hosta (ranks 0, 2, 4)"; false: no rank is on that node. */
static bool add_node(struct text *out, const struct session *s, uint32_t node)
{
    uint32_t ranks = s->block != NULL ? s->experiment->ranks : 0, n = 0;

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
    struct text line = {0};
    uint32_t nodes = 0;

    while (add_node(&line, s, nodes))
        nodes++;
    if (s->place.how[0] != '\0')
        comment(file, "found: %s", s->place.how);
    if (nodes > 1)
        comment(file, "%u nodes: %s", nodes, line.data);
    text_free(&line);
}

/* One section of the experiment: "ll_v2 (wire fp8, buffers 2)". */
struct description {
    const char *section;
    struct text main, options;
};

static void add_value(void *arg, const char *key, const char *value, bool quoted)
{
    struct description *d = arg;
    size_t n = strlen(d->section);

    (void)quoted;
    if (strncmp(key, d->section, n) != 0 || key[n] != '.')
        return;
    key += n + 1;
    if (strcmp(key, "name") == 0 || strcmp(key, "kind") == 0)
        text_add(&d->main, "%s", value);
    else
        text_add(&d->options, "%s%s %s", d->options.data == NULL ? "" : ", ", key, value);
}

/* "algorithm: ll_v2 (wire fp8, buffers 2); transport: shm; ..." */
static void print_sections(FILE *file, const struct experiment *x,
                           const char *const *section, uint32_t n)
{
    struct text line = {0};

    for (uint32_t i = 0; i < n; i++) {
        struct description d = {.section = section[i]};

        experiment_visit(x, add_value, &d);
        text_add(&line, "%s%s: %s", i == 0 ? "" : "; ", d.section,
                 d.main.data != NULL ? d.main.data : "");
        if (d.options.data != NULL)
            text_add(&line, d.main.data != NULL ? " (%s)" : "%s", d.options.data);
        text_free(&d.main);
        text_free(&d.options);
    }
    if (line.data != NULL)
        comment(file, "%s", line.data);
    text_free(&line);
}

static void print_machine(FILE *file, const struct facts *f)
{
    char memory[32];

    comment(file, "machine: %s, %u core%s, %s, %s, %s", f->cpu, f->cores,
            f->cores == 1 ? "" : "s", text_size(memory, sizeof(memory), f->memory_bytes),
            f->kernel, f->host);
    comment(file, "build: epa2a %s, %s, %s%s%s, %s kernels", f->version, f->compiler,
            f->build_type, strcmp(f->sanitizers, "none") != 0 ? ", sanitizers: " : "",
            strcmp(f->sanitizers, "none") != 0 ? f->sanitizers : "", f->isa);
}

static void print_facts(FILE *file, const struct session_facts *facts)
{
    struct text line = {0};

    for (uint32_t i = 0; i < facts->n; i++)
        text_add(&line, "%s%s %s", i == 0 ? "" : ", ", facts->fact[i].key,
                 facts->fact[i].value);
    if (line.data != NULL)
        comment(file, "rank 0's %s", line.data);
    text_free(&line);
}

/* What rank 0 said of its device and its links, in a line each. */
static void print_device(FILE *file, const struct result *result)
{
    const struct session *s = result->session;

    if (s->block != NULL) {
        print_facts(file, &session_rank(s, 0)->device);
        print_facts(file, &session_rank(s, 0)->transport);
    }
    if (result->limit.known && !(result->limit.bytes_per_ns > 0))
        comment(
            file,
            "links: %.2f us for a signal, and the rate is not known: limits leave it out",
            result->limit.latency_ns / 1e3);
    else if (result->limit.known)
        comment(file, "links: %.1f GB/s out of a rank while all send, %.2f us for a signal",
                result->limit.bytes_per_ns, result->limit.latency_ns / 1e3);
}

static void print_header(FILE *file, const struct result *result)
{
    static const char *const plugins[] = {"algorithm", "transport", "backend"};
    static const char *const inputs[] = {"moe"}, *const load[] = {"routing", "tokens"};
    const struct session *s = result->session;
    const struct experiment *x = s->experiment;

    comment(file, "epa2a %s: %s", session_verb(s), x->name);
    if (x->label != NULL)
        comment(file, "run: %s; id %s", x->label, x->id);
    print_sections(file, x, plugins, 3);
    print_sections(file, x, inputs, 1);
    print_sections(file, x, load, 2);
    print_pins(file, s);
    print_nodes(file, s);
    print_machine(file, result->facts);
    print_device(file, result);
}

/* A column of `width` and a blank before it; "-" for what is not known. What is too long
 * loses its decimals, then its lower digits: columns stay where they are. */
static void cell(FILE *file, int width, int digits, double value)
{
    char text[64] = "-";

    if (!isnan(value) && snprintf(text, sizeof(text), "%.*f", digits, value) > width &&
        snprintf(text, sizeof(text), "%.0f", value) > width)
        snprintf(text, sizeof(text), "%.2e", value);
    fprintf(file, " %*s", width, text);
}

static void rate_cell(FILE *file, int width, double value)
{
    cell(file, width, value != 0 && value < 0.1 ? 4 : 2, value);
}

static void print_row(FILE *file, const struct widths *w, const struct result_stage *stage)
{
    const struct stats *s = &stage->slowest;
    const double column[] = {s->min, s->median, s->p95, s->p99, s->max};

    fprintf(file, "  %-*.*s", w->name, w->name, stage->name);
    for (size_t i = 0; i < sizeof(column) / sizeof(column[0]); i++)
        cell(file, w->time, w->digits, column[i] / 1e3);
    rate_cell(file, w->rate, stage->goodput);
    rate_cell(file, w->rate, stage->wire);
    rate_cell(file, w->rate, stage->bus);
    if (w->limit > 0) {
        cell(file, w->limit, w->digits, stage->limit_ns / 1e3);
        cell(file, w->share, 1, 100 * stage->limit_ns / s->median);
    }
    fputc('\n', file);
}

static struct widths widths_of(const struct result *result)
{
    double median = result->stage[result->n_stages - 1].slowest.median;
    struct widths w = {.name = NAME_LEAST, .time = 9, .rate = 8};
    int most = result->limit.known ? NAME_LIMIT : NAME_MOST;

    if (result->limit.known)
        w = (struct widths){
            .name = NAME_LEAST, .time = 8, .rate = 7, .limit = 7, .share = 8};
    w.digits = median < 100e3 ? 2 : 1;
    for (uint32_t i = 0; i < result->n_stages; i++) {
        int n = (int)strlen(result->stage[i].name);

        w.name = n > w.name ? n : w.name;
    }
    w.name = w.name > most ? most : w.name;
    return w;
}

/* Two lines: what stands in a column, and its unit. */
static void print_head(FILE *file, const struct widths *w)
{
    static const char *const time[] = {"min", "median", "p95", "p99", "max"};
    static const char *const rate[] = {"goodput", "wire", "bus"};

    fprintf(file, "#\n# %-*s", w->name, "stage");
    for (size_t i = 0; i < 5; i++)
        fprintf(file, " %*s", w->time, time[i]);
    for (size_t i = 0; i < 3; i++)
        fprintf(file, " %*s", w->rate, rate[i]);
    if (w->limit > 0)
        fprintf(file, " %*s %*s", w->limit, "limit", w->share, "of limit");
    fprintf(file, "\n# %-*s", w->name, "");
    for (size_t i = 0; i < 5; i++)
        fprintf(file, " %*s", w->time, "[us]");
    for (size_t i = 0; i < 3; i++)
        fprintf(file, " %*s", w->rate, "[GB/s]");
    if (w->limit > 0)
        fprintf(file, " %*s %*s", w->limit, "[us]", w->share, "[%]");
    fputc('\n', file);
}

static void print_stages(FILE *file, const struct result *result)
{
    struct widths w = widths_of(result);

    print_head(file, &w);
    for (uint32_t i = 0; i < result->n_stages; i++)
        print_row(file, &w, &result->stage[i]);
    fputs("#\n", file);
}

/* How times were taken where that is not by the host's clock, and what they do not say. */
static void print_clock(FILE *file, const struct result *result)
{
    const struct session *s = result->session;
    const char *plugin = s->experiment->algorithm.plugin->name;
    const char *cache = s->experiment->bench.cache == CACHE_COLD ? "cold" : "warm";
    bool bench = s->verb == VERB_BENCH;

    if (s->clock == CLOCK_EVENTS)
        comment(file, "clock: events around each stage%s%s%s", bench ? ", cache " : "",
                bench ? cache : "", "; total is their sum");
    if (s->clock == CLOCK_WALL_COLD)
        comment(file,
                "clock: rank 0's, from one barrier of all ranks to the next, cache cold; "
                "dispatch, experts and combine are in it");
    if (s->clock != CLOCK_GRAPH)
        return;
    comment(
        file,
        "clock: graph of %u call%s of each stage, cache %s; a sample is one launch%s, total "
        "a pair as measured, dispatch and combine alone",
        session_calls(s), session_calls(s) == 1 ? "" : "s", cache,
        session_calls(s) == 1 ? "" : " divided by calls");
    if (s->not_alone[FIGURE_DISPATCH])
        comment(file, "dispatch alone is not known: %s cannot give up a dispatch", plugin);
    if (s->not_alone[FIGURE_COMBINE])
        comment(file, "combine alone is not known: %s cannot combine twice", plugin);
}

static void print_samples(FILE *file, const struct result *result)
{
    const struct session *s = result->session;
    const struct stats *total = &result->stage[result->n_stages - 1].slowest;
    bool wall = s->clock == CLOCK_WALL_COLD;
    double first = 0;

    comment(file,
            "%llu of %u samples after %u of warm-up, each %s; percentiles by nearest rank",
            (unsigned long long)result->n_samples, s->iterations, s->warmup,
            wall ? "rank 0's" : "the slowest rank's");
    if (total->n > 0)
        comment(file, "%s: mean %.1f us, stdev %.1f, median deviation %.1f, %llu outlier%s",
                result->stage[result->n_stages - 1].name, total->mean / 1e3,
                total->stdev / 1e3, total->mad / 1e3, (unsigned long long)total->outliers,
                total->outliers == 1 ? "" : "s");
    for (uint32_t r = 0; s->block != NULL && r < s->experiment->ranks; r++)
        first = fmax(first, session_rank(s, r)->first_ns);
    if (first > 0)
        comment(file, "very first iteration: %.1f us", first / 1e3);
    if (total->n > 0 && s->experiment->ranks > 1 && !wall)
        comment(file,
                "skew: %.1f us from fastest to slowest rank (median); rank %u slowest in "
                "%.0f %% of samples",
                result->skew_ns / 1e3, result->straggler, result->straggler_share * 100);
}

static void print_traffic(FILE *file, const char *what,
                          const struct result_traffic *traffic)
{
    char needed[32], out[32], bus[32];

    if (traffic->needed <= 0 && traffic->bus <= 0)
        return;
    comment(file, "%s: a rank needs %s an iteration and sends %s; the busiest carries %s",
            what, text_size(needed, sizeof(needed), (uint64_t)llround(traffic->needed)),
            text_size(out, sizeof(out), (uint64_t)llround(traffic->out)),
            text_size(bus, sizeof(bus), (uint64_t)llround(traffic->bus)));
}

static void print_routing(FILE *file, const struct routing_stats *r)
{
    char tokens[32], choices[32], dropped[32];

    if (r == NULL || r->iterations == 0)
        return;
    comment(file, "routed: %s tokens, %s choices, %s dropped in %llu iteration%s",
            counted(tokens, sizeof(tokens), r->tokens),
            counted(choices, sizeof(choices), r->choices),
            counted(dropped, sizeof(dropped), r->dropped),
            (unsigned long long)r->iterations, r->iterations == 1 ? "" : "s");
    comment(file,
            "tokens per expert: min %llu, mean %.1f, max %llu, imbalance %.2f (max / mean)",
            (unsigned long long)r->expert_min, r->expert_mean,
            (unsigned long long)r->expert_max, r->expert_imbalance);
    comment(file, "tokens per rank: min %llu, mean %.1f, max %llu, imbalance %.2f",
            (unsigned long long)r->rank_min, r->rank_mean, (unsigned long long)r->rank_max,
            r->rank_imbalance);
}

/* What was noted, and how much longer that made an iteration. */
static void print_trace(FILE *file, const struct result *result)
{
    const struct trace_written *t = &result->trace;
    const struct stats *total = &result->stage[result->n_stages - 1].slowest;
    double ns = t->event_ns * t->busiest;

    if (t->path[0] == '\0')
        return;
    comment(file,
            "profile: %s has the last %llu iteration%s: %llu slices, %llu flows, %llu "
            "dropped",
            t->path, (unsigned long long)t->iterations, t->iterations == 1 ? "" : "s",
            (unsigned long long)t->slices, (unsigned long long)t->flows,
            (unsigned long long)t->dropped);
    if (t->iterations == 0)
        return;
    if (isfinite(t->error_ns))
        comment(file, "profile: clocks of ranks agree within %.1f us", t->error_ns / 1e3);
    if (total->n > 0)
        comment(
            file,
            "profile: noting takes %.0f ns, at most %.0f times a thread and iteration: up to "
            "%.2f us, %.2f %% of the median",
            t->event_ns, t->busiest, ns / 1e3, 100 * ns / total->median);
}

static void print_end(FILE *file, const struct result *result)
{
    const char *name = result_status_name(result->status), *why = result->error;

    if (result->status == EPA_OK)
        return;
    if (strcmp(why, name) == 0) /* a signal needs no more words */
        why = "";
    comment(file, "ended early: %s (exit %d)%s%s", name, result->exit_code,
            why[0] != 0 ? ": " : "", why);
}

static void print_checks(FILE *file, const struct result *result)
{
    char compared[32], wrong[32];

    counted(compared, sizeof(compared), result->compared);
    counted(wrong, sizeof(wrong), result->wrong);
    if (result->session->verb == VERB_VERIFY)
        fprintf(file, "verified %llu iteration%s: %s elements compared, %s wrong\n",
                (unsigned long long)result->checked, result->checked == 1 ? "" : "s",
                compared, wrong);
    else if (result->session->verb == VERB_BENCH && result->compared > 0)
        comment(file, "checked: %s elements, %s wrong", compared, wrong);
    else if (result->compared > 0)
        comment(file, "%s checked: %s elements, %s wrong",
                result->checked == 2 ? "first and last iteration" : "iterations", compared,
                wrong);
    else if (result->unchecked[0] != 0)
        comment(file, "not checked: %s", result->unchecked);
}

void report_table(FILE *file, const struct result *result)
{
    const struct session *s = result->session;

    print_header(file, result);
    if (s->verb != VERB_VERIFY) {
        print_stages(file, result);
        print_clock(file, result);
        print_samples(file, result);
    }
    print_traffic(file, "dispatch", &result->dispatch);
    print_traffic(file, "combine", &result->combine);
    print_routing(file, s->routing_stats);
    print_trace(file, result);
    print_end(file, result);
    print_checks(file, result);
}

void report_warnings(FILE *file, const struct result *result)
{
    for (uint32_t i = 0; i < result->n_warnings; i++)
        fprintf(file, "warning: %s\n", result->warning[i]);
}
