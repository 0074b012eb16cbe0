/* The table: comment lines that say what ran and where, one row a stage, then the facts
 * that explain the numbers. Fits 100 columns, so that it can be pasted anywhere. */
#include "report/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/colour.h"
#include "base/exit_code.h"
#include "config/experiment.h"

enum {
    WIDTH = 100,
    NAME_LEAST = 10,
    NAME_MOST = 19,  /* what five times and three rates leave of WIDTH */
    NAME_LIMIT = 10, /* and with the limit in two more columns */
    NAME_P999 = 15,  /* six times and three rates */
    COLUMNS = 11,
    RATE = -1, /* digits: by the value */
    /* Histograms of one line: places, how high one can be, samples that each may have, and how many
     * there are to be at least. */
    PLACES = 40,
    LEVELS = 8,
    EACH = 5,
    LEAST = 50,
};

/* One comment, folded at blanks. Names come from files: nothing in them moves the cursor. */
EPA_PRINTF(2, 3)
static void comment(FILE *file, const char *fmt, ...)
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
    for (at = text_clean(text); *at != 0; lead = "#   ") {
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
    const char *plural = x->ranks == 1 ? "" : "s";
    struct text cores = {0};
    uint32_t pinned = 0;

    for (uint32_t r = 0; s->block != NULL && r < x->ranks; r++)
        pinned += session_rank(s, r)->core >= 0;
    if (pinned > 0)
        add_cores(&cores, s);
    if (cores.data != NULL)
        comment(file, "%u rank%s by %s, pinned in order to cores %s; seed %llu", x->ranks, plural,
                x->launcher.plugin->name, cores.data, (unsigned long long)x->seed);
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
    if (s->process_id.source[0] != '\0')
        comment(file, "found: %s", s->process_id.source);
    if (nodes > 1)
        comment(file, "%u nodes: %s", nodes, line.data);
    text_free(&line);
}

/* One section of the experiment: "ll_v2 (dispatch_dtype fp8, buffers 2)". */
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

/* "algorithm: ll_v2 (dispatch_dtype fp8, buffers 2); transport: shm; ..." */
static void print_sections(FILE *file, const struct experiment *x, const char *const *section,
                           uint32_t n)
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

    comment(file, "machine: %s, %u core%s, %s, %s, %s", f->cpu, f->cores, f->cores == 1 ? "" : "s",
            text_size(memory, sizeof(memory), f->memory_bytes), f->kernel, f->host);
    comment(file, "build: epa2a %s, %s, %s%s%s, %s kernels", f->version, f->compiler, f->build_type,
            strcmp(f->sanitizers, "none") != 0 ? ", sanitizers: " : "",
            strcmp(f->sanitizers, "none") != 0 ? f->sanitizers : "", f->isa);
}

static void print_context(FILE *file, const struct facts *f)
{
    struct text line = {0};

    for (uint32_t i = 0; i < f->n_context; i++)
        text_add(&line, "%s%s", i == 0 ? "" : ", ", f->context[i]);
    if (line.data != NULL)
        comment(file, "context: %s", line.data);
    text_free(&line);
}

static void print_facts(FILE *file, const struct session_facts *facts)
{
    struct text line = {0};

    for (uint32_t i = 0; i < facts->n; i++)
        text_add(&line, "%s%s %s", i == 0 ? "" : ", ", facts->fact[i].key, facts->fact[i].value);
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
    if (result->peak.known && !(result->peak.bytes_per_ns > 0))
        comment(file, "link peak: %.2f us for a signal; the rate is not known and left out",
                result->peak.latency_ns / 1e3);
    else if (result->peak.known)
        comment(file, "link peak: %.1f GB/s out of a rank while all send, %.2f us for a signal",
                result->peak.bytes_per_ns, result->peak.latency_ns / 1e3);
}

static void print_fault(FILE *file, const struct experiment *x)
{
    struct text what = {0};

    if (!fault_is_planted(x))
        return;
    fault_describe(&x->fault, &what);
    comment(file, "PLANTED FAULT, no measurement: %s", what.data);
    text_free(&what);
}

/* "expert: mlp (ffn 2048, ...)", and what computes it. */
static void print_operation_section(FILE *file, const struct session *s)
{
    const struct operation *op = session_operation(s);
    const char *section = op->head_also != NULL ? op->head_also(s->experiment) : NULL;

    if (section == NULL)
        return;
    print_sections(file, s->experiment, &section, 1);
    if (s->notes != NULL && s->notes->between_by[0] != '\0')
        comment(file, "%s by %s", op->between_name, s->notes->between_by);
}

