/* A results folder. results.jsonl has a line for each run that has ended, added and synced before
 * the next one begins, so that whatever ends this program, what was measured is there: a line that
 * was cut short is no line. It is the index, too: --resume skips what it says ended well, and drops
 * the lines of all else.
 *
 * The lock is one of fcntl(), and not of flock(): it is this process's alone, so that ranks
 * that outlive it for a moment do not keep a --resume out, and it works over NFS. */
#include "cli/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "config/experiment.h"
#include "report/report.h"

static const char option[] = "--out-dir";
static const char lock_name[] = ".lock";

/* ---- looking ---- */

/* What a program that is killed while it writes leaves behind. */
static bool is_temporary(const char *name)
{
    size_t n = strlen(name);

    return n > 4 && strcmp(name + n - 4, ".tmp") == 0 && strncmp(name, "results.", 8) == 0;
}

/* Whether anything is there that is not ours; a folder that cannot be read is reported
 * elsewhere. */
static bool has_others(const struct run_folder *f)
{
    DIR *dir = opendir(f->path);
    struct dirent *entry;
    bool others = false;

    while (dir != NULL && !others && (entry = readdir(dir)) != NULL)
        others = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                 strcmp(entry->d_name, lock_name) != 0 && !is_temporary(entry->d_name);
    if (dir != NULL)
        closedir(dir);
    return others;
}

/* Of the runs of today one that is not taken: of that id, and best of that label. */
static struct run *find_run(const struct runs *runs, const bool *taken,
                            const struct results_run *was)
{
    struct run *found = NULL;

    for (uint32_t i = 0; i < runs->n; i++) {
        struct run *run = &runs->run[i];

        if (taken[i] || run->x == NULL || strcmp(run->x->id, was->id) != 0)
            continue;
        if (strcmp(run->label, was->label) == 0)
            return run;
        found = found != NULL ? found : run;
    }
    return found;
}

static enum epa_status match(struct run_folder *f, const char *verb, struct epa_error *err)
{
    bool *taken = calloc(f->runs->n + 1, sizeof(*taken));
    enum epa_status status = EPA_OK;

    if (taken == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs", f->runs->n);
    for (uint32_t k = 0; k < f->old.n && status == EPA_OK; k++) {
        const struct results_run *was = &f->old.run[k];
        struct run *run = find_run(f->runs, taken, was);

        if (strcmp(was->verb, verb) != 0) {
            status = epa_fail(err, EPA_ERR_CONFIG,
                              "--resume: the batch in %s is of '%.20s', and this is '%s'", f->path,
                              was->verb, verb);
        } else if (run == NULL) {
            status = epa_fail(err, EPA_ERR_CONFIG,
                              "--resume: the batch in %s is another: it has '%.60s' (%.12s), which "
                              "is not in this one. Give the files, --set and --only that it was "
                              "begun with",
                              f->path, was->label, was->id[0] != '\0' ? was->id : "no id");
        } else {
            taken[run - f->runs->run] = true;
            run->done = strcmp(was->status, "ok") == 0 ? was : NULL;
        }
    }
    free(taken);
    return status;
}

/* What --resume cannot read it cannot go on with. */
static enum epa_status read_old(struct run_folder *f, struct epa_error *err)
{
    struct epa_error why = {EPA_OK, ""};
    enum epa_status status = results_read(f->path, &f->old, &why);

    if (status == EPA_ERR_CONFIG)
        return epa_fail(err, status,
                        "%s; so --resume cannot know what was done: --force without --resume "
                        "begins again",
                        why.text);
    return status == EPA_OK ? EPA_OK : epa_fail(err, status, "%s", why.text);
}

enum epa_status run_folder_look(struct run_folder *f, const struct cli *cli, const char *verb,
                                struct runs *runs, struct epa_error *err)
{
    size_t n = cli->out_dir == NULL ? 0 : strlen(cli->out_dir);
    struct stat at;
    enum epa_status status;

