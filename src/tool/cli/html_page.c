/* --html: one self-contained page of a batch with the fastest runs, tables, charts as SVG by
 * gnuplot, the machine and the warnings. */
#include "cli/html_page.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "cli/gnuplot.h"
#include "cli/runs.h"
#include "op/op.h"
#include "report/best.h"
#include "result/figures.h"
#include "report/figure_column.h"
#include "report/table.h"
#include "report/xml.h"
#include "result/verdicts.h"
#include "report/warning_lines.h"
#include "report/plot.h"
#include "report/results.h"
#include "report/rows.h"
#include "report/summary.h"

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

/* Adds a number with a sign, as in "+1.0 %"; nothing if it is unknown. */
static void add_percent(struct text *out, const char *before, double part)
{
    if (isfinite(part))
        text_add(out, "%s%+.1f %%", before, part / .01);
}

/* Adds the runs of a contest with a verdict: "; close: A +1.0 %, B +2.1 % and 3 more". */
static void add_runs_of_verdict(struct text *out, const struct best_contest *contest,
                                const char *verdict)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < contest->n; i++) {
        const struct best_candidate *one = &contest->candidate[i];

        if (strcmp(best_verdict_word(one), verdict) != 0)
            continue;
        if (n == 0)
            text_add(out, "; %s: ", verdict);
        if (n < NAMED_MOST && isfinite(one->loss)) {
            text_add(out, "%s", n > 0 ? ", " : "");
            export_add_xml(out, one->first->name);
            add_percent(out, " ", one->loss);
        }
        if (n < NAMED_MOST && strcmp(verdict, "unclear") == 0 && isfinite(one->loss_low) &&
            isfinite(one->loss_high)) {
            add_percent(out, " (", one->loss_low);
            add_percent(out, " to ", one->loss_high);
            text_add(out, ")");
        }
        n++;
    }
    if (n > NAMED_MOST)
        text_add(out, " and %u more", n - NAMED_MOST);
}

/* Adds a sentence about a contest. It names a fastest run only if every other run is slower. */
static void add_contest_sentence(struct text *out, const struct best_contest *contest,
                                 const char *unit)
{
    const struct best_candidate *one = contest->candidate;
    const char *second = contest->n > 1 ? best_verdict_word(&one[1]) : "";

    text_add(out, "<p class=answer>%.0f ", contest->size);
    export_add_xml(out, unit);
    text_add(out, ": ");
    export_add_xml(out, one->first->name);
    text_add(out, ", %.2f us", round(one->spread.median) / 1e3);
    if (strcmp(second, "slower") == 0 && isfinite(one[1].loss)) {
        text_add(out, " is fastest, before ");
        export_add_xml(out, one[1].first->name);
        add_percent(out, " ", one[1].loss);
    } else if (strcmp(second, "slower") != 0 && second[0] != '\0') {
        text_add(out, " has the least median");
    }
    add_runs_of_verdict(out, contest, "close");
    add_runs_of_verdict(out, contest, "unclear");
    text_add(out, "\n");
}

/* Adds a table with the candidates of all sizes. */
static void add_group_table(struct text *out, const struct best *best, const struct best_group *g)
{
    enum { COLUMNS = 6 };
    uint32_t n = 0, room = 0;
    struct table_cell(*cell)[COLUMNS];
    struct table_row *row;

    for (uint32_t k = 0; k < g->n; k++)
        room += g->contest[k].n;
    cell = memory_alloc(room, sizeof(*cell));
    row = memory_alloc(room, sizeof(*row));
    for (uint32_t k = 0; k < g->n; k++)
        for (uint32_t i = 0; i < g->contest[k].n; i++) {
            const struct best_candidate *one = &g->contest[k].candidate[i];

            cell[n][0].number = g->contest[k].size;
            cell[n][1].text = one->first->name;
            cell[n][2].number = round(one->spread.median);
            cell[n][3].number = round(one->spread.low);
            cell[n][4].number = round(one->spread.high);
            cell[n][5].text = best_loss_text(best, one);
            row[n].cell = cell[n];
            n++;
        }
    table_add(out, TABLE_HTML, contest_columns, row, n);
    free(row);
    free(cell);
}

