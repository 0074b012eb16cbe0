/* The table: what ran and where (report_header.c), one row a stage, then the facts that explain the
 * numbers. Fits 100 columns, so that it can be pasted anywhere. */
#include "report/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "base/exit_code.h"
#include "config/experiment.h"
#include "report/report_header.h"

enum {
    NAME_LEAST = 10,
    NAME_MOST = 19,  /* what five times and three rates leave of 100 columns */
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
            text_comment(file, "samples from the shortest to p99; the last place has those above");
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
    text_comment(
        file,
        "open loop: %s arrivals by seed %llu, %.6g due a second%s; latency counts from when "
        "one was due, service from when it began; %.0f %% were due before it could begin",
        x->bench.arrivals == ARRIVALS_POISSON ? "poisson" : "constant", (unsigned long long)x->seed,
        s->arrivals.rate, closed, 100 * result_late(result));
}

/* How times were taken where that is not by the host's clock, and what they do not say. */
static void print_clock(FILE *file, const struct result *result)
{
    const struct session *s = result->session;
    const char *plugin = s->experiment->algorithm.plugin->name;
    const char *cache = s->experiment->bench.cache == CACHE_COLD ? "cold" : "warm";
    bool bench = s->verb == VERB_BENCH;

    if (s->clock == CLOCK_EVENTS)
        text_comment(file, "clock: events around each stage%s%s%s", bench ? ", cache " : "",
                     bench ? cache : "", "; total is their sum");
    if (session_is_open(s))
        print_arrivals(file, result);
    if (s->clock == CLOCK_END_TO_END)
        text_comment(file,
                     "clock: rank 0's, from one barrier of all ranks to the next, cache cold; "
                     "all stages and what is between them are in it");
    if (s->clock != CLOCK_GRAPH)
        return;
    if (s->stage_kind[s->n_stages - 1] == EPA_STAGE_WHOLE) {
        text_comment(file, "clock: graph of %u call%s, cache %s; a sample is one launch%s",
                     session_calls(s), session_calls(s) == 1 ? "" : "s", cache,
                     session_calls(s) == 1 ? "" : " divided by calls");
        return;
    }
    text_comment(
        file,
        "clock: graph of %u call%s of each stage, cache %s; a sample is one launch%s, total "
        "a pair as measured, dispatch and combine alone",
        session_calls(s), session_calls(s) == 1 ? "" : "s", cache,
        session_calls(s) == 1 ? "" : " divided by calls");
    if (s->not_alone[FIGURE_DISPATCH])
        text_comment(file, "dispatch alone is not known: %s cannot give up a dispatch", plugin);
    if (s->not_alone[FIGURE_COMBINE])
        text_comment(file, "combine alone is not known: %s cannot combine twice", plugin);
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
        text_comment(file, "no stop rule was met before the end");
    else
        text_comment(file, "stopped by bench.%s; rules: %u samples%s%s",
                     result->stop == STOP_TIME ? "max_time" : stop_name(result->stop),
                     o->iterations, ci95, time);
}

static void print_samples(FILE *file, const struct result *result)
{
    const struct session *s = result->session;
    const struct stats *total = &result->stage[result->n_stages - 1].slowest;
    bool wall = s->clock == CLOCK_END_TO_END, rule = has_rule(s);
    double first = 0;

    text_comment(file,
                 "%llu of %s%u samples after %u of warm-up, each %s; percentiles by nearest rank",
                 (unsigned long long)result->n_samples, rule ? "at most " : "", s->iterations,
                 s->warmup, wall ? "rank 0's" : "the slowest rank's");
    if (rule)
        print_stop(file, result);
    if (total->n > 0)
        text_comment(
            file,
            "%s: mean %.1f us, stdev %.1f (cv %.1f %%), median deviation %.1f, %llu outlier%s",
            result->stage[result->n_stages - 1].name, total->mean / 1e3, total->stdev / 1e3,
            100 * total->cv, total->mad / 1e3, (unsigned long long)total->outliers,
            total->outliers == 1 ? "" : "s");
    if (!isnan(total->low))
        text_comment(file,
                     "%s: 95 %% interval of the median %.1f to %.1f us, %.2f %% of it, by "
                     "order statistics",
                     result->stage[result->n_stages - 1].name, total->low / 1e3, total->high / 1e3,
                     100 * result_ci95(result));
    for (uint32_t r = 0; s->block != NULL && r < s->experiment->ranks; r++)
        first = fmax(first, session_rank(s, r)->first_ns);
    if (first > 0)
        text_comment(file, "very first iteration: %.1f us", first / 1e3);
    if (total->n > 0 && s->experiment->ranks > 1 && !wall)
        text_comment(file,
                     "skew: %.1f us from fastest to slowest rank (median); rank %u slowest in "
                     "%.0f %% of samples",
                     result->skew_ns / 1e3, result->straggler, result->straggler_share * 100);
}

