/* Documents of a batch. Those that are not streams are written again and again while it goes on, so
 * that what was measured is there however it ends, but only as often as that stays a small part of
 * the time. */
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
#include "report/results.h"
#include "op/op.h"

enum { WRITE_PART = 20 }; /* one part in so many of the time, at most */

/* Where each is asked for, and what it is called in the folder. */
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
    [DOCUMENT_FOLDER_CSV] = {"--out-dir", offsetof(struct cli, out_dir), "results.csv"},
    [DOCUMENT_FOLDER_MARKDOWN] = {"--out-dir", offsetof(struct cli, out_dir), "results.md"},
};

static const char *path_of(const struct cli *cli, enum document_kind kind)
{
    return *(const char *const *)(const void *)((const char *)cli + kinds[kind].path);
}

static bool is_stdout(const struct cli *cli, enum document_kind kind)
{
    return path_of(cli, kind) != NULL && strcmp(path_of(cli, kind), "-") == 0;
}

/* What is written there cannot be written over. */
static bool is_stream(const char *path)
{
    struct stat at;

    return strcmp(path, "-") == 0 || (stat(path, &at) == 0 && !S_ISREG(at.st_mode));
}

/* With --force, too: who writes over what is run has lost it. */
static enum epa_status check_inputs(const struct cli *cli, enum document_kind kind,
                                    struct epa_error *err)
{
    struct stat out, in;