static void print_header(FILE *file, const struct result *result)
{
    static const char *const plugins[] = {"algorithm", "transport", "backend"};
    const struct session *s = result->session;
    const struct experiment *x = s->experiment;

    comment(file, "epa2a %s: %s", session_verb(s), x->name);
    if (x->label != NULL)
        comment(file, "run: %s; id %s", x->label, x->id);
    print_sections(file, x, plugins, 3);
    for (const char *const *line = session_operation(s)->head; *line != NULL;) {
        uint32_t n = 0;

        while (line[n] != NULL)
            n++;
        print_sections(file, x, line, n);
        line += n + 1;
    }
    print_operation_section(file, s);
    print_fault(file, x);
    print_pins(file, s);
    print_nodes(file, s);
    print_machine(file, result->facts);
    print_context(file, result->facts);
    print_device(file, result);
}

/* ---- rows ---- */

/* What stands behind the name of a stage. */
struct column {
    const char *name, *unit; /* name NULL: it is not there */
    int width, digits;
    double value;
};

static void columns_of(const struct result *result, const struct result_stage *of,
                       struct column out[COLUMNS])
{
    const struct stats *s = &of->slowest;
    bool peak = result->peak.known, p999 = result->n_samples >= STATS_P999_LEAST;
    double limit_ns = of->beaten ? INFINITY : of->peak_ns;
    int time = peak && p999 ? 6 : peak || p999 ? 8 : 9, rate = peak ? 7 : 8;
    int digits = result->stage[result->n_stages - 1].slowest.median < 100e3 ? 2 : 1;
    const struct column all[COLUMNS] = {
        {"min", "[us]", time, digits, s->min / 1e3},
        {"median", "[us]", time, digits, s->median / 1e3},
        {"p95", "[us]", time, digits, s->p95 / 1e3},
        {"p99", "[us]", time, digits, s->p99 / 1e3},
        {p999 ? "p99.9" : NULL, "[us]", time, digits, s->p999 / 1e3},
        {"max", "[us]", time, digits, s->max / 1e3},
        {"goodput", "[GB/s]", rate, RATE, of->goodput},
        {"wire", "[GB/s]", rate, RATE, of->wire},
        {"bottleneck", "[GB/s]", 10, RATE, of->bottleneck},
        {peak ? "at peak" : NULL, "[us]", 7, digits, limit_ns / 1e3},
        {peak ? "of peak" : NULL, "[%]", 7, 1, 100 * limit_ns / s->median}};

    memcpy(out, all, sizeof(all));
}

/* A column and a blank before it; "-" for what is not known. What is too long loses its decimals,
 * then its lower digits: columns stay where they are. */
static void print_cell(FILE *file, const struct column *c)
{
    double value = c->value;
    int digits = c->digits != RATE ? c->digits : value != 0 && value < 0.1 ? 4 : 2;
    char text[64] = "-";

    if (isinf(value)) /* a limit that was beaten */
        snprintf(text, sizeof(text), "?");
    else if (!isnan(value) && snprintf(text, sizeof(text), "%.*f", digits, value) > c->width &&
             snprintf(text, sizeof(text), "%.0f", value) > c->width)
        snprintf(text, sizeof(text), "%.2e", value);
    fprintf(file, " %*s", c->width, text);
}

static void print_stages(FILE *file, const struct result *result)
{
    struct column column[COLUMNS];
    int name = NAME_LEAST, most = result->peak.known                      ? NAME_LIMIT
                                  : result->n_samples >= STATS_P999_LEAST ? NAME_P999
                                                                          : NAME_MOST;

    columns_of(result, &result->stage[0], column);
    for (uint32_t i = 0; i < result->n_stages; i++)
        name = (int)fmin(most, fmax(name, (double)strlen(result->stage[i].name)));
    for (int line = 0; line < 2; line++) {
        fprintf(file, "%s# %-*s", line == 0 ? "#\n" : "", name, line == 0 ? "stage" : "");
        for (uint32_t c = 0; c < COLUMNS; c++)
            if (column[c].name != NULL)
                fprintf(file, " %*s", column[c].width, line == 0 ? column[c].name : column[c].unit);
        fputc('\n', file);
    }
    for (uint32_t i = 0; i < result->n_stages; i++) {
        columns_of(result, &result->stage[i], column);
        fprintf(file, "  %-*.*s", name, name, result->stage[i].name);
        for (uint32_t c = 0; c < COLUMNS; c++)
            if (column[c].name != NULL)
                print_cell(file, &column[c]);
        fputc('\n', file);
    }
    fputs("#\n", file);
}

