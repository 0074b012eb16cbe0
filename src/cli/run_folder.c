/* A results folder. The index is written before and after each run, each time as a new file
 * that takes the name of the old one, so it is whole whatever ends this program: a run that
 * was going on is `running` then, and those after it are `planned`. A result is on disk before
 * the index says that its run is done.
 *
 * The lock is one of fcntl(), and not of flock(): it is this process's alone, so that ranks
 * that outlive it for a moment do not keep a --resume out, and it works over NFS. */
#include "cli/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/run_folder_match.h"
#include "report/report.h"

static const char option[] = "--out-dir";
static const char lock_name[] = ".lock";

static char *path_in(const struct run_folder *f, const char *name)
{
    char *path = NULL;

    return asprintf(&path, "%s/%s", f->path, name) < 0 ? NULL : path;
}

/* ---- looking ---- */

/* What this program leaves in a folder before there is an index, or if it is killed while it
 * writes. */
static bool is_passing(const char *name)
{
    size_t n = strlen(name);

    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, lock_name) == 0 ||
           (n > 4 && strcmp(name + n - 4, ".tmp") == 0 &&
            (strncmp(name, "index.json.", 11) == 0 || strncmp(name, "results.", 8) == 0 ||
             strspn(name, "0123456789abcdef") == 12));
}

/* Whether there is anything else; a folder that cannot be read is told elsewhere. */
static bool has_others(const struct run_folder *f)
{
    DIR *dir = opendir(f->path);
    struct dirent *entry;
    bool others = false;

    while (dir != NULL && !others && (entry = readdir(dir)) != NULL)
        others = !is_passing(entry->d_name);
    if (dir != NULL)
        closedir(dir);
    return others;
}

/* Everything in a file, or nothing. */
static bool read_whole(const char *path, struct text *out)
{
    FILE *file = fopen(path, "re");
    char bytes[16384];
    size_t n;
    bool good;

    if (file == NULL)
        return false;
    while ((n = fread(bytes, 1, sizeof(bytes), file)) > 0)
        text_add_bytes(out, bytes, n);
    good = ferror(file) == 0;
    fclose(file);
    return good;
}

/* Reads the index, if there is one. */
static enum epa_status find_index(struct run_folder *f, struct epa_error *err)
{
    char *path = path_in(f, "index.json");
    enum epa_status status = EPA_OK;

    if (path == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a path");
    if (access(path, F_OK) == 0 && f->cli->resume) {
        status = batch_index_read(path, &f->old, err);
        if (status == EPA_OK && !read_whole(path, &f->was))
            status = epa_fail(err, EPA_ERR_SYSTEM, "%s: %s", path, strerror(errno));
        if (status == EPA_ERR_CONFIG) {
            struct epa_error why = *err;

            *err = (struct epa_error){EPA_OK, ""};
            epa_fail(err, why.status,
                     "%s; so --resume cannot know what was done: --force without --resume "
                     "begins again",
                     why.text);
        }
    } else if (access(path, F_OK) == 0 && !f->cli->force) {
        status = epa_fail(err, EPA_ERR_CONFIG,
                          "%s %s: a batch is there already: --resume goes on with it, "
                          "--force begins again and removes its results",
                          option, f->path);
    } else if (access(path, F_OK) != 0 && !f->cli->force && has_others(f)) {
        status = epa_fail(err, EPA_ERR_CONFIG,
                          "%s %s: the folder is not empty and has no index.json: it is no "
                          "results folder; --force writes into it all the same",
                          option, f->path);
    }
    free(path);
    return status;
}

static enum epa_status look_at(struct run_folder *f, struct epa_error *err)
{
    char *inside = path_in(f, "index.json");
    struct stat at;
    enum epa_status status;

    if (inside == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a path");
    if (stat(f->path, &at) != 0) /* its own folder must be there */
        status = report_file_check(option, f->path, f->cli->force, err);
    else if (!S_ISDIR(at.st_mode))
        status = epa_fail(err, EPA_ERR_CONFIG, "%s %s: that is no folder", option, f->path);
    else
        status = report_file_check(option, inside, true, err);
    free(inside);
    return status;
}

static void warn_of_others(const struct run_folder *f, const char *key, const char *here)
{
    const char *there = batch_index_last(&f->old, key);

    if (!f->cli->quiet && *there != 0 && strcmp(there, here) != 0)
        fprintf(stderr,
                "epa2a: %swarning:%s --resume: what is done was done by %s %s, and this is %s: "
                "the table will have both\n",
                colour_on(stderr, COLOUR_WARNING), colour_off(stderr),
                strcmp(key, "host") == 0 ? "host" : "version", there, here);
}

enum epa_status run_folder_look(struct run_folder *f, const struct cli *cli, const char *verb,
                                struct runs *runs, struct epa_error *err)
{
    size_t n = cli->out_dir == NULL ? 0 : strlen(cli->out_dir);
    enum epa_status status;

