/* A results folder. results.jsonl has a line for each finished run, appended and synced before the
 * next run begins, so all measurements survive any end of this program. Readers ignore an incomplete
 * last line. The file is also the index for --resume, which skips successful runs and drops the
 * lines of all other runs.
 *
 * The lock is an fcntl() lock: it belongs to this process only, so ranks that outlive the process
 * for a moment do not block --resume, as they would with flock(). It also works over NFS. */
#include "cli/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "cli/cli_fail.h"
#include "cli/runs.h"
#include "report/results_json.h"
#include "report/result_parts.h"
#include "report/rows.h"

static const char option[] = "--out-dir";

static const char lock_name[] = ".lock";

/* Returns true if the folder holds foreign files. Other checks report an unreadable folder. */
static bool has_foreign_files(const struct run_folder *f)
{
    DIR *dir = opendir(f->path);
    struct dirent *entry;
    bool others = false;
    long pid;

    while (dir != NULL && !others && (entry = readdir(dir)) != NULL)
        others = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                 strcmp(entry->d_name, lock_name) != 0 && !file_is_temporary(entry->d_name, &pid);
    if (dir != NULL)
        closedir(dir);
    return others;
}

/* Finds the run with the id of an old line, if possible with its label. Prefers a run without a line
 * so far (not `taken`). Returns a taken run for a second line of its label, as in two concatenated
 * files. */
static struct run *find_run(const struct runs *runs, const bool *taken,
                            const struct results_run *was)
{
    struct run *found = NULL, *again = NULL;

    for (uint32_t i = 0; i < runs->n; i++) {
        struct run *run = &runs->run[i];
        bool same_label = strcmp(run->label, was->label) == 0;

        if (run->x == NULL || strcmp(run->x->id, was->id) != 0)
            continue;
        if (same_label && !taken[i])
            return run;
        if (same_label)
            again = run;
        else if (!taken[i] && found == NULL)
            found = run;
    }
    return again != NULL ? again : found;
}

/* Assigns the lines of the folder to runs. The last line of a run counts. */
static enum epa_status match_old_runs(struct run_folder *f, const char *verb, struct epa_error *err)
{
    bool *taken = memory_alloc(f->runs->n, sizeof(*taken));
    enum epa_status status = EPA_OK;

    for (uint32_t k = 0; k < f->old.n && status == EPA_OK; k++) {
        const struct results_run *was = &f->old.run[k];
        struct run *run = find_run(f->runs, taken, was);

        if (strcmp(was->verb, verb) != 0) {
            status = epa_fail(err, EPA_ERR_CONFIG,
                              "--resume: the batch in %s was run by '%.20s', not by '%s'", f->path,
                              was->verb, verb);
        } else if (run == NULL) {
            status = epa_fail(err, EPA_ERR_CONFIG,
                              "--resume: the batch in %s is a different one: it has '%.60s' "
                              "(%.12s), which this command does not have. Use the files, --set and "
                              "--only of that batch",
                              f->path, was->label, was->id[0] != '\0' ? was->id : "no id");
        } else {
            taken[run - f->runs->run] = true;
            run->done = strcmp(was->status, "ok") == 0 ? was : NULL;
        }
    }
    free(taken);
    return status;
}

/* Reads the results of the folder for --resume. */
static enum epa_status read_old_results(struct run_folder *f, struct epa_error *err)
{
    struct epa_error why = {EPA_OK, ""};
    enum epa_status status;

    f->old.keeps_records = true;
    status = results_read(f->path, &f->old, &why);
    if (status != EPA_OK)
        epa_fail(err, status, "%s%s", why.text,
                 status != EPA_ERR_CONFIG ? ""
                                          : "; --resume needs these results: start over by --force "
                                            "without --resume");
    return status;
}

enum epa_status run_folder_read(struct run_folder *f, const struct cli *cli, const char *verb,
                                struct runs *runs, struct epa_error *err)
{
    size_t n = cli->out_dir == NULL ? 0 : strlen(cli->out_dir);
    enum epa_status status;