static void print_traffic(FILE *file, const char *what, const struct result_traffic *traffic)
{
    char needed[32], out[32], bottleneck[32];

    if (traffic->needed <= 0 && traffic->bottleneck <= 0)
        return;
    text_comment(file, "%s: %s payload, %s sent per rank and iteration; busiest rank %s", what,
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
    text_comment(file,
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
    text_comment(file, "computes: a rank does %.4g GFLOP an iteration%s", result->flops / 1e9,
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
        text_comment(file, "alone: %s; %.0f %% of the shorter hidden; total is %.2f of the longer",
                     line.data, 100 * result->hidden, total / longest);
    text_free(&line);
}

static void print_scratch(FILE *file, const struct session *s)
{
    char bytes[32];

    if (s->footprint.device_bytes > 0)
        text_comment(file, "scratch memory of a rank's device: %s",
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
        text_comment(file, "%.*s", (int)strcspn(at, "\n"), at);
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
    text_comment(file,
                 "profile: %s has the last %llu iteration%s: %llu slices, %llu flows, %llu "
                 "dropped",
                 t->path, (unsigned long long)t->iterations, t->iterations == 1 ? "" : "s",
                 (unsigned long long)t->slices, (unsigned long long)t->flows,
                 (unsigned long long)t->dropped);
    if (t->iterations == 0)
        return;
    if (isfinite(t->error_ns))
        text_comment(file, "profile: clocks of ranks agree within %.1f us", t->error_ns / 1e3);
    if (total->n > 0)
        text_comment(
            file,
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
    text_comment(file, "ended early: %s (exit %d)%s%s", name, result->exit_code,
                 why[0] != 0 ? ": " : "", why);
}

/* A line for each thing that was expected. */
static void print_verdicts(FILE *file, const struct result *result)
{
    const struct session *s = result->session;
    char wanted[128], found[256];

    for (uint32_t i = 0; i < result->n_verdicts; i++) {
        const struct verdict *v = &result->verdict[i];

        fputs(v->met ? "" : colour_on(file, COLOUR_BAD), file);
        text_comment(file, "expect: %s, %s: %s", verdict_wanted(v, wanted, sizeof(wanted)),
                     verdict_found(result, v, found, sizeof(found)), v->met ? "met" : "MISSED");
        fputs(v->met ? "" : colour_off(file), file);
    }
    if (s->verb == VERB_VERIFY && expect_is_set(&s->experiment->expect))
        text_comment(file, "expect: verify takes no times; only expect.wrong is looked at");
    else if (result->status != EPA_OK && expect_is_set(&s->experiment->expect))
        text_comment(file, "expect: not looked at, as it ended early");
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
        text_comment(file, "checked: %s elements, %s wrong", compared, wrong);
    else if (result->compared > 0)
        text_comment(file, "%s checked: %s elements, %s wrong",
                     result->checked == 2 ? "first and last iteration" : "iterations", compared,
                     wrong);
    else if (result->unchecked[0] != 0)
        text_comment(file, "not checked: %s", result->unchecked);
    if (result->wrong > 0)
        fputs(colour_off(file), file);
}

void report_table(FILE *file, const struct result *result)
{
    const struct session *s = result->session;

    report_header(file, result);
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