/* Whether the environment says that characters beyond ASCII can be shown. */
static bool has_unicode(void)
{
    static const char *const name[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        const char *value = getenv(name[i]);

        if (value != NULL && value[0] != '\0')
            return strcasestr(value, "utf-8") != NULL || strcasestr(value, "utf8") != NULL;
    }
    return false;
}

/* How the samples of each row are spread, in one line: a place for each part of the range from the
 * shortest to p99, as high as samples fall there; the last has all that took longer. */
static void print_shapes(FILE *file, const struct result *result)
{
    static const char *const block[LEVELS + 1] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[LEVELS + 1] = {" ", ".", ":", "-", "=", "+", "*", "%", "#"};
    const char *const *level = has_unicode() ? block : ascii;
    bool any = false;

    for (uint32_t i = 0; i < result->n_stages; i++) {
        const struct stats *s = &result->stage[i].slowest;
        uint32_t places = s->n / EACH >= PLACES ? PLACES : (uint32_t)(s->n / EACH);
        int digits = s->p99 < 1e5 ? 2 : s->p99 < 1e7 ? 1 : 0;
        uint64_t place[PLACES], most = 0;

        if (s->n < LEAST || !(s->p99 > s->min))
            continue;
        if (!any)
            comment(file, "samples from the shortest to p99; the last place has those above");
        any = true;
        stats_histogram(result->stage[i].sample, s->n, s->min, s->p99, place, places);
        for (uint32_t p = 0; p < places; p++)
            most = place[p] > most ? place[p] : most;
        fprintf(file, "#   %-20.20s |", result->stage[i].name);
        for (uint32_t p = 0; p < places; p++) /* what there is, is seen */
            fputs(level[(place[p] * LEVELS + most - 1) / most], file);
        fprintf(file, "| %.*f to %.*f us\n", digits, s->min / 1e3, digits, s->p99 / 1e3);
    }
}

/* ---- what explains them ---- */

/* What was due, against what there could be. */
static void print_arrivals(FILE *file, const struct result *result)
{
    const struct session *s = result->session;
    const struct experiment *x = s->experiment;
    char closed[96] = "";

    if (s->arrivals.closed_rate > 0)
        snprintf(closed, sizeof(closed), ", %.3g of the %.6g of a closed loop",
                 s->arrivals.rate / s->arrivals.closed_rate, s->arrivals.closed_rate);
    comment(file,
            "open loop: %s arrivals by seed %llu, %.6g due a second%s; latency counts from when "
            "one was due, service from when it began; %.0f %% were due before it could begin",
            x->bench.arrivals == ARRIVALS_POISSON ? "poisson" : "constant",
            (unsigned long long)x->seed, s->arrivals.rate, closed, 100 * result_late(result));
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
    if (session_is_open(s))
        print_arrivals(file, result);
    if (s->clock == CLOCK_END_TO_END)
        comment(file, "clock: rank 0's, from one barrier of all ranks to the next, cache cold; "
                      "all stages and what is between them are in it");
    if (s->clock != CLOCK_GRAPH)
        return;
    if (s->stage_kind[s->n_stages - 1] == EPA_STAGE_WHOLE) {
        comment(file, "clock: graph of %u call%s, cache %s; a sample is one launch%s",
                session_calls(s), session_calls(s) == 1 ? "" : "s", cache,
                session_calls(s) == 1 ? "" : " divided by calls");
        return;
    }
    comment(file,
            "clock: graph of %u call%s of each stage, cache %s; a sample is one launch%s, total "
            "a pair as measured, dispatch and combine alone",
            session_calls(s), session_calls(s) == 1 ? "" : "s", cache,
            session_calls(s) == 1 ? "" : " divided by calls");
    if (s->not_alone[FIGURE_DISPATCH])
        comment(file, "dispatch alone is not known: %s cannot give up a dispatch", plugin);
    if (s->not_alone[FIGURE_COMBINE])
        comment(file, "combine alone is not known: %s cannot combine twice", plugin);
}

static bool has_rule(const struct session *s)
{
    return s->verb == VERB_BENCH && stop_is_on(&s->experiment->bench);
}

/* Which of the rules ended it, and what they were. */
static void print_stop(FILE *file, const struct result *result)
{
    const struct bench_options *o = &result->session->experiment->bench;
    char ci95[64] = "", time[64] = "";

    if (o->ci95 > 0)
        snprintf(ci95, sizeof(ci95), "; an interval of %.3g %%", 100 * o->ci95);
    if (o->max_time_ns > 0)
        snprintf(time, sizeof(time), "; %.3g s of samples", (double)o->max_time_ns / 1e9);
    if (result->stop == STOP_NOT)
        comment(file, "no stop rule was met before the end");
    else
        comment(file, "stopped by bench.%s; rules: %u samples%s%s",
                result->stop == STOP_TIME ? "max_time" : stop_name(result->stop), o->iterations,
                ci95, time);
}