    *f = (struct run_folder){.cli = cli, .verb = verb, .runs = runs, .lock_fd = -1};
    f->old.exit_code = f->index.exit_code = -1;
    if (cli->out_dir == NULL)
        return EPA_OK;
    while (n > 1 && cli->out_dir[n - 1] == '/')
        n--;
    f->path = strndup(cli->out_dir, n);
    f->result = calloc(runs->n + 1, sizeof(*f->result));
    if (f->path == NULL || f->result == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs", runs->n);
    status = look_at(f, err);
    if (status == EPA_OK)
        status = find_index(f, err);
    if (status == EPA_OK && f->was.bytes > 0)
        status = run_folder_match(f, err);
    return status;
}

/* ---- opening ---- */

static enum epa_status lock(struct run_folder *f, struct epa_error *err)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char *path = path_in(f, lock_name);
    int failed;

    if (path == NULL)
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
    if (fcntl(f->lock_fd, F_GETLK, &all) == 0 && all.l_pid > 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s %s: process %ld writes into this folder; wait for its end, or "
                        "choose another",
                        option, f->path, (long)all.l_pid);
    return epa_fail(err, EPA_ERR_CONFIG,
                    "%s %s: another process writes into this folder; wait for its end, or "
                    "choose another",
                    option, f->path);
}

/* Between the look and the lock somebody else may have been here. */
static enum epa_status look_again(struct run_folder *f, struct epa_error *err)
{
    struct text now = {0};
    char *path = path_in(f, "index.json");
    bool is = path != NULL && read_whole(path, &now);
    bool same = f->cli->resume
                    ? now.bytes == f->was.bytes &&
                          (now.bytes == 0 || memcmp(now.data, f->was.data, now.bytes) == 0)
                    : !is || f->cli->force;

    text_free(&now);
    free(path);
    if (same)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_CONFIG,
                    "%s %s: another process has written into this folder just now; start "
                    "again",
                    option, f->path);
}

static void plan(struct run_folder *f, const struct documents *d)
{
    for (uint32_t at = 0; at < f->runs->n; at++) {
        uint32_t i = f->runs->order[at];
        struct index_run *to = &f->index.run[i];

        if (f->runs->run[i].done) { /* as it was found */
            to->at = at;
            continue;
        }
        *to = (struct index_run){
            .row = d->row[i], .nth = f->runs->run[i].nth, .at = at, .exit_code = -1};
    }
}

/* Rows say who by the files of today; all else is as it was found. */
static enum epa_status fill_documents(struct run_folder *f, struct documents *d,
                                      struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < f->runs->n && status == EPA_OK; i++) {
        struct report_row *to = &d->row[i], was = *to;

        if (!f->runs->run[i].done)
            continue;
        *to = f->index.run[i].row;
        to->who = was.who;
        to->file = was.file;
        to->label = was.label;
        to->id = f->index.run[i].row.id;
        to->end = REPORT_OK;
        f->index.run[i].row = *to;
        status = documents_take(d, &f->result[i], err);
        text_free(&f->result[i]);
    }
    return status;
}

/* What was half written when somebody was killed; with --force, results of another batch. */
static void clean(const struct run_folder *f)
{
    DIR *dir = opendir(f->path);
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        const char *name = entry->d_name;

        if ((name[0] != '.' && is_passing(name)) || (!f->cli->resume && index_is_result_name(name)))
            unlinkat(dirfd(dir), name, 0);
    }
    if (dir != NULL)
        closedir(dir);
}

static enum epa_status write_index(struct run_folder *f, struct epa_error *err)
{
    struct text text = {0};
    char *path = path_in(f, "index.json");
    enum epa_status status = path == NULL ? epa_fail(err, EPA_ERR_NOMEM, "no memory for a path")
                                          : batch_index_text(&f->index, &text, err);

    if (status == EPA_OK)
        status = report_file(option, path, true, text.data, text.bytes, err);
    text_free(&text);
    free(path);
    return status;
}

