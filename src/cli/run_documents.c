/* Documents grow with each run and are written as a whole, so the time between two writings
 * grows with what one takes: all of them together cost a part of the command, not its
 * square. */
#include "cli/run_documents.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"

enum { WRITE_PART = 20 }; /* one part in so many of the time, at most */

static const char *const option[] = {[DOCUMENT_JSON] = "--json",
                                     [DOCUMENT_MARKDOWN] = "--markdown",
                                     [DOCUMENT_CSV] = "--csv"};

static const char *path_of(const struct cli *cli, enum document_kind kind)
{
    const char *const path[] = {[DOCUMENT_JSON] = cli->json,
                                [DOCUMENT_MARKDOWN] = cli->markdown,
                                [DOCUMENT_CSV] = cli->csv};

    return path[kind];
}

static bool is_stdout(const struct cli *cli, enum document_kind kind)
{
    const char *path = path_of(cli, kind);

    return path != NULL && strcmp(path, "-") == 0;
}

/* What is written there cannot be written over. */
static bool is_stream(const struct cli *cli, enum document_kind kind)
{
    struct stat at;

    return is_stdout(cli, kind) ||
           (stat(path_of(cli, kind), &at) == 0 && !S_ISREG(at.st_mode));
}

enum epa_status documents_check(const struct cli *cli, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (enum document_kind k = 0; k < DOCUMENTS && status == EPA_OK; k++) {
        const char *path = path_of(cli, k);

        if (path == NULL)
            continue;
        status = report_file_check(option[k], path, cli->force, err);
        for (enum document_kind other = 0; other < k && status == EPA_OK; other++) {
            if (path_of(cli, other) != NULL && strcmp(path, path_of(cli, other)) == 0)
                status =
                    epa_fail(err, EPA_ERR_CONFIG, "%s and %s are both %s", option[other],
                             option[k], is_stdout(cli, k) ? "standard output" : path);
        }
    }
    return status;
}

enum epa_status documents_init(struct documents *d, const struct cli *cli, enum verb verb,
                               const struct runs *runs, bool ours, struct epa_error *err)
{
    *d = (struct documents){.cli = cli, .verb = verb, .ours = ours};
    d->row = calloc(runs->n + 1, sizeof(*d->row));
    if (d->row == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs", runs->n);
    d->n = runs->n;
    for (uint32_t i = 0; i < runs->n; i++) {
        const struct run *run = &runs->run[i];

        d->row[i] = (struct report_row){.who = run->name,
                                        .file = run->batch->file,
                                        .label = run->label,
                                        .id = run->x != NULL ? run->x->id : NULL,
                                        .dispatch_ns = NAN,
                                        .combine_ns = NAN,
                                        .total_ns = NAN};
    }
    return EPA_OK;
}

void documents_finish(struct documents *d)
{
    text_free(&d->results);
    free(d->row);
    *d = (struct documents){0};
}

enum epa_status documents_add(struct documents *d, const struct result *result,
                              struct epa_error *err)
{
    return d->cli->json == NULL ? EPA_OK : report_json_add(&d->results, result, err);
}

bool documents_have_stdout(const struct documents *d)
{
    return is_stdout(d->cli, DOCUMENT_JSON) || is_stdout(d->cli, DOCUMENT_MARKDOWN) ||
           is_stdout(d->cli, DOCUMENT_CSV);
}

static enum epa_status write_one(struct documents *d, enum document_kind kind,
                                 struct epa_error *err)
{
    const char *path = path_of(d->cli, kind);
    bool force = d->cli->force || d->is_ours[kind];
    struct text text = {0};
    enum epa_status status;

    if (kind == DOCUMENT_JSON)
        return report_json(path, force, &d->results, d->row, d->n > 1 ? d->n : 0, err);
    if (kind == DOCUMENT_MARKDOWN)
        report_batch_markdown(&text, d->verb, d->row, d->n);
    else
        report_batch_csv(&text, d->verb, d->row, d->n);
    status = report_file(option[kind], path, force, text.data, text.bytes, err);
    text_free(&text);
    return status;
}

static bool write_all(struct documents *d, bool last)
{
    bool good = true;

    for (enum document_kind k = 0; k < DOCUMENTS; k++) {
        struct epa_error err = {EPA_OK, ""};

        if (path_of(d->cli, k) == NULL || (!last && is_stream(d->cli, k)))
            continue;
        if (write_one(d, k, &err) == EPA_OK) {
            d->is_ours[k] = true;
            continue;
        }
        fprintf(stderr, "epa2a: error: %s\n", err.text);
        good = false;
    }
    return good;
}

bool documents_write(struct documents *d, bool last)
{
    uint64_t now = clock_ns();
    bool good;

    if (!d->ours || (!last && now - d->written_ns < WRITE_PART * d->cost_ns))
        return true;
    if (last && d->n > 1 && !d->cli->quiet && !documents_have_stdout(d))
        report_batch_text(stdout, d->verb, d->row, d->n);
    fflush(stdout);
    good = write_all(d, last);
    d->written_ns = clock_ns();
    d->cost_ns = d->written_ns - now;
    return good;
}
