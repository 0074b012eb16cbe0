/* Documents grow with each run and are written as a whole, so the time between two writings
 * grows with what one takes: all of them together cost a part of the command, not its
 * square. */
#include "cli/run_documents.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "config/experiment.h"
#include "report/report.h"
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

enum epa_status documents_check(const struct cli *cli, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (enum document_kind k = 0; k < DOCUMENT_FOLDER && status == EPA_OK; k++) {
        const char *path = path_of(cli, k);

        if (path == NULL)
            continue;
        status = file_check(kinds[k].option, path, cli->force, err);
        for (enum document_kind other = 0; other < k && status == EPA_OK; other++) {
            if (path_of(cli, other) != NULL && strcmp(path, path_of(cli, other)) == 0)
                status = epa_fail(err, EPA_ERR_CONFIG, "%s and %s are both %s", kinds[other].option,
                                  kinds[k].option, is_stdout(cli, k) ? "standard output" : path);
        }
    }
    return status;
}

static bool make_paths(struct documents *d)
{
    for (enum document_kind k = 0; k < DOCUMENTS; k++) {
        const char *path = path_of(d->cli, k), *name = kinds[k].name;

        if (path != NULL && asprintf(&d->path[k], name == NULL ? "%s" : "%s/%s", path, name) < 0)
            return false;
        d->is_ours[k] = name != NULL; /* who has the folder has them */
    }
    return true;
}

/* FNV-1a over what the experiment is to do. */
static void hash_value(void *arg, const char *key, const char *value, bool quoted)
{
    uint64_t *hash = arg;

    (void)quoted;
    if (!results_key_is_shape(key))
        return;
    for (const char *part = key; part != NULL; part = part == key ? value : NULL)
        for (const char *c = part;; c++) {
            *hash = (*hash ^ (unsigned char)*c) * UINT64_C(1099511628211);
            if (*c == '\0')
                break;
        }
}

static uint64_t question_of(const struct experiment *x)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    if (x != NULL)
        experiment_visit(x, hash_value, &hash);
    return hash;
}

enum epa_status documents_init(struct documents *d, const struct cli *cli, enum verb verb,
                               const struct runs *runs, bool ours, struct epa_error *err)
{
    *d = (struct documents){.cli = cli, .runs = runs, .verb = verb, .ours = ours, .stream.fd = -1};
    d->row = calloc(runs->n + 1, sizeof(*d->row));
    if (d->row == NULL || !make_paths(d))
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs", runs->n);
    d->n = runs->n;
    for (uint32_t i = 0; i < runs->n; i++) {
        const struct run *run = &runs->run[i];

        d->row[i] = (struct report_row){.who = run->name,
                                        .file = run->batch->file,
                                        .label = run->label,
                                        .id = run->x != NULL ? run->x->id : NULL,
                                        .question = question_of(run->x),
                                        .repetition = run->repetition,
                                        .baseline = run->baseline,
                                        .dispatch_ns = NAN,
                                        .experts_ns = NAN,
                                        .combine_ns = NAN,
                                        .total_ns = NAN};
    }
    return EPA_OK;
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
    text_free(&d->one);
    text_free(&d->results);
    warnings_free(&d->warnings);
    free(d->row);
    *d = (struct documents){0};
}

/* What cannot be written there is nothing that the run could help. */
static void add_to_stream(struct documents *d, const struct text *line)
{
    struct epa_error err = {EPA_OK, ""};

    if (file_stream_add(&d->stream, line, &err) == EPA_OK)
        return;
    if (!d->reported[DOCUMENT_STREAM])
        fprintf(stderr, "epa2a: error: %s\n", err.text);
    d->reported[DOCUMENT_STREAM] = true;
}

enum epa_status documents_take(struct documents *d, const struct text *result,
                               struct epa_error *err)
{
    struct text line = {0};
    enum epa_status status = EPA_OK;

    if (d->path[DOCUMENT_JSON] != NULL || d->cli->results_out != NULL) {
        text_add(&d->results, "%s", d->results.bytes == 0 ? "" : ",\n");
        text_add_bytes(&d->results, result->data, result->bytes);
    }
    if (d->path[DOCUMENT_STREAM] == NULL)
        return EPA_OK;
    status = report_json_line(&line, result, NULL, err);
    if (status == EPA_OK)
        add_to_stream(d, &line);
    text_free(&line);
    return status;
}

enum epa_status documents_add(struct documents *d, const struct result *result,
                              struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    text_free(&d->one);
    if (d->path[DOCUMENT_JSON] != NULL || d->path[DOCUMENT_STREAM] != NULL ||
        d->path[DOCUMENT_FOLDER] != NULL || d->cli->results_out != NULL)
        status = report_json_add(&d->one, result, err);
    return d->one.bytes > 0 && status == EPA_OK ? documents_take(d, &d->one, err) : status;
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
    struct text text = {0};
    enum epa_status status = EPA_OK;

    if (kind == DOCUMENT_JSON)
        status = report_json_text(&text, &d->results, batch->n > 1 ? batch : NULL, err);
    else if (kind == DOCUMENT_MARKDOWN || kind == DOCUMENT_FOLDER_MARKDOWN)
        report_batch_markdown(&text, batch);
    else
        report_batch_csv(&text, batch);
    if (status == EPA_OK)
        status = file_write(kinds[kind].option, d->path[kind], d->cli->force || d->is_ours[kind],
                            &text, err);
    text_free(&text);
    return status;
}

/* What cannot be written is told once, and once more at the end. */
static bool write_all(struct documents *d, const struct report_batch *batch, bool last)
{
    bool good = !d->reported[DOCUMENT_STREAM];

    for (enum document_kind k = 0; k < DOCUMENTS; k++) {
        struct epa_error err = {EPA_OK, ""};

        if (k == DOCUMENT_STREAM || d->path[k] == NULL || (!last && is_stream(d->path[k])))
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
                                       .row = d->row,
                                       .n = d->n,
                                       .order = runs_order_name(d->runs->how),
                                       .seed = d->runs->seed,
                                       .context = d->cli->context,
                                       .n_context = d->cli->n_context};
    uint64_t now = clock_ns();
    bool good;

    if (!d->ours || (!last && now - d->written_ns < WRITE_PART * d->cost_ns))
        return true;
    /* What asks for results has a table of its own to end with. */
    if (last && d->n > 1 && !documents_have_stdout(d) &&
        (!d->cli->quiet || d->cli->results_out == NULL))
        report_batch_text(stdout, &batch);
    fflush(stdout);
    if (last && !d->cli->quiet)
        warnings_print(stderr, &d->warnings);
    good = write_all(d, &batch, last);
    if (last && d->cli->results_out != NULL && d->results.bytes > 0)
        (void)report_json_text(d->cli->results_out, &d->results, NULL,
                               &(struct epa_error){EPA_OK, ""});
    d->written_ns = clock_ns();
    d->cost_ns = d->written_ns - now;
    return good;
}