static enum epa_status begin_index(struct run_folder *f, const struct documents *d,
                                   const char *host, struct epa_error *err)
{
    time_t now = time(NULL);
    struct tm utc;
    char started[40] = "";

    if (gmtime_r(&now, &utc) != NULL)
        strftime(started, sizeof(started), "%Y-%m-%dT%H:%M:%SZ", &utc);
    f->index.verb = f->verb;
    f->index.order = runs_order_name(f->runs->how);
    f->index.seed = f->runs->seed;
    f->index.commands = f->old.commands;
    f->old.commands = NULL;
    plan(f, d);
    return batch_index_command(&f->index, f->cli->line, started, host, err);
}

enum epa_status run_folder_open(struct run_folder *f, struct documents *d, const char *host,
                                struct epa_error *err)
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
    f->ours = true;
    if (f->index.run == NULL)
        f->index.run = calloc(f->runs->n + 1, sizeof(*f->index.run));
    if (f->index.run == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs", f->runs->n);
    f->index.n = f->runs->n;
    warn_of_others(f, "version", EPA2A_VERSION);
    warn_of_others(f, "host", host);
    if (!f->cli->quiet && f->cli->resume && f->was.bytes == 0)
        fprintf(stderr, "epa2a: --resume: no batch is in %s yet: this is its begin\n", f->path);
    status = fill_documents(f, d, err);
    if (status == EPA_OK)
        status = begin_index(f, d, host, err);
    if (status == EPA_OK)
        status = write_index(f, err);
    if (status == EPA_OK)
        clean(f);
    return status;
}

/* ---- runs ---- */

/* A full disk is told once, and once more if it is full at the end. */
static bool tell(struct run_folder *f, enum epa_status status, const struct epa_error *err,
                 bool last)
{
    if (status == EPA_OK)
        return true;
    if (!f->reported || last)
        fprintf(stderr, "epa2a: error: %s\n", err->text);
    f->reported = true;
    return false;
}

static enum epa_status write_result(struct run_folder *f, uint32_t i, struct epa_error *err)
{
    struct index_run *run = &f->index.run[i];
    struct text text = {0};
    char *path = path_in(f, run->result);
    enum epa_status status = path == NULL ? epa_fail(err, EPA_ERR_NOMEM, "no memory for a path")
                                          : report_json_text(&text, &f->result[i], NULL, err);

    if (status == EPA_OK)
        status = report_file(option, path, true, text.data, text.bytes, err);
    text_free(&text);
    free(path);
    return status;
}

/* Whatever is not on disk yet. The index must not tell of what is not there. */
static bool write_all(struct run_folder *f, bool last)
{
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < f->index.n && status == EPA_OK; i++) {
        if (f->result[i].bytes == 0)
            continue;
        status = write_result(f, i, &err);
        if (status == EPA_OK)
            text_free(&f->result[i]);
    }
    if (status == EPA_OK)
        status = write_index(f, &err);
    return tell(f, status, &err, last);
}

bool run_folder_begin(struct run_folder *f, uint32_t i)
{
    if (!f->ours)
        return true;
    f->index.run[i].status = INDEX_RUNNING;
    return write_all(f, false);
}

bool run_folder_end(struct run_folder *f, uint32_t i, const struct report_row *row,
                    struct text *result, int exit_code)
{
    struct index_run *run = f->ours ? &f->index.run[i] : NULL;

    if (run == NULL)
        return true;
    run->row = *row;
    run->exit_code = exit_code;
    run->status = row->end == REPORT_SKIPPED                                   ? INDEX_SKIPPED
                  : row->end == REPORT_OK && exit_code == 0 && row->id != NULL ? INDEX_DONE
                                                                               : INDEX_FAILED;
    if (result->bytes > 0 && row->id != NULL) {
        index_result_name(row->id, run->nth, run->result);
        f->result[i] = *result;
        *result = (struct text){0};
    }
    return write_all(f, false);
}

bool run_folder_last(struct run_folder *f, int exit_code)
{
    if (!f->ours)
        return true;
    f->index.exit_code = exit_code;
    return write_all(f, true);
}

void run_folder_finish(struct run_folder *f)
{
    for (uint32_t i = 0; f->result != NULL && i < f->runs->n; i++)
        text_free(&f->result[i]);
    free(f->result);
    batch_index_finish(&f->index);
    batch_index_finish(&f->old);
    text_free(&f->was);
    free(f->path);
    if (f->lock_fd >= 0)
        close(f->lock_fd);
    *f = (struct run_folder){.lock_fd = -1};
}
