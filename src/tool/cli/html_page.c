/* --html: one self-contained page of a batch with the fastest runs, tables, charts as SVG by
 * gnuplot, the machine and the warnings. */
#include "cli/html_page.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "cli/gnuplot.h"
#include "cli/runs.h"
#include "op/op.h"
#include "report/best_json.h"
#include "result/figures.h"
#include "report/figure_column.h"
#include "report/table_json.h"
#include "report/xml.h"
#include "report/fill.h"
#include "result/verdicts.h"
#include "report/warning_lines.h"
#include "report/plot.h"
#include "report/results.h"
#include "report/rows.h"
#include "report/summary_json.h"

enum { NAMED_MOST = 3 }; /* maximum number of runs per verdict in a sentence of the HTML page */

static const char style[] =
    "<style>\n"
    "body{font:16px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;max-width:64rem;"
    "margin:0 auto;padding:1rem}\n"
    "h1{font-size:1.5rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin-top:2rem}\n"
    "h3{font-size:1rem;overflow-wrap:anywhere}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}\n"
    "td.text{white-space:normal;min-width:8rem}.text{text-align:left}"
    ".note{color:#555;font-size:.9rem}\n"
    ".answer{font-size:1.1rem;background:#eef5ee;padding:.6rem 1rem;border-radius:.4rem}\n"
    ".warn{background:#fdf3dc;padding:.4rem 1rem;border-radius:.4rem;overflow-wrap:anywhere}\n"
    "svg{max-width:100%;min-width:38rem;height:auto;display:block}details{margin:.5rem 0}\n"
    "</style>\n";

static const struct table_column contest_columns[] = {{"size", "size", NULL, 0, 0, 8},
                                                      {"name", "run", .width = 0},
                                                      {"median_ns", "median", "us", 1e3, 2, 10},
                                                      {"low_ns", "from", "us", 1e3, 2, 10},
                                                      {"high_ns", "to", "us", 1e3, 2, 10},
                                                      {"loss_text", "behind", .width = 0},
                                                      {0}};

/* Adds a part of the page, filled with values of `of`. */
static void add_filled(struct text *out, const char *form, const json_t *of)
{
    (void)fill_add(out, form, of, export_add_xml);
}

/* Adds the runs of a contest with a verdict: "; close: A +1.0 %, B +2.1 % and 3 more". */
static void add_runs_of_verdict(struct text *out, const json_t *contest, const char *verdict)
{
    uint32_t n = 0;

    for (struct json_walk run = {json_object_get(contest, "runs")}; json_next(&run);) {
        if (strcmp(json_text_at(run.value, "verdict"), verdict) != 0)
            continue;
        if (n == 0)
            text_add(out, "; %s: ", verdict);
        if (n < NAMED_MOST)
            fill_add(out, n > 0 ? ", {name} {loss/.01%+.1f} %" : "{name} {loss/.01%+.1f} %",
                     run.value, export_add_xml);
        if (n < NAMED_MOST && strcmp(verdict, "unclear") == 0)
            fill_add(out, " ({loss_low/.01%+.1f} % to {loss_high/.01%+.1f} %)", run.value, NULL);
        n++;
    }
    if (n > NAMED_MOST)
        text_add(out, " and %u more", n - NAMED_MOST);
}

/* Adds a sentence about a contest. It names a fastest run only if every other run is slower. */
static void add_contest_sentence(struct text *out, const json_t *contest)
{
    const char *second = json_text_at(contest, "runs.1.verdict");

    add_filled(out,
               "<p class=answer>{size%.0f} {unit}: {runs.0.name}, {runs.0.median_ns/1e3%.2f} us",
               contest);
    if (strcmp(second, "slower") == 0)
        add_filled(out, " is fastest, before {runs.1.name} {runs.1.loss/.01%+.1f} %", contest);
    else if (second[0] != '\0')
        text_add(out, " has the least median");
    add_runs_of_verdict(out, contest, "close");
    add_runs_of_verdict(out, contest, "unclear");
    text_add(out, "\n");
}

/* Adds the fastest run of each shape and size, with the verdicts of `epa2a best`. */
static void add_contests(struct text *out, struct results *results)
{
    const struct best_wish wish = {.close = 0.03, .figure = figure_default()};
    struct epa_error ignored = {EPA_OK, ""};
    struct best *best = NULL;
    json_auto_t *d = NULL;

    if (best_create(results, &wish, &best, &ignored) != EPA_OK)
        return;
    d = best_json(best);
    for (struct json_walk group = {json_object_get(d, "best")}; json_next(&group);) {
        json_auto_t *rows = json_array();

        add_filled(out, "<p class=note>{title}\n", group.value);
        for (struct json_walk one = {json_object_get(group.value, "contests")}; json_next(&one);) {
            json_object_set_new(one.value, "unit", json_text(results->run[0].operation->unit));
            add_contest_sentence(out, one.value);
            for (struct json_walk run = {json_object_get(one.value, "runs")}; json_next(&run);) {
                json_object_set(run.value, "size", json_object_get(one.value, "size"));
                json_array_append(rows, run.value);
            }
        }
        table_json_add(out, TABLE_HTML, contest_columns, rows);
    }
    best_destroy(best);
}

/* Adds a picture. gnuplot uses the same ids in each picture, so ids and references to them get the
 * number of the picture as a prefix. */
