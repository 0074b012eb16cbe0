/* Documents of a batch. The files are rewritten during the batch, so that all measurements survive
 * any end of the program, but only as often as writing stays a small part of the time. */
#include "cli/runs.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <stdarg.h>
#include <stdio.h>

#include <epa2a/wait.h>
#include "report/summary.h"
#include "report/export.h"
#include "report/fill.h"
#include "report/results.h"
#include "report/plot.h"
#include "report/best.h"
#include "op/op.h"
#include "report/origin.h"
#include "report/findings.h"

enum { NAMED_MOST = 3 };  /* maximum number of runs per verdict in a sentence of the HTML page */
enum { WRITE_PART = 20 }; /* writing takes at most 1 / WRITE_PART of the time */

/* Option of each document, member of struct cli, and file name in the folder of --out-dir. */
static const struct {
    const char *option;
    size_t path; /* in struct cli */
    const char *name;
} kinds[DOCUMENTS] = {
    [DOCUMENT_JSON] = {"--json", offsetof(struct cli, json), NULL},
    [DOCUMENT_MARKDOWN] = {"--markdown", offsetof(struct cli, markdown), NULL},
    [DOCUMENT_CSV] = {"--csv", offsetof(struct cli, csv), NULL},
    [DOCUMENT_STREAM] = {"--json-lines", offsetof(struct cli, json_lines), NULL},
    [DOCUMENT_JUNIT] = {"--junit", offsetof(struct cli, junit), NULL},
    [DOCUMENT_METRICS] = {"--openmetrics", offsetof(struct cli, openmetrics), NULL},
    [DOCUMENT_HTML] = {"--html", offsetof(struct cli, html), NULL},
    [DOCUMENT_OUT] = {"--out", offsetof(struct cli, out), NULL},
    [DOCUMENT_FOLDER_CSV] = {"--out-dir", offsetof(struct cli, out_dir), "results.csv"},
    [DOCUMENT_FOLDER_MARKDOWN] = {"--out-dir", offsetof(struct cli, out_dir), "results.md"},
};

static const char *document_path(const struct cli *cli, enum document_kind kind)
{
    return *(const char *const *)(const void *)((const char *)cli + kinds[kind].path);
}

static bool is_stdout(const struct cli *cli, enum document_kind kind)
{
    return document_path(cli, kind) != NULL && file_is_stdout(document_path(cli, kind));
}

/* Rejects an output that is an input file or the file of standard output, even with --force. */
static enum epa_status check_output_file(const struct cli *cli, enum document_kind kind,
                                         struct epa_error *err)
{
    struct stat out, in;