static void print_samples(FILE *file, const struct result *result)
{
    const struct session *s = result->session;
    const struct stats *total = &result->stage[result->n_stages - 1].slowest;
    bool wall = s->clock == CLOCK_END_TO_END, rule = has_rule(s);
    double first = 0;

    comment(file, "%llu of %s%u samples after %u of warm-up, each %s; percentiles by nearest rank",
            (unsigned long long)result->n_samples, rule ? "at most " : "", s->iterations, s->warmup,
            wall ? "rank 0's" : "the slowest rank's");
    if (rule)
        print_stop(file, result);
    if (total->n > 0)
        comment(file,
                "%s: mean %.1f us, stdev %.1f (cv %.1f %%), median deviation %.1f, %llu outlier%s",
                result->stage[result->n_stages - 1].name, total->mean / 1e3, total->stdev / 1e3,
                100 * total->cv, total->mad / 1e3, (unsigned long long)total->outliers,
                total->outliers == 1 ? "" : "s");
    if (!isnan(total->low))
        comment(file,
                "%s: 95 %% interval of the median %.1f to %.1f us, %.2f %% of it, by "
                "order statistics",
                result->stage[result->n_stages - 1].name, total->low / 1e3, total->high / 1e3,
                100 * result_ci95(result));
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

static void print_traffic(FILE *file, const char *what, const struct result_traffic *traffic)
{
    char needed[32], out[32], bottleneck[32];

    if (traffic->needed <= 0 && traffic->bottleneck <= 0)
        return;
    comment(file, "%s: %s payload, %s sent per rank and iteration; busiest rank %s", what,
            text_size(needed, sizeof(needed), (uint64_t)llround(traffic->needed)),
            text_size(out, sizeof(out), (uint64_t)llround(traffic->out)),
            text_size(bottleneck, sizeof(bottleneck), (uint64_t)llround(traffic->bottleneck)));
}

/* The least that an iteration takes: the largest of what products, weights and links take at
 * their best. */
static void print_limit(FILE *file, const struct result *result)
{
    const struct result_computing *c = &result->computing;
    const struct result_stage *total = &result->stage[result->n_stages - 1];
    const struct result_peak *p = &result->peak;
    char weights[32], links[64] = "";

    if (isnan(total->peak_ns) || !c->known)
        return;
    if (p->known && p->bytes_per_ns > 0)
        snprintf(links, sizeof(links), ", links %.1f us",
                 result->total.least / p->bytes_per_ns / 1e3);
    comment(file,
            "limit: products %.1f us (%.3g TFLOP/s), weights %.1f us (%s at %.1f GB/s)%s: "
            "%s takes %.2f times the largest",
            c->flops_ns / 1e3, c->flops_per_ns / 1e3, c->weights_ns / 1e3,
            text_size(weights, sizeof(weights), (uint64_t)c->weights), c->bytes_per_ns, links,
            total->name, total->slowest.median / total->peak_ns);
}

/* What it computes, and at which rate in the whole of an iteration. */
static void print_flops(FILE *file, const struct result *result)
{
    struct text rate = {0};

    if (!(result->flops > 0))
        return;
    /* Experts move nothing; a row that does, and is not the last, says the same as that. */
    for (uint32_t i = 0; i < result->n_stages; i++)
        if (isfinite(result->stage[i].flops) &&
            (i + 1 == result->n_stages || !isfinite(result->stage[i].goodput)))
            text_add(&rate, ", %.3g TFLOP/s in %s", result->stage[i].flops / 1e12,
                     result->stage[i].name);
    comment(file, "computes: a rank does %.4g GFLOP an iteration%s", result->flops / 1e9,
            rate.data != NULL ? rate.data : "");
    text_free(&rate);
    print_limit(file, result);
}

/* What the parts take alone, against both at a time. */
static void print_parts(FILE *file, const struct result *result)
{
    const struct session_notes *notes = result->session->notes;
    double longest = 0, total = result->stage[result->n_stages - 1].slowest.median;
    struct text line = {0};

    if (result->n_parts == 0 || !(total > 0))
        return;
    for (uint32_t i = 0; i < result->n_parts; i++) {
        longest = fmax(longest, result->part_ns[i]);
        text_add(&line, "%s%s %.1f us", i > 0 ? ", " : "", notes->part[i],
                 result->part_ns[i] / 1e3);
    }
    if (line.data != NULL)
        comment(file, "alone: %s; %.0f %% of the shorter hidden; total is %.2f of the longer",
                line.data, 100 * result->hidden, total / longest);
    text_free(&line);
}

static void print_scratch(FILE *file, const struct session *s)
{
    char bytes[32];

    if (s->footprint.device_bytes > 0)
        comment(file, "scratch memory of a rank's device: %s",
                text_size(bytes, sizeof(bytes), s->footprint.device_bytes));
}

/* Statistics of the operation's inputs. */
static void print_stats(FILE *file, const struct session *s)
{
    struct text lines = {0};

    if (s->stats == NULL || session_operation(s)->stats_lines == NULL)
        return;
    session_operation(s)->stats_lines(s->stats, &lines);
    for (const char *at = lines.data; at != NULL && *at != '\0'; at += strcspn(at, "\n") + 1)
        comment(file, "%.*s", (int)strcspn(at, "\n"), at);
    text_free(&lines);
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
        comment(file,
                "profile: noting takes %.0f ns, at most %.0f times a thread and iteration: that "
                "alone is %.2f us, %.2f %% of the median; ranks that wait for each other add "
                "theirs up, so `epa2a compare` with a run without profile says what it costs",
                t->event_ns, t->busiest, ns / 1e3, 100 * ns / total->median);
}

static void print_end(FILE *file, const struct result *result)
{
    const char *name = status_name(result->status), *why = result->error;

    if (result->status == EPA_OK)
        return;
    if (strcmp(why, name) == 0) /* a signal needs no more words */
        why = "";
    comment(file, "ended early: %s (exit %d)%s%s", name, result->exit_code, why[0] != 0 ? ": " : "",
            why);
}

/* A line for each thing that was expected. */
static void print_verdicts(FILE *file, const struct result *result)
{
    const struct session *s = result->session;
    char wanted[128], found[256];

    for (uint32_t i = 0; i < result->n_verdicts; i++) {
        const struct verdict *v = &result->verdict[i];

        fputs(v->met ? "" : colour_on(file, COLOUR_BAD), file);
        comment(file, "expect: %s, %s: %s", verdict_wanted(v, wanted, sizeof(wanted)),
                verdict_found(result, v, found, sizeof(found)), v->met ? "met" : "MISSED");
        fputs(v->met ? "" : colour_off(file), file);
    }
    if (s->verb == VERB_VERIFY && expect_is_set(&s->experiment->expect))
        comment(file, "expect: verify takes no times; only expect.wrong is looked at");
    else if (result->status != EPA_OK && expect_is_set(&s->experiment->expect))
        comment(file, "expect: not looked at, as it ended early");
}

static void print_checks(FILE *file, const struct result *result)
{
    char compared[32], wrong[32];

    text_count(compared, sizeof(compared), result->compared);
    text_count(wrong, sizeof(wrong), result->wrong);
    if (result->wrong > 0)
        fputs(colour_on(file, COLOUR_BAD), file);
    if (result->session->verb == VERB_VERIFY)
        fprintf(file, "verified %llu iteration%s: %s elements compared, %s wrong\n",
                (unsigned long long)result->checked, result->checked == 1 ? "" : "s", compared,
                wrong);
    else if (result->session->verb == VERB_BENCH && result->compared > 0)
        comment(file, "checked: %s elements, %s wrong", compared, wrong);
    else if (result->compared > 0)
        comment(file, "%s checked: %s elements, %s wrong",
                result->checked == 2 ? "first and last iteration" : "iterations", compared, wrong);
    else if (result->unchecked[0] != 0)
        comment(file, "not checked: %s", result->unchecked);
    if (result->wrong > 0)
        fputs(colour_off(file), file);
}

void report_table(FILE *file, const struct result *result)
{
    const struct session *s = result->session;

    print_header(file, result);
    if (s->verb != VERB_VERIFY) {
        print_stages(file, result);
        print_clock(file, result);
        print_samples(file, result);
        print_shapes(file, result);
    }
    for (uint32_t i = 0; i < session_operation(s)->n_phases; i++)
        print_traffic(file, session_operation(s)->phase[i].name, &result->phase[i]);
    print_flops(file, result);
    print_parts(file, result);
    print_scratch(file, s);
    print_stats(file, s);
    print_trace(file, result);
    print_end(file, result);
    print_verdicts(file, result);
    print_checks(file, result);
}

void report_warnings(FILE *file, const struct result *result)
{
    for (uint32_t i = 0; i < result->n_warnings; i++)
        fprintf(file, "%swarning:%s %s\n", colour_on(file, COLOUR_WARNING), colour_off(file),
                result->warning[i]);
}