static void add_svg(struct text *out, const char *svg, unsigned number)
{
    static const char *const before_id[] = {" id='", " id=\"", "href='#", "href=\"#", "url(#"};
    bool in_tag = false;

    while (*svg != '\0') {
        size_t n = 0;

        in_tag = *svg == '<' || (in_tag && *svg != '>');
        for (size_t i = 0; in_tag && n == 0 && i < sizeof(before_id) / sizeof(before_id[0]); i++)
            n = strncmp(svg, before_id[i], strlen(before_id[i])) == 0 ? strlen(before_id[i]) : 0;
        text_add_bytes(out, svg, n > 0 ? n : 1);
        if (n > 0)
            text_add(out, "chart%u-", number);
        svg += n > 0 ? n : 1;
    }
}

/* Adds a chart, without the lines before <svg, which only files need. */
static void add_chart(struct text *out, struct results *results, enum plot_kind kind,
                      unsigned number)
{
    const struct plot_wish wish = {.kind = kind, .form = PLOT_SVG};
    struct epa_error err = {EPA_OK, ""};
    text_auto script = {0}, drawn = {0};
    const char *svg = NULL;

    if (plot_script(results, &wish, &script, &err) == EPA_OK &&
        cli_draw(&script, &drawn, &err) == EPA_OK)
        svg = strstr(drawn.data, "<svg");
    if (svg != NULL) {
        text_add(out, "<div class=wide>");
        add_svg(out, svg, number);
        text_add(out, "</div>\n");
        return;
    }
    text_add(out, "<p class=note>No chart: ");
    export_add_xml(out, err.text);
    text_add(out, "\n");
}

/* Adds the figures of all stages, with the number of samples first. */
static void add_stages(struct text *out, const json_t *stages)
{
    struct table_column *column = memory_alloc(figures_count() + 3, sizeof(*column));
    uint32_t n = 0;

    column[n++] = (struct table_column){"name", "stage", .width = 0};
    column[n++] = (struct table_column){"ns.n", "samples", NULL, 0, 0, 8};
    for (const struct figure *f = figures; f->path != NULL; f++)
        if (f->heading != NULL)
            column[n++] = figure_column(f, f->path, 0);
    table_json_add(out, TABLE_HTML, column, stages);
    free(column);
}

static void add_runs(struct text *out, const json_t *results)
{
    text_add(out, "<h2>Runs</h2>\n");
    for (struct json_walk run = {results}; json_next(&run);) {
        text_auto experiment = {0};

        add_filled(out, "<h3>[{label}]</h3>\n[<p class=warn>{error.text}\n]", run.value);
        if (json_array_size(json_object_get(run.value, "stages")) > 0)
            add_stages(out, json_object_get(run.value, "stages"));
        text_add(out, "<details><summary>Experiment</summary><pre class=wide>");
        json_write(&experiment, json_object_get(run.value, "experiment"), JSON_INDENT(1));
        for (char *line = strtok(experiment.data, "\n"); line != NULL; line = strtok(NULL, "\n")) {
            export_add_xml(out, line);
            text_add(out, "\n");
        }
        text_add(out, "</pre></details>\n");
    }
}

static void add_warnings(struct text *out, const struct documents *d)
{
    char *data = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&data, &bytes);

    if (file == NULL)
        return;
    warnings_print(file, &d->warnings);
    fclose(file);
    if (bytes > 0)
        text_add(out, "<h2>Warnings</h2>\n");
    for (char *line = strtok(data, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        text_add(out, "<p class=warn>");
        export_add_xml(out, line);
        text_add(out, "\n");
    }
    free(data);
}

void page_html(struct text *out, const struct documents *d, const struct report_batch *batch)
{
    bool times = batch->verb != VERB_VERIFY;
    struct epa_error ignored = {EPA_OK, ""};
    struct results results = {0};
    const char *file = batch->n > 0 ? batch->row[0].file : "";
    json_auto_t *head = json_object_of("verb", json_text(session_verb_name(batch->verb)), "file",
                                       json_text(file), NULL);

    add_filled(out,
               "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
               "<meta name=viewport content=\"width=device-width,initial-scale=1\">\n"
               "<title>epa2a {verb} [{file}]</title>\n",
               head);
    text_add(out, "%s", style);
    add_filled(out, "<h1>epa2a {verb} [{file}]</h1>\n", head);
    if (json_array_size(d->results) > 0 &&
        results_of(file, report_document(json_incref(d->results), NULL), &results, &ignored) !=
            EPA_OK)
        times = false;
    if (times && results.n > 0)
        add_contests(out, &results);
    text_add(out, "<h2>All runs</h2>\n");
    report_batch_page(out, batch, true);
    if (times && results.n > 0) {
        text_add(out, "<h2>Charts</h2>\n");
        add_chart(out, &results, PLOT_AUTO, 1);
        add_chart(out, &results, PLOT_STAGES, 2);
        if (results.n > 1)
            add_chart(out, &results, PLOT_DISTRIBUTION, 3);
    }
    add_warnings(out, d);
    add_runs(out, d->results);
    add_filled(
        out,
        "<h2>Machine</h2>\n<p>[{cpu}], {cores%.0f} cores[, {memory_bytes%size}], {kernel}"
        "[, {device.device}], on [{host}]; epa2a {build.version}, {build.compiler}, {build.isa} "
        "kernels\n[<p>Link peak: {links.rate%.2f} GB/s out of a rank, {links.latency_ns/1e3%.2f} "
        "us for a signal\n]",
        json_object_get(json_array_get(d->results, 0), "machine"));
    results_free(&results);
}