    *f = (struct run_folder){.cli = cli, .runs = runs, .lock_fd = -1, .fd = -1};
    if (cli->out_dir == NULL)
        return EPA_OK;
    while (n > 1 && cli->out_dir[n - 1] == '/')
        n--;
    f->path = strndup(cli->out_dir, n);
    if (f->path == NULL || asprintf(&f->file, "%s/results.jsonl", f->path) < 0)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a path");
    if (stat(f->path, &at) != 0) /* its own folder must be there */
        return file_check(option, f->path, cli->force, err);
    if (!S_ISDIR(at.st_mode))
        return epa_fail(err, EPA_ERR_CONFIG, "%s %s: that is no folder", option, f->path);
    status = file_check(option, f->file, true, err);
    if (status != EPA_OK)
        return status;
    if (stat(f->file, &f->was) != 0) {
        f->was.st_ino = 0;
        if (!cli->force && has_others(f))
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s %s: the folder is not empty and has no results.jsonl: it is no "
                            "results folder; --force writes into it all the same",
                            option, f->path);
        return EPA_OK;
    }
    if (cli->resume) {
        status = read_old(f, err);
        return status == EPA_OK ? match(f, verb, err) : status;
    }
    if (!cli->force)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s %s: a batch is there already: --resume goes on with it, --force begins "
                        "again and removes its results",
                        option, f->path);
    return EPA_OK;
}

bool run_folder_order(const struct run_folder *f, enum runs_order *order, uint64_t *seed)
{
    const json_t *first = f->old.n > 0 ? f->old.run[0].document : NULL;

    if (!runs_order_find(json_text_at(first, "order"), order))
        return false;
    *seed = (uint64_t)json_integer_value(json_object_get(first, "order_seed"));
    return true;
}

/* ---- opening ---- */

static enum epa_status lock(struct run_folder *f, struct epa_error *err)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char *path = NULL;
    int failed;

    if (asprintf(&path, "%s/%s", f->path, lock_name) < 0)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a path");
    f->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    failed = f->lock_fd < 0 ? errno : 0;
    free(path);
    if (failed != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: cannot write into the folder: %s", option,
                        f->path, strerror(failed));
    if (fcntl(f->lock_fd, F_SETLK, &all) == 0)
        return EPA_OK;
    failed = errno;
    if (failed != EACCES && failed != EAGAIN)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: the folder cannot be locked: %s", option,
                        f->path, strerror(failed));
    all.l_pid = 0;
    (void)fcntl(f->lock_fd, F_GETLK, &all);
    return epa_fail(err, EPA_ERR_CONFIG,
                    "%s %s: process %ld writes into this folder; wait for its end, or choose "
                    "another",
                    option, f->path, (long)all.l_pid);
}

/* Between the look and the lock somebody else may have been here. */
static enum epa_status look_again(const struct run_folder *f, struct epa_error *err)
{
    struct stat now;

    if (stat(f->file, &now) != 0)
        now.st_ino = 0;
    if (f->cli->force ||
        (now.st_ino == f->was.st_ino && (now.st_ino == 0 || now.st_size == f->was.st_size)))
        return EPA_OK;
    return epa_fail(err, EPA_ERR_CONFIG,
                    "%s %s: another process has written into this folder just now; start again",
                    option, f->path);
}

static void warn_of_others(const struct run_folder *f, const char *what, const char *there,
                           const char *here)
{
    if (!f->cli->quiet && *there != 0 && strcmp(there, here) != 0)
        fprintf(stderr,
                "epa2a: %swarning:%s --resume: what is done was done by %s %s, and this is %s: "
                "the table will have both\n",
                colour_on(stderr, COLOUR_WARNING), colour_off(stderr), what, there, here);
}

static enum epa_status add_line(struct run_folder *f, const struct documents *d, uint32_t i,
                                const struct text *result, struct epa_error *err)
{
    const struct report_batch batch = {.row = &d->row[i],
                                       .n = 1,
                                       .verb = d->verb,
                                       .order = runs_order_name(f->runs->how),
                                       .seed = f->runs->seed};

    return report_json_line(&f->pending, result, &batch, err);
}

