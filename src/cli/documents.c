/* Documents of a batch. Those that are not streams are written again and again while it goes on, so
 * that what was measured is there however it ends, but only as often as that stays a small part of
 * the time. */
#include "cli/documents.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "report/summary.h"
#include "report/results.h"

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
    uint64_t now = clock_ns();
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
    d->written_ns = clock_ns();
    d->cost_ns = d->written_ns - now;
    return good;
}
