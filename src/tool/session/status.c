/* Reads the status page of a command: copies and evaluates it. The reader trusts no value, since the
 * writer may be stopped during a write, or may be another program. */
#include "session/status.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <epa2a/wait.h>

enum { HEAD_READS = 200 }; /* reads of a head during a write, 1 ms apart */

/* ---- the page of another process ---- */

static bool read_at(int file, uint64_t at, void *out, size_t bytes)
{
    return at <= INT64_MAX && pread(file, out, bytes, (off_t)at) == (ssize_t)bytes;
}

/* Uses read() instead of a mapping, since the owner may shorten the file at any time. */
static enum epa_status read_head(int file, struct status_page_head *out, struct epa_error *err)
{
    struct status_page_head again;

    for (uint32_t i = 0; i < HEAD_READS; i++) {
        if (!read_at(file, 0, out, sizeof(*out)) || !read_at(file, 0, &again, sizeof(again)) ||
            memcmp(out->magic, STATUS_PAGE_MAGIC, sizeof(out->magic)) != 0)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "runs an epa2a of an unknown version; query it with the epa2a "
                            "that it runs");
        out->version[sizeof(out->version) - 1] = '\0';
        out->run.file[sizeof(out->run.file) - 1] = '\0';
        out->run.label[sizeof(out->run.label) - 1] = '\0';
        if (strcmp(out->version, EPA2A_RELEASE) != 0 ||
            out->rank_bytes != sizeof(struct session_rank) ||
            out->notes_bytes != sizeof(struct session_notes))
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "runs epa2a %s, and this is another build, %s; query it with the "
                            "epa2a that it runs",
                            out->version, EPA2A_RELEASE);
        if (out->turn == again.turn && out->turn % 2 == 0)
            return EPA_OK;
        usleep(1000);
    }
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "is between two runs; try again");
}

/* Opens the status page of a process: finds it among the descriptors in /proc/PID/fd by name. */
static enum epa_status open_page(pid_t pid, int *out, struct epa_error *err)
{
    static const char is[] = "/memfd:" STATUS_PAGE_NAME " ";
    const struct dirent *entry;
    char path[48], to[sizeof(is) + 16];
    bool found = false;
    DIR *folder;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    folder = opendir(path);
    if (folder == NULL && (errno == ENOENT || errno == ESRCH))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "process %d does not exist; 'epa2a status' lists the processes that run "
                        "an experiment",
                        (int)pid);
    if (folder == NULL)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "process %d cannot be read: %s%s",
                              (int)pid, strerror(errno),
                              errno == EACCES || errno == EPERM
                                  ? "; only its own user and root may read its status"
                                  : "");
    *out = -1;
    while (!found && (entry = readdir(folder)) != NULL) {
        ssize_t n = readlinkat(dirfd(folder), entry->d_name, to, sizeof(to) - 2);

        to[n < 0 ? 0 : n] = ' '; /* "(deleted)" may follow */
        to[n < 0 ? 1 : n + 1] = '\0';
        found = strncmp(to, is, sizeof(is) - 1) == 0;
        if (found) /* O_NONBLOCK: in a container any file, also a FIFO, may have this name */
            *out = openat(dirfd(folder), entry->d_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    }
    if (found && *out < 0)
        (void)epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "process %d cannot be read: %s", (int)pid,
                             strerror(errno));
    closedir(folder);
    if (*out >= 0)
        return EPA_OK;
    return found ? EPA_ERR_SYSTEM
                 : epa_fail(err, EPA_ERR_CONFIG,
                            "process %d runs no experiment of epa2a; 'epa2a status' lists the "
                            "processes that run one",
                            (int)pid);
}

/* ---- ranks ---- */

enum {
    RANKS_MOST = 65536,
    TRIES = 20, /* reads of a note during a write */
};

/* Returns the state of a process as in /proc/PID/stat: 'R', 'S', 'T', 't', 'Z' and so on; 0: the process
 * does not exist. */
static char process_state(int32_t pid)
{
    char path[48], line[512], *end;
    FILE *file;
    size_t n;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    n = fread(line, 1, sizeof(line) - 1, file);
    fclose(file);
    line[n] = '\0';
    end = strrchr(line, ')'); /* the name of the process may contain brackets */
    return end != NULL && end[1] == ' ' ? end[2] : 0;
}

/* A stopped or dead process overrides the state that the rank recorded. The process of a rank on
 * another host is not visible. */
static enum status_state state_of_rank(const struct status *s, const struct status_rank *rank)
{
    const struct session_rank *said = &rank->said;
    char process = 'R', host[sizeof(said->host)] = "";