/* Lines of runs that are done, and what documents want of them. */
static enum epa_status keep_done(struct run_folder *f, struct documents *d, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < f->runs->n && status == EPA_OK; i++) {
        const struct results_run *was = f->runs->run[i].done;
        struct text result = {0};

        if (was == NULL)
            continue;
        report_row_read(&d->row[i], was->json,
                        json_array_get(json_object_get(was->document, "summary"), 0));
        if (!json_write(&result, json_incref((json_t *)was->json), JSON_INDENT(1)))
            status = epa_fail(err, EPA_ERR_NOMEM, "no memory for a result as JSON");
        if (status == EPA_OK)
            status = documents_take(d, &result, err);
        if (status == EPA_OK)
            status = add_line(f, d, i, &result, err);
        text_free(&result);
    }
    return status;
}

static void clean(const struct run_folder *f)
{
    DIR *dir = opendir(f->path);
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (is_temporary(entry->d_name))
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir != NULL)
        closedir(dir);
}

enum epa_status run_folder_open(struct run_folder *f, struct documents *d,
                                const struct facts *facts, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    if (f->path == NULL)
        return EPA_OK;
    if (mkdir(f->path, 0777) != 0 && errno != EEXIST)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", option, f->path, strerror(errno));
    status = lock(f, err);
    if (status == EPA_OK)
        status = look_again(f, err);
    if (status != EPA_OK)
        return status;
    if (f->old.n > 0) {
        const json_t *machine = json_object_get(f->old.run[f->old.n - 1].json, "machine");

        warn_of_others(f, "version", json_text_at(json_object_get(machine, "build"), "version"),
                       EPA2A_VERSION);
        warn_of_others(f, "host", json_text_at(machine, "host"), facts->host);
    }
    if (!f->cli->quiet && f->cli->resume && f->was.st_ino == 0)
        fprintf(stderr, "epa2a: --resume: no batch is in %s yet: this is its begin\n", f->path);
    clean(f);
    status = keep_done(f, d, err);
    if (status == EPA_OK)
        status = file_write(option, f->file, true, &f->pending, err);
    text_free(&f->pending);
    if (status != EPA_OK)
        return status;
    f->fd = open(f->file, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (f->fd < 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", option, f->file, strerror(errno));
    return EPA_OK;
}

/* ---- runs ---- */

bool run_folder_add(struct run_folder *f, const struct documents *d, uint32_t i, bool last)
{
    const struct file_stream stream = {option, f->file, f->fd};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = EPA_OK;
    off_t end;

    if (f->fd < 0)
        return true;
    if (!last && d->one.bytes > 0)
        status = add_line(f, d, i, &d->one, &err);
    if (status == EPA_OK && f->pending.bytes == 0)
        return true;
    end = lseek(f->fd, 0, SEEK_END);
    if (status == EPA_OK)
        status = file_stream_add(&stream, &f->pending, &err);
    if (status == EPA_OK && fsync(f->fd) != 0)
        status = epa_fail(&err, EPA_ERR_SYSTEM, "%s %s: %s", option, f->file, strerror(errno));
    if (status == EPA_OK) {
        text_free(&f->pending);
        return true;
    }
    (void)!ftruncate(f->fd, end); /* what there is of it is no line */
    if (!f->reported || last)     /* a full disk is reported once, and once more at the end */
        fprintf(stderr, "epa2a: error: %s\n", err.text);
    f->reported = true;
    return false;
}

void run_folder_finish(struct run_folder *f)
{
    results_free(&f->old);
    text_free(&f->pending);
    free(f->path);
    free(f->file);
    if (f->fd >= 0)
        close(f->fd);
    if (f->lock_fd >= 0)
        close(f->lock_fd);
    *f = (struct run_folder){.lock_fd = -1, .fd = -1};
}

/* ---- documents ---- */

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

/* What cannot be written is reported once, and once more at the end. */
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