    *f = (struct run_folder){.cli = cli, .runs = runs, .lock_fd = -1, .fd = -1};
    if (cli->out_dir == NULL)
        return EPA_OK;
    while (n > 1 && cli->out_dir[n - 1] == '/')
        n--;
    f->path = memory_printf("%.*s", (int)n, cli->out_dir);
    f->file = memory_printf("%s/results.jsonl", f->path);
    if (!cli->resume || stat(f->file, &f->was) != 0) {
        f->was.st_ino = 0;
        return EPA_OK;
    }
    status = read_old_results(f, err);
    return status == EPA_OK ? match_old_runs(f, verb, err) : status;
}

enum epa_status run_folder_check(struct run_folder *f, struct epa_error *err)
{
    const struct cli *cli = f->cli;
    struct stat at;
    enum epa_status status;

    if (f->path == NULL)
        return EPA_OK;
    if (stat(f->path, &at) != 0)
        return folder_check(option, f->path, err);
    if (!S_ISDIR(at.st_mode))
        return epa_fail(err, EPA_ERR_CONFIG, "%s %s: not a directory", option, f->path);
    status = file_check(option, f->file, true, err);
    if (status == EPA_OK)
        status = folder_documents_check(f->path, err);
    if (status != EPA_OK)
        return status;
    /* With --resume f->was is the state of the file that run_folder_read() has read. */
    if (!cli->resume && stat(f->file, &f->was) != 0)
        f->was.st_ino = 0;
    if (f->was.st_ino != 0 && !cli->resume && !cli->force)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s %s: the folder already has a batch: --resume continues it, --force "
                        "starts over and removes its results",
                        option, f->path);
    if (f->was.st_ino != 0)
        return EPA_OK;
    if (cli->resume && has_foreign_files(f))
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "--resume: %s is missing, and the folder is not empty: restore the file, or "
            "start over by --force without --resume",
            f->file);
    if (!cli->force && has_foreign_files(f))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s %s: the folder is not empty and has no results.jsonl, so it is no "
                        "results folder; --force writes into it anyway",
                        option, f->path);
    return EPA_OK;
}

bool run_folder_order(const struct run_folder *f, enum runs_order *order, uint64_t *seed)
{
    const char *found = f->old.order != NULL ? f->old.order : "";

    for (enum runs_order how = RUNS_DECLARED; how <= RUNS_SHUFFLED; how++) {
        if (strcmp(found, runs_order_name(how)) != 0)
            continue;
        *order = how;
        *seed = f->old.order_seed;
        return true;
    }
    return false;
}

/* Creates a folder and locks it for this process until the caller closes *fd. */
static enum epa_status lock_folder(const char *folder, int *fd, struct epa_error *err)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    text_auto path = {0};
    enum epa_status status;
    int failed;

    status = folder_create(option, folder, err);
    if (status != EPA_OK)
        return status;
    text_add(&path, "%s/%s", folder, lock_name);
    *fd = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    failed = errno;
    if (*fd < 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, failed,
                              "%s %s: cannot write into the folder: %s", option, folder,
                              strerror(failed));
    if (fcntl(*fd, F_SETLK, &all) == 0)
        return EPA_OK;
    failed = errno;
    if (failed != EACCES && failed != EAGAIN) { /* Lustre without -o flock, NFS without lockd */
        text_warn("%s %s: this file system has no locks (%s): let no other epa2a write into the "
                  "folder",
                  option, folder, strerror(failed));
        return EPA_OK;
    }
    all.l_pid = 0;
    (void)fcntl(*fd, F_GETLK, &all);
    return epa_fail(err, EPA_ERR_CONFIG,
                    "%s %s: process %ld writes into this folder; wait for its end, or choose "
                    "another folder",
                    option, folder, (long)all.l_pid);
}

/* Fails if another process changed the folder between the check and the lock. */
static enum epa_status check_unchanged(const struct run_folder *f, struct epa_error *err)
{
    struct stat now;