/* Adds the fastest run of each shape and size, with the verdicts of `epa2a best`. */
static void add_contests(struct text *out, struct results *results)
{
    const struct best_wish wish = {.close = 0.03, .figure = figure_default()};
    struct epa_error ignored = {EPA_OK, ""};
    struct best *best = NULL;

    if (best_create(results, &wish, &best, &ignored) != EPA_OK)
        return;
    for (uint32_t i = 0; i < best->n_groups; i++) {
        const struct best_group *g = &best->group[i];

        text_add(out, "<p class=note>");
        export_add_xml(out, g->title);
        text_add(out, "\n");
        for (uint32_t k = 0; k < g->n; k++)
            add_contest_sentence(out, &g->contest[k], results->run[0].operation->unit);
        add_group_table(out, best, g);
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
static void add_stages(struct text *out, const struct results_run *run)
{
    uint32_t room = figures_count() + 3, n = 0;
    struct table_column *column = memory_alloc(room, sizeof(*column));
    struct table_cell *cell = memory_alloc((size_t)run->n_stages * room, sizeof(*cell));
    struct table_row *row = memory_alloc(run->n_stages, sizeof(*row));

    column[n++] = (struct table_column){"name", "stage", .width = 0};
    column[n++] = (struct table_column){"ns.n", "samples", NULL, 0, 0, 8};
    for (uint32_t i = 0; i < run->n_stages; i++) {
        row[i].cell = &cell[i * room];
        cell[i * room].text = run->stage[i].name;
        cell[i * room + 1].number = (double)run->stage[i].figures.ns.n;
    }
    for (const struct figure *f = figures; f->path != NULL; f++) {
        if (f->heading == NULL)
            continue;
        for (uint32_t i = 0; i < run->n_stages; i++)
            cell[i * room + n].number = figure_value(f, &run->stage[i].figures);
        column[n++] = figure_column(f, f->path, 0);
    }
    table_add(out, TABLE_HTML, column, row, run->n_stages);
    free(row);
    free(cell);
    free(column);
}

static void add_runs(struct text *out, const struct results *results)
{
    text_add(out, "<h2>Runs</h2>\n");
    for (uint32_t i = 0; i < results->n; i++) {
        const struct results_run *run = &results->run[i];
        const char *error = results_text(run, "error.text");
        text_auto experiment = {0};

        text_add(out, "<h3>");
        export_add_xml(out, run->label);
        text_add(out, "</h3>\n");
        if (error[0] != '\0') {
            text_add(out, "<p class=warn>");
            export_add_xml(out, error);
            text_add(out, "\n");
        }
        if (run->n_stages > 0)
            add_stages(out, run);
        text_add(out, "<details><summary>Experiment</summary><pre class=wide>");
        results_experiment(run, &experiment);
        for (char *line = strtok(experiment.data, "\n"); line != NULL; line = strtok(NULL, "\n")) {
            export_add_xml(out, line);
            text_add(out, "\n");
        }
        text_add(out, "</pre></details>\n");
    }
}

/* Adds a text of a result in plain notation, after `before`; nothing if it is empty. */
static void add_known(struct text *out, const char *before, const char *text)
{
    if (text[0] == '\0')
        return;
    text_add(out, "%s", before);
    export_add_xml(out, text);
}

/* Adds the machine of the first run. */
static void add_machine(struct text *out, const struct results_run *run)
{
    double memory = results_number(run, "machine.memory_bytes");
    double rate = results_number(run, "machine.links.rate");
    double latency_ns = results_number(run, "machine.links.latency_ns");
    char size[32];

    text_add(out, "<h2>Machine</h2>\n<p>");
    export_add_xml(out, results_text(run, "machine.cpu"));
    text_add(out, ", %.0f cores", results_number(run, "machine.cores"));
    if (isfinite(memory))
        text_add(out, ", %s",
                 text_size(size, sizeof(size), memory > 0 ? (uint64_t)llround(memory) : 0));
    add_known(out, ", ", results_text(run, "machine.kernel"));
    add_known(out, ", ", results_text(run, "machine.device.device"));
    text_add(out, ", on ");
    export_add_xml(out, results_text(run, "machine.host"));
    add_known(out, "; epa2a ", results_text(run, "machine.build.version"));
    add_known(out, ", ", results_text(run, "machine.build.compiler"));
    add_known(out, ", ", results_text(run, "machine.build.isa"));
    text_add(out, " kernels\n");
    if (isfinite(rate) && isfinite(latency_ns))
        text_add(out, "<p>Link peak: %.2f GB/s out of a rank, %.2f us for a signal\n", rate,
                 latency_ns / 1e3);
}

static void add_warnings(struct text *out, const struct warnings *warnings)
{
    char *data = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&data, &bytes);

    if (file == NULL)
        return;
    warnings_print(file, warnings);
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

static void add_title(struct text *out, const char *begin, const char *verb, const char *file,
                      const char *end)
{
    text_add(out, "%sepa2a %s ", begin, verb);
    export_add_xml(out, file);
    text_add(out, "%s\n", end);
}

void page_html(struct text *out, const struct report_batch *batch, const struct warnings *warnings,
               struct results *results)
{
    bool times = batch->verb != VERB_VERIFY && results->n > 0;
    const char *file = batch->n > 0 ? batch->row[0].file : "";
    const char *verb = session_verb_name(batch->verb);
    text_auto details = {0}; /* comparisons and charts select runs of `results` */

    add_runs(&details, results);
    if (results->n > 0)
        add_machine(&details, &results->run[0]);
    text_add(out, "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
                  "<meta name=viewport content=\"width=device-width,initial-scale=1\">\n");
    add_title(out, "<title>", verb, file, "</title>");
    text_add(out, "%s", style);
    add_title(out, "<h1>", verb, file, "</h1>");
    if (times)
        add_contests(out, results);
    text_add(out, "<h2>All runs</h2>\n");
    report_batch_page(out, batch, true);
    if (times && results->n > 0) {
        text_add(out, "<h2>Charts</h2>\n");
        add_chart(out, results, PLOT_AUTO, 1);
        add_chart(out, results, PLOT_STAGES, 2);
        if (results->n > 1)
            add_chart(out, results, PLOT_DISTRIBUTION, 3);
    }
    add_warnings(out, warnings);
    text_add_bytes(out, details.data, details.bytes);
}