    if (file_is_stream(document_path(cli, kind)) || stat(document_path(cli, kind), &out) != 0)
        return EPA_OK;
    if (fstat(stdout_descriptor(), &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s %s: standard output also goes to this file; use %s - to write it there",
                        kinds[kind].option, document_path(cli, kind), kinds[kind].option);
    for (uint32_t i = 0; i < cli->n_args; i++)
        if (stat(cli->arg[i], &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
            return epa_fail(err, EPA_ERR_CONFIG, "%s %s: the file is an input of this command",
                            kinds[kind].option, document_path(cli, kind));
    return EPA_OK;
}

/* Returns true if both paths name one file, even if they are written differently. */
static bool are_one_file(const char *path, const char *other)
{
    struct stat a, b;

    if (strcmp(path, other) == 0 || (file_is_stdout(path) && file_is_stdout(other)))
        return true;
    return !file_is_stream(path) && stat(path, &a) == 0 && stat(other, &b) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

enum epa_status cli_check_documents(const struct cli *cli, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (enum document_kind k = 0; k < DOCUMENT_FOLDER && status == EPA_OK; k++) {
        const char *path = document_path(cli, k);

        if (path == NULL)
            continue;
        status = file_check(kinds[k].option, path, cli->force, err);
        if (status == EPA_OK &&
            k != DOCUMENT_OUT) /* tune may overwrite its input by the tuned experiment */
            status = check_output_file(cli, k, err);
        for (enum document_kind other = 0; other < k && status == EPA_OK; other++) {
            if (document_path(cli, other) != NULL && are_one_file(path, document_path(cli, other)))
                status = epa_fail(err, EPA_ERR_CONFIG, "%s and %s are both %s", kinds[other].option,
                                  kinds[k].option, is_stdout(cli, k) ? "standard output" : path);
        }
    }
    return status;
}

enum epa_status folder_documents_check(const char *folder, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (enum document_kind k = DOCUMENT_FOLDER; k < DOCUMENTS && status == EPA_OK; k++) {
        text_auto path = {0};

        text_add(&path, "%s/%s", folder, kinds[k].name);
        status = file_check(kinds[k].option, path.data, true, err);
    }
    return status;
}

bool cli_has_stdout(const struct cli *cli)
{
    for (enum document_kind k = 0; k < DOCUMENT_OUT; k++)
        if (is_stdout(cli, k))
            return true;
    return false;
}

enum epa_status cli_write_json(const struct cli *cli, json_t *document, struct epa_error *err)
{
    json_auto_t *taken = document;
    text_auto out = {0};

    if (cli->json == NULL)
        return EPA_OK;
    json_write(&out, taken, JSON_INDENT(2) | JSON_DIGITS);
    text_add(&out, "\n");
    return file_write("--json", cli->json, cli->force, &out, err);
}

enum epa_status cli_write_documents(const struct cli *cli, json_t *document,
                                    const struct text *markdown, struct epa_error *err)
{
    enum epa_status status = cli_write_json(cli, document, err);

    if (cli->markdown != NULL && status == EPA_OK)
        status = file_write("--markdown", cli->markdown, cli->force, markdown, err);
    return status;
}

void documents_init(struct documents *d, const struct cli *cli, enum verb verb,
                    const struct runs *runs, bool ours)
{
    *d = (struct documents){.cli = cli, .runs = runs, .verb = verb, .ours = ours, .stream.fd = -1};
    for (enum document_kind k = 0; k < DOCUMENTS; k++) {
        const char *path = document_path(cli, k), *name = kinds[k].name;

        if (path != NULL && k != DOCUMENT_OUT)
            d->path[k] = memory_printf(name == NULL ? "%s" : "%s/%s", path, name);
        d->is_ours[k] = name != NULL; /* the process with the lock of the folder owns its tables */
    }
    d->rows = json_array();
    d->results = json_array();
    for (uint32_t i = 0; i < runs->n; i++) {
        const struct run *run = &runs->run[i];

        json_t *row =
            report_row(run->name, run->batch->file, run->label, run->x != NULL ? run->x->id : NULL);

        json_object_set_new(row, "question", run->x != NULL ? result_shape(run->x) : json_null());
        json_object_set_new(row, "repetition", json_count(run->repetition));
        json_object_set_new(row, "baseline", json_boolean(run->baseline));
        json_array_append_new(d->rows, row);
    }
}

enum epa_status documents_open(struct documents *d, struct epa_error *err)
{
    d->stream.option = kinds[DOCUMENT_STREAM].option;
    d->stream.path = d->path[DOCUMENT_STREAM];
    if (!d->ours || d->stream.path == NULL)
        return EPA_OK;
    return file_stream_open(&d->stream, d->cli->force, err);
}

void documents_finish(struct documents *d)
{
    for (enum document_kind k = 0; k < DOCUMENTS; k++) {
        free(d->path[k]);
        free(d->kept[k]);
        free(d->why[k]);
    }
    if (d->stream.path != NULL && d->stream.fd >= 0)
        close(d->stream.fd);
    json_decref(d->one);
    json_decref(d->results);
    json_decref(d->warnings.kinds);
    json_decref(d->rows);
    *d = (struct documents){0};
}

void documents_line(struct text *out, json_t *result, const struct report_batch *batch)
{
    json_auto_t *document = report_document(json_pack("[O]", result), batch);

    json_write(out, document, JSON_COMPACT | JSON_DIGITS);
    text_add(out, "\n");
}

/* Adds a line to the stream. A write error is printed once and does not fail the run. */
static void add_to_stream(struct documents *d, json_t *result)
{
    struct epa_error err = {EPA_OK, ""};
    text_auto line = {0};

    documents_line(&line, result, NULL);
    if (file_stream_add(&d->stream, &line, &err) == EPA_OK)
        return;
    if (!d->reported[DOCUMENT_STREAM])
        fprintf(stderr, "epa2a: error: %s\n", err.text);
    d->reported[DOCUMENT_STREAM] = true;
}

/* Returns true if a document needs all results at its end. */
static bool keeps_results(const struct documents *d)
{
    return d->path[DOCUMENT_JSON] != NULL || d->path[DOCUMENT_JUNIT] != NULL ||
           d->path[DOCUMENT_METRICS] != NULL || d->path[DOCUMENT_HTML] != NULL;
}

void documents_add(struct documents *d, json_t *result)
{
    json_decref(d->one);
    d->one = result;
    if (keeps_results(d))
        json_array_append(d->results, result);
    if (d->cli->results_out != NULL)
        json_array_append(d->cli->results_out, result);
    if (d->path[DOCUMENT_STREAM] != NULL)
        add_to_stream(d, result);
}

static enum epa_status write_document(struct documents *d, enum document_kind kind,
                                      const struct report_batch *batch, struct epa_error *err)
{
    text_auto text = {0};
    enum epa_status status;

    if (kind == DOCUMENT_JSON) {
        json_auto_t *all = report_document(json_incref(d->results),
                                           json_array_size(batch->rows) > 1 ? batch : NULL);

        json_write(&text, all, JSON_INDENT(1) | JSON_DIGITS);
        text_add(&text, "\n");
    } else if (kind == DOCUMENT_MARKDOWN || kind == DOCUMENT_FOLDER_MARKDOWN)
        report_batch_page(&text, batch, false);
    else if (kind == DOCUMENT_JUNIT)
        export_junit(&text, batch, d->results);
    else if (kind == DOCUMENT_HTML)
        page_html(&text, d, batch);
    else if (kind == DOCUMENT_METRICS)
        export_openmetrics(&text, d->results);
    else
        report_batch_csv(&text, batch);
    text_clean_lines(&text);
    /* If the first rename failed, the temporary file keeps all results so far. */
    if (d->kept[kind] != NULL) {
        status = file_write(kinds[kind].option, d->kept[kind], true, &text, err);
        return status == EPA_OK ? epa_fail(err, EPA_ERR_CONFIG, "%s", d->why[kind]) : status;
    }
    status = file_write_or_keep(kinds[kind].option, d->path[kind],
                                d->cli->force || d->is_ours[kind], &text, &d->kept[kind], err);
    if (d->kept[kind] != NULL)
        d->why[kind] = memory_printf("%s", err->text);
    return status;
}

/* Writes all documents. Prints a write error once, and again at the end. */
static bool write_documents(struct documents *d, const struct report_batch *batch, bool last)
{
    bool good = !d->reported[DOCUMENT_STREAM];

    for (enum document_kind k = 0; k < DOCUMENTS; k++) {
        struct epa_error err = {EPA_OK, ""};

        if (k == DOCUMENT_STREAM || d->path[k] == NULL ||
            (!last && (k == DOCUMENT_HTML || file_is_stream(d->path[k])))) /* charts are slow */
            continue;
        if (write_document(d, k, batch, &err) == EPA_OK) {
            d->is_ours[k] = true;
            continue;
        }
        if (!d->reported[k] || last)
            fprintf(stderr, "epa2a: error: %s\n", err.text);
        d->reported[k] = true;
        good = false;
    }
    return good;
}

bool documents_are_unread(const struct documents *d)
{
    for (enum document_kind k = 0; k < DOCUMENTS; k++)
        if (d->path[k] != NULL && !file_is_stdout(d->path[k]))
            return false;
    return d->ours && d->cli->results_out == NULL && stdout_is_unread();
}

/* Returns true if writing would take a small part of the time. */
static bool may_write(const struct documents *d)
{
    return epa_now_ns() - d->written_ns >= WRITE_PART * d->cost_ns;
}

bool documents_are_due(const struct documents *d)
{
    return d->delayed && may_write(d);
}

bool documents_write(struct documents *d, bool last)
{
    const struct report_batch batch = {.verb = d->verb,
                                       .rows = d->rows,
                                       .order = runs_order_name(d->runs->how),
                                       .seed = d->runs->seed,
                                       .context = d->cli->context,
                                       .n_context = d->cli->n_context};
    uint64_t now = epa_now_ns();
    bool good;

    d->delayed = d->ours && !last && !may_write(d);
    if (!d->ours || d->delayed)
        return true;
    /* A quiet command with results_out prints its own table at the end. */
    if (last && d->runs->n > 1 && !cli_has_stdout(d->cli) &&
        (!d->cli->quiet || d->cli->results_out == NULL))
        report_batch_text(stdout, &batch);
    fflush(stdout);
    if (last && !d->cli->quiet)
        warnings_print(stderr, &d->warnings);
    good = write_documents(d, &batch, last);
    d->written_ns = epa_now_ns();
    d->cost_ns = d->written_ns - now;
    return good;
}

/* --html: one self-contained page of a batch with the fastest runs, tables, charts as SVG by
 * gnuplot, the machine and the warnings. */

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
static const struct table_column stages[] = {{"name", "stage", .width = 0},
                                             {"ns.n", "samples", NULL, 0, 0, 8},
                                             {"ns.min", "min", "us", 1e3, 1, 9},
                                             {"ns.median", "median", "us", 1e3, 1, 9},
                                             {"ns.p95", "p95", "us", 1e3, 1, 9},
                                             {"ns.p99", "p99", "us", 1e3, 1, 9},
                                             {"ns.p999", "p99.9", "us", 1e3, 1, 9},
                                             {"ns.max", "max", "us", 1e3, 1, 9},
                                             {"rate.goodput", "goodput", "GB/s", 0, -2, 8},
                                             {"rate.wire", "wire", "GB/s", 0, -2, 8},
                                             {"rate.bottleneck", "bottleneck", "GB/s", 0, -2, 8},
                                             {"peak_ns", "at peak", "us", 1e3, 1, 8},
                                             {"of_peak", "of peak", "%", 0.01, 1, 8},
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
    const struct best_wish wish = {.close = 0.03};
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
        table_add(out, TABLE_HTML, contest_columns, rows);
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

static void add_runs(struct text *out, const json_t *results)
{
    text_add(out, "<h2>Runs</h2>\n");
    for (struct json_walk run = {results}; json_next(&run);) {
        text_auto experiment = {0};

        add_filled(out, "<h3>[{label}]</h3>\n[<p class=warn>{error.text}\n]", run.value);
        if (json_array_size(json_object_get(run.value, "stages")) > 0)
            table_add(out, TABLE_HTML, stages, json_object_get(run.value, "stages"));
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
    const char *file = json_text_at(json_array_get(batch->rows, 0), "file");
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