    if (is_stream(path_of(cli, kind)) || stat(path_of(cli, kind), &out) != 0)
        return EPA_OK;
    for (uint32_t i = 0; i < cli->n_args; i++)
        if (stat(cli->arg[i], &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
            return epa_fail(err, EPA_ERR_CONFIG, "%s %s: that is the file to be run",
                            kinds[kind].option, path_of(cli, kind));
    return EPA_OK;
}

enum epa_status documents_check(const struct cli *cli, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (enum document_kind k = 0; k < DOCUMENT_FOLDER && status == EPA_OK; k++) {
        const char *path = path_of(cli, k);

        if (path == NULL)
            continue;
        status = file_check(kinds[k].option, path, cli->force, err);
        if (status == EPA_OK)
            status = check_inputs(cli, k, err);
        for (enum document_kind other = 0; other < k && status == EPA_OK; other++) {
            if (path_of(cli, other) != NULL && strcmp(path, path_of(cli, other)) == 0)
                status = epa_fail(err, EPA_ERR_CONFIG, "%s and %s are both %s", kinds[other].option,
                                  kinds[k].option, is_stdout(cli, k) ? "standard output" : path);
        }
    }
    return status;
}

void documents_init(struct documents *d, const struct cli *cli, enum verb verb,
                    const struct runs *runs, bool ours)
{
    *d = (struct documents){.cli = cli, .runs = runs, .verb = verb, .ours = ours, .stream.fd = -1};
    for (enum document_kind k = 0; k < DOCUMENTS; k++) {
        const char *path = path_of(cli, k), *name = kinds[k].name;

        if (path != NULL)
            d->path[k] = memory_printf(name == NULL ? "%s" : "%s/%s", path, name);
        d->is_ours[k] = name != NULL; /* who has the folder has them */
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
    for (enum document_kind k = 0; k < DOCUMENTS; k++)
        free(d->path[k]);
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

/* What cannot be written there is nothing that the run could help. */
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

/* Whether one of them needs all results at its end. */
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

bool documents_have_stdout(const struct documents *d)
{
    for (enum document_kind k = 0; k < DOCUMENT_FOLDER; k++)
        if (is_stdout(d->cli, k))
            return true;
    return false;
}

static enum epa_status write_one(struct documents *d, enum document_kind kind,
                                 const struct report_batch *batch, struct epa_error *err)
{
    text_auto text = {0};

    if (kind == DOCUMENT_JSON) {
        json_auto_t *all = report_document(json_incref(d->results),
                                           json_array_size(batch->rows) > 1 ? batch : NULL);

        json_write(&text, all, JSON_INDENT(1) | JSON_DIGITS);
        text_add(&text, "\n");
    } else if (kind == DOCUMENT_MARKDOWN || kind == DOCUMENT_FOLDER_MARKDOWN)
        report_batch_markdown(&text, batch);
    else if (kind == DOCUMENT_JUNIT)
        export_junit(&text, batch, d->results);
    else if (kind == DOCUMENT_HTML)
        page_html(&text, d, batch);
    else if (kind == DOCUMENT_METRICS)
        export_openmetrics(&text, d->results);
    else
        report_batch_csv(&text, batch);
    return file_write(kinds[kind].option, d->path[kind], d->cli->force || d->is_ours[kind], &text,
                      err);
}

/* What cannot be written is reported once, and once more at the end. */
static bool write_all(struct documents *d, const struct report_batch *batch, bool last)
{
    bool good = !d->reported[DOCUMENT_STREAM];

    for (enum document_kind k = 0; k < DOCUMENTS; k++) {
        struct epa_error err = {EPA_OK, ""};

        if (k == DOCUMENT_STREAM || d->path[k] == NULL ||
            (!last && (k == DOCUMENT_HTML || is_stream(d->path[k])))) /* charts take their time */
            continue;
        if (write_one(d, k, batch, &err) == EPA_OK) {
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

    if (!d->ours || (!last && now - d->written_ns < WRITE_PART * d->cost_ns))
        return true;
    /* What asks for results has a table of its own to end with. */
    if (last && d->runs->n > 1 && !documents_have_stdout(d) &&
        (!d->cli->quiet || d->cli->results_out == NULL))
        report_batch_text(stdout, &batch);
    fflush(stdout);
    if (last && !d->cli->quiet)
        warnings_print(stderr, &d->warnings);
    good = write_all(d, &batch, last);
    d->written_ns = epa_now_ns();
    d->cost_ns = d->written_ns - now;
    return good;
}

/* --html: one page of a batch that says what was fastest, with its tables, charts as SVG by
 * gnuplot, the machine and the warnings. It refers to nothing, so it can be sent as it is. */

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

static const struct table_column contest[] = {{"size", "size", NULL, 0, 0, 8},
                                              {"name", "run", .width = 0},
                                              {"median_ns", "median", "us", 1e3, 2, 10},
                                              {"low_ns", "from", "us", 1e3, 2, 10},
                                              {"high_ns", "to", "us", 1e3, 2, 10},
                                              {"loss", "behind", "%", 0.01, 1, 8},
                                              {"verdict", "", .width = 0},
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
                                             {"of_peak", "of peak", "%", 0.01, 1, 8},
                                             {0}};

__attribute__((format(printf, 4, 5))) static void add_element(struct text *out, const char *begin,
                                                              const char *end, const char *fmt, ...)
{
    va_list args;
    char *text = NULL;

    va_start(args, fmt);
    if (vasprintf(&text, fmt, args) < 0)
        text = NULL;
    va_end(args);
    text_add(out, "%s", begin);
    export_add_xml(out, text != NULL ? text : "");
    text_add(out, "%s\n", end);
    free(text);
}

/* What is fastest for each shape and size, as `epa2a best` says it. */
static void add_best(struct text *out, struct results *results)
{
    const struct best_wish wish = {.close = 0.03};
    struct epa_error ignored = {EPA_OK, ""};
    struct best *best = NULL;
    json_t *d;

    if (best_create(results, &wish, &best, &ignored) != EPA_OK)
        return;
    d = best_json(best);
    for (struct json_walk group = {json_object_get(d, "best")}; json_next(&group);) {
        json_t *rows = json_array();

        add_element(out, "<p class=note>", "", "%s", json_text_at(group.value, "title"));
        for (struct json_walk one = {json_object_get(group.value, "contests")}; json_next(&one);) {
            const json_t *runs = json_object_get(one.value, "runs"),
                         *first = json_array_get(runs, 0);
            const json_t *second = json_array_get(runs, 1);
            bool close = strcmp(json_text_at(second, "verdict"), "close") == 0;

            add_element(out, "<p class=answer>", "", "%.0f %s: %s, %.2f us%s%s%s",
                        json_number_at(one.value, "size"), results->run[0].operation->unit,
                        json_text_at(first, "name"), json_number_at(first, "median_ns") / 1e3,
                        second == NULL ? ""
                        : close        ? "; as fast: "
                                       : " is fastest, before ",
                        second == NULL ? "" : json_text_at(second, "name"),
                        close && json_array_size(runs) > 2 ? " and others" : "");
            for (struct json_walk run = {runs}; json_next(&run);) {
                json_t *row = json_copy((json_t *)run.value);

                json_object_set(row, "size", json_object_get(one.value, "size"));
                json_array_append_new(rows, row);
            }
        }
        table_html(out, contest, rows, export_add_xml);
        json_decref(rows);
    }
    json_decref(d);
    best_destroy(best);
}

/* The picture alone: what is before <svg is for files. */
static void add_chart(struct text *out, struct results *results, enum plot_kind kind)
{
    const struct plot_wish wish = {.kind = kind, .form = PLOT_SVG};
    struct epa_error err = {EPA_OK, ""};
    struct text script = {0}, drawn = {0};
    const char *svg;

    if (plot_script(results, &wish, &script, &err) == EPA_OK &&
        cli_draw(&script, &drawn, &err) == EPA_OK && (svg = strstr(drawn.data, "<svg")) != NULL)
        text_add(out, "<div class=wide>%s</div>\n", svg);
    else
        add_element(out, "<p class=note>", "", "No chart: %s", err.text);
    text_free(&script);
    text_free(&drawn);
}

static void add_runs(struct text *out, const json_t *results)
{
    text_add(out, "<h2>Runs</h2>\n");
    for (struct json_walk run = {results}; json_next(&run);) {
        char *experiment = json_dumps(json_object_get(run.value, "experiment"), JSON_INDENT(1));

        add_element(out, "<h3>", "</h3>", "%s", json_text_at(run.value, "label"));
        if (*json_text_at(run.value, "error.text") != '\0')
            add_element(out, "<p class=warn>", "", "%s", json_text_at(run.value, "error.text"));
        if (json_array_size(json_object_get(run.value, "stages")) > 0)
            table_html(out, stages, json_object_get(run.value, "stages"), export_add_xml);
        text_add(out, "<details><summary>Experiment</summary><pre class=wide>");
        for (char *line = strtok(experiment, "\n"); line != NULL; line = strtok(NULL, "\n"))
            add_element(out, "", "", "%s", line);
        text_add(out, "</pre></details>\n");
        free(experiment);
    }
}

static void add_machine(struct text *out, const json_t *results)
{
    const json_t *m = json_object_get(json_array_get(results, 0), "machine");

    text_add(out, "<h2>Machine</h2>\n");
    add_element(out, "<p>", "", "%s, %.0f cores, %.1f GiB, %s%s, on %s; epa2a %s, %s, %s kernels",
                json_text_at(m, "cpu"), json_number_at(m, "cores"),
                json_number_at(m, "memory_bytes") / 1073741824, json_text_at(m, "kernel"),
                json_text_at(m, "device.device"), json_text_at(m, "host"),
                json_text_at(m, "build.version"), json_text_at(m, "build.compiler"),
                json_text_at(m, "build.isa"));
    if (json_number_at(m, "links.rate") > 0)
        add_element(out, "<p>", "", "Link peak: %.2f GB/s out of a rank, %.2f us for a signal",
                    json_number_at(m, "links.rate"), json_number_at(m, "links.latency_ns") / 1e3);
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
    for (char *line = strtok(data, "\n"); line != NULL; line = strtok(NULL, "\n"))
        add_element(out, "<p class=warn>", "", "%s", line);
    free(data);
}

void page_html(struct text *out, const struct documents *d, const struct report_batch *batch)
{
    bool times = batch->verb != VERB_VERIFY;
    struct epa_error ignored = {EPA_OK, ""};
    struct results results = {0};
    const char *file = json_text_at(json_array_get(batch->rows, 0), "file");

    text_add(out, "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
                  "<meta name=viewport content=\"width=device-width,initial-scale=1\">\n");
    add_element(out, "<title>", "</title>", "epa2a %s %s", session_verb_name(batch->verb), file);
    text_add(out, "%s", style);
    add_element(out, "<h1>", "</h1>", "epa2a %s %s", session_verb_name(batch->verb), file);
    if (json_array_size(d->results) > 0 &&
        results_of(file, report_document(json_incref(d->results), NULL), &results, &ignored) !=
            EPA_OK)
        times = false;
    if (times && results.n > 0)
        add_best(out, &results);
    text_add(out, "<h2>All runs</h2>\n");
    report_batch_html(out, batch, export_add_xml);
    if (times && results.n > 0) {
        text_add(out, "<h2>Charts</h2>\n");
        add_chart(out, &results, PLOT_AUTO);
        add_chart(out, &results, PLOT_STAGES);
        if (results.n > 1)
            add_chart(out, &results, PLOT_DISTRIBUTION);
    }
    add_warnings(out, d);
    add_runs(out, d->results);
    add_machine(out, d->results);
    results_free(&results);
}