    if (said->pid == 0)
        return STATUS_ABSENT;
    if (said->status != EPA_OK)
        return STATUS_FAILED;
    if (said->finished != 0)
        return STATUS_DONE;
    if (gethostname(host, sizeof(host) - 1) != 0 || strcmp(host, said->host) == 0)
        process = process_state(said->pid);
    if (process == 0 || process == 'Z' || process == 'X')
        return STATUS_GONE;
    if (process == 'T' || process == 't')
        return STATUS_STOPPED;
    if (rank->waits)
        return STATUS_WAITING;
    return s->notes.n_stages == 0 ? STATUS_SET_UP : STATUS_RUNNING;
}

static void read_rank(int file, struct status *s, uint32_t r)
{
    struct status_rank *rank = &s->rank[r];
    struct session_rank *said = &rank->said;
    uint64_t at = s->head.run.block_at + r * s->head.run.block_bytes;

    for (uint32_t i = 0; i < TRIES; i++) {
        struct session_wait *note = &said->waiting;
        uint64_t turn = 1, note_at = at + offsetof(struct session_rank, waiting);

        memset(said, 0, sizeof(*said));
        if (!read_at(file, at, said, sizeof(*said)) || !read_at(file, note_at, &turn, sizeof(turn)))
            return;
        rank->waits = note->kind != EPA_WAIT_NOTHING && note->stage == said->stage &&
                      note->iteration == said->iteration;
        if (turn == note->turn && turn % 2 == 0)
            break;
    }
    said->host[sizeof(said->host) - 1] = '\0';
    said->text[sizeof(said->text) - 1] = '\0';
    said->waiting.what[sizeof(said->waiting.what) - 1] = '\0';
    rank->state = state_of_rank(s, rank);
}

enum epa_status status_read(int file, struct status *out, struct epa_error *err)
{
    struct status s = {.now_ns = epa_now_ns()};
    const struct status_page_run *run = &s.head.run;
    enum epa_status status = read_head(file, &s.head, err);

    if (status != EPA_OK)
        return status;
    if (run->began_ns != 0 && run->ranks > 0 && run->ranks <= RANKS_MOST) {
        s.rank = aligned_alloc(_Alignof(struct status_rank), run->ranks * sizeof(*s.rank));
        if (s.rank == NULL)
            return epa_fail(err, EPA_ERR_NOMEM, "has %u ranks; no memory to read them", run->ranks);
        memset(s.rank, 0, run->ranks * sizeof(*s.rank));
        s.n = run->ranks;
        if (!read_at(file, run->notes_at, &s.notes, sizeof(s.notes)))
            memset(&s.notes, 0, sizeof(s.notes));
    }
    if (s.notes.n_stages > SESSION_STAGES)
        s.notes.n_stages = SESSION_STAGES;
    for (uint32_t i = 0; i < SESSION_STAGES; i++)
        s.notes.stage[i][sizeof(s.notes.stage[i]) - 1] = '\0';
    for (uint32_t r = 0; r < s.n; r++)
        read_rank(file, &s, r);
    *out = s;
    return EPA_OK;
}

void status_finish(struct status *s)
{
    free(s->rank);
    *s = (struct status){0};
}

/* ---- commands ---- */

enum epa_status status_read_pid(pid_t pid, struct status *out, struct epa_error *err)
{
    struct epa_error why = {EPA_OK, ""};
    enum epa_status status;
    int file = -1;

    status = open_page(pid, &file, err);
    if (status != EPA_OK)
        return status;
    status = status_read(file, out, &why);
    close(file);
    if (status != EPA_OK)
        return epa_fail(err, status, "process %d %s", (int)pid, why.text);
    return EPA_OK;
}

/* Returns true if `name` is the first process of a command of this user. Other processes of the
 * command, such as ranks, have the same page. */
static bool is_command(const char *name, struct status *out)
{
    struct epa_error ignored = {EPA_OK, ""};
    char path[300];
    struct stat at;
    pid_t pid = (pid_t)atoi(name);

    snprintf(path, sizeof(path), "/proc/%s", name);
    if (!isdigit((unsigned char)name[0]) || stat(path, &at) != 0 || at.st_uid != geteuid() ||
        status_read_pid(pid, out, &ignored) != EPA_OK)
        return false;
    if (out->head.pid == (int32_t)pid)
        return true;
    status_finish(out);
    return false;
}

enum epa_status status_each(void (*visit)(void *arg, const struct status *), void *arg,
                            struct epa_error *err)
{
    const struct dirent *entry;
    DIR *folder = opendir("/proc");

    if (folder == NULL || access("/proc/self", F_OK) != 0) {
        if (folder != NULL)
            closedir(folder);
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "cannot list commands: /proc is not mounted; mount it");
    }
    while ((entry = readdir(folder)) != NULL) {
        struct status status;

        if (!is_command(entry->d_name, &status))
            continue;
        visit(arg, &status);
        status_finish(&status);
    }
    closedir(folder);
    return EPA_OK;
}