    if (stat(f->file, &now) != 0)
        now.st_ino = 0;
    if (f->cli->force ||
        (now.st_ino == f->was.st_ino && (now.st_ino == 0 || now.st_size == f->was.st_size)))
        return EPA_OK;
    return epa_fail(err, EPA_ERR_CONFIG,
                    "%s %s: another process has just written into this folder; start again", option,
                    f->path);
}

static void warn_about_difference(const struct run_folder *f, const char *what, const char *there,
                                  const char *here)
{
    if (!f->cli->quiet && *there != 0 && strcmp(there, here) != 0)
        text_warn("--resume: earlier results are from %s %s, this is %s; the table will have both",
                  what, there, here);
}

/* Warns about the first finished run that had another launcher. */
static void warn_about_launcher(const struct run_folder *f)
{
    for (uint32_t i = 0; i < f->runs->n; i++) {
        const struct run *run = &f->runs->run[i];
        const char *there = run->done != NULL ? results_value(run->done, "launcher", "name") : NULL;

        if (there == NULL || strcmp(there, run->x->launcher.plugin->name) == 0)
            continue;
        warn_about_difference(f, "launcher", there, run->x->launcher.plugin->name);
        return;
    }
}

static void add_pending_line(struct run_folder *f, const struct documents *d, uint32_t i)
{
    documents_line(d, i, &f->pending);
}

/* Keeps the lines of finished runs and adds their results to the documents. */
static void keep_finished_runs(struct run_folder *f, struct documents *d)
{
    for (uint32_t i = 0; i < f->runs->n; i++) {
        const struct results_run *was = f->runs->run[i].done;

        if (was == NULL)
            continue;
        documents_add_saved(d, &d->row[i], was);
        add_pending_line(f, d, i);
    }
}

/* Removes temporary files of dead processes. A live process may be writing another output into the
 * folder. */
static void remove_temporary_files(const struct run_folder *f)
{
    DIR *dir = opendir(f->path);
    struct dirent *entry;
    long pid;

    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (file_is_temporary(entry->d_name, &pid) && kill((pid_t)pid, 0) != 0 && errno == ESRCH)
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
    status = lock_folder(f->path, &f->lock_fd, err);
    if (status == EPA_OK)
        status = check_unchanged(f, err);
    if (status != EPA_OK)
        return status;
    if (f->old.n > 0) {
        const struct results_run *newest = &f->old.run[f->old.n - 1];

        warn_about_difference(f, "version", newest->machine.version, EPA2A_RELEASE);
        warn_about_difference(f, "host", newest->machine.host, facts->machine->host);
        warn_about_launcher(f);
    }
    if (!f->cli->quiet && f->cli->resume && f->was.st_ino == 0)
        fprintf(stderr, "epa2a: --resume: %s has no batch yet; starting a new batch\n", f->path);
    remove_temporary_files(f);
    keep_finished_runs(f, d);
    status = file_write(option, f->file, true, &f->pending, err);
    text_free(&f->pending);
    if (status != EPA_OK)
        return status;
    f->fd = open(f->file, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (f->fd < 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "%s %s: %s", option, f->file,
                              strerror(errno));
    return EPA_OK;
}

bool run_folder_add(struct run_folder *f, const struct documents *d, uint32_t i, bool last)
{
    const struct file_stream stream = {option, f->file, f->fd};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;
    off_t end;

    if (f->fd < 0)
        return true;
    if (!last && documents_have_one(d))
        add_pending_line(f, d, i);
    if (f->pending.bytes == 0)
        return true;
    end = lseek(f->fd, 0, SEEK_END);
    status = file_stream_add(&stream, &f->pending, &err);
    if (status == EPA_OK && fsync(f->fd) != 0)
        status = epa_fail_errno(&err, EPA_ERR_SYSTEM, errno, "%s %s: %s", option, f->file,
                                strerror(errno));
    if (status == EPA_OK) {
        text_free(&f->pending);
        return true;
    }
    (void)!ftruncate(f->fd, end); /* removes the incomplete line */
    if (!f->reported || last)     /* reports a full disk once, and again at the end */
        cli_report_error(&err);
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
