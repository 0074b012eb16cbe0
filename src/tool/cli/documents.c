/* Documents of a batch. The files are rewritten during the batch, so that all measurements survive
 * any end of the program, but only as often as writing stays a small part of the time. */
#include "cli/documents.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <epa2a/wait.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "cli/cli_fail.h"
#include "cli/html_page.h"
#include "cli/runs.h"
#include "config/experiment_show.h"
#include "report/table.h"
#include "report/openmetrics.h"
#include "report/junit.h"
#include "result/verdicts.h"
#include "report/warning_lines.h"
#include "report/process_results.h"
#include "report/result_json.h"
#include "report/results_json.h"
#include "report/rows.h"
#include "report/summary.h"
#include "report/summary_json.h"

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
    [DOCUMENT_STREAM] = {"--json-lines", offsetof(struct cli, batch.json_lines), NULL},
    [DOCUMENT_JUNIT] = {"--junit", offsetof(struct cli, batch.junit), NULL},
    [DOCUMENT_METRICS] = {"--openmetrics", offsetof(struct cli, batch.openmetrics), NULL},
    [DOCUMENT_HTML] = {"--html", offsetof(struct cli, batch.html), NULL},
    [DOCUMENT_ROUTING] = {"--routing", offsetof(struct cli, import.routing), NULL},
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
    return status == EPA_OK && cli->batch.html != NULL ? page_check(err) : status;
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
                    const struct runs *runs, bool ours, bool shares)
{
    *d = (struct documents){
        .cli = cli, .runs = runs, .verb = verb, .ours = ours, .shares = shares, .stream.fd = -1};
    for (enum document_kind k = 0; k < DOCUMENTS; k++) {
        const char *path = document_path(cli, k), *name = kinds[k].name;

        if (path != NULL && k != DOCUMENT_OUT)
            d->path[k] = memory_printf(name == NULL ? "%s" : "%s/%s", path, name);
        d->is_ours[k] = name != NULL; /* the process with the lock of the folder owns its tables */
    }
    d->arena = arena_create();
    d->row = arena_alloc(d->arena, runs->n * sizeof(*d->row));
    d->results = json_array();
    results_begin(&d->all, cli->json != NULL ? cli->json : "now");
    for (uint32_t i = 0; i < runs->n && !cli->batch.dry_run; i++) {
        const struct run *run = &runs->run[i];
        struct report_row *row = &d->row[d->n_rows++];
        text_auto question = {0};

        report_row(row, run->name, run->batch->file, run->label,
                   run->x != NULL ? run->x->id : NULL);
        if (run->x != NULL) {
            experiment_part(run->x, KEY_TASK, &question);
            row->question = arena_strndup(d->arena, question.data, question.bytes);
        }
        row->repetition = run->repetition;
        row->baseline = run->baseline;
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
    results_free(&d->all);
    warnings_free(&d->warnings);
    arena_destroy(d->arena);
    *d = (struct documents){0};
}

/* Adds the document of one result as one line. */
static void add_line(struct text *out, json_t *result, const struct report_batch *batch)
{
    json_auto_t *document = report_document(json_pack("[O]", result), batch);

    json_write(out, document, JSON_COMPACT | JSON_DIGITS);
    text_add(out, "\n");
}

void documents_line(const struct documents *d, uint32_t i, struct text *out)
{
    const struct report_batch batch = {.row = &d->row[i],
                                       .n = 1,
                                       .verb = d->verb,
                                       .order = runs_order_name(d->runs->how),
                                       .seed = d->runs->seed};

    add_line(out, d->one, &batch);
}

bool documents_have_one(const struct documents *d)
{
    return d->one != NULL;
}

void documents_begin_run(struct documents *d)
{
    json_decref(d->one);
    d->one = NULL;
}

void documents_share(struct documents *d, struct results *out)
{
    *out = d->all;
    d->all = (struct results){0};
}

/* Adds a line to the stream. A write error is printed once and does not fail the run. */
static void add_to_stream(struct documents *d, json_t *result)
{
    struct epa_error err = {EPA_OK, ""};
    text_auto line = {0};

    add_line(&line, result, NULL);
    if (file_stream_add(&d->stream, &line, &err) == EPA_OK)
        return;
    if (!d->reported[DOCUMENT_STREAM])
        cli_report_error(&err);
    d->reported[DOCUMENT_STREAM] = true;
}

/* Returns true if a document, or documents_share(), reads the results as structs. */
static bool reads_results(const struct documents *d)
{
    return d->shares || d->path[DOCUMENT_METRICS] != NULL;
}

/* Adds a result, takes its reference and stores it in `one`. */
static void add_result(struct documents *d, json_t *result)
{
    documents_begin_run(d);
    d->one = result;
    if (d->path[DOCUMENT_JSON] != NULL || d->path[DOCUMENT_HTML] != NULL)
        json_array_append(d->results, result);
    if (d->stream.fd >= 0 || (d->stream.path != NULL && is_stdout(d->cli, DOCUMENT_STREAM)))
        add_to_stream(d, result);
}

void documents_add(struct documents *d, struct report_row *row, const struct result *result,
                   const struct facts *facts)
{
    struct results_key *key;

    report_row_fill(row, result, d->arena);
    row->n_keys = experiment_keys(result->figures->facts.experiment, d->arena, &key);
    row->key = key;
    if (reads_results(d))
        results_add_process(&d->all, result, facts);
    add_result(d, result_json(result, facts));
}

void documents_add_saved(struct documents *d, struct report_row *row, const struct results_run *was)
{
    report_row_read(row, was, d->arena);
    if (reads_results(d))
        results_add_copy(&d->all, was);
    add_result(d, results_recorded(was));
}

static enum epa_status write_page(const struct documents *d, const struct report_batch *batch,
                                  struct text *out, struct epa_error *err)
{
    json_auto_t *all = report_document(json_incref(d->results), batch);
    text_auto title = {0}, document = {0};

    text_add(&title, "epa2a %s %s", session_verb_name(batch->verb),
             batch->n > 0 ? batch->row[0].file : "");
    json_write(&document, all, JSON_COMPACT | JSON_DIGITS);
    return page_html(title.data, &document, out, err);
}

static enum epa_status write_document(struct documents *d, enum document_kind kind,
                                      const struct report_batch *batch, struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    text_auto text = {0};

    if (kind == DOCUMENT_JSON) {
        json_auto_t *all = report_document(json_incref(d->results), batch->n > 1 ? batch : NULL);

        json_write(&text, all, JSON_INDENT(1) | JSON_DIGITS);
        text_add(&text, "\n");
    } else if (kind == DOCUMENT_MARKDOWN || kind == DOCUMENT_FOLDER_MARKDOWN)
        report_batch_markdown(&text, batch);
    else if (kind == DOCUMENT_JUNIT)
        export_junit(&text, batch);
    else if (kind == DOCUMENT_HTML)
        status = write_page(d, batch, &text, err);
    else if (kind == DOCUMENT_METRICS)
        export_openmetrics(&text, &d->all);
    else
        report_batch_csv(&text, batch);
    if (status != EPA_OK)
        return status;
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
            cli_report_error(&err);
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
    return d->ours && !d->shares && stdout_is_unread();
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
                                       .row = d->row,
                                       .n = d->n_rows,
                                       .order = runs_order_name(d->runs->how),
                                       .seed = d->runs->seed,
                                       .context = d->cli->batch.context,
                                       .n_context = d->cli->batch.n_context};
    uint64_t now = epa_now_ns();
    bool good;

    d->delayed = d->ours && !last && !may_write(d);
    if (!d->ours || d->delayed)
        return true;
    /* The caller of a quiet command with a shared list prints its own table at the end. */
    if (last && d->runs->n > 1 && !cli_has_stdout(d->cli) && (!d->cli->quiet || !d->shares))
        report_batch_text(stdout, &batch);
    fflush(stdout);
    if (last && !d->cli->quiet)
        warnings_print(stderr, &d->warnings);
    good = write_documents(d, &batch, last);
    d->written_ns = epa_now_ns();
    d->cost_ns = d->written_ns - now;
    return good;
}
