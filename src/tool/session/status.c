/* A status page. A command writes it; a reader copies and evaluates it. The chunks of the page are
 * allocated one after the other and freed together with the last one: sessions follow each other, or
 * all exist before the first one runs. A reader trusts no value, since the writer may be
 * stopped during a write, or may be another program. */
#include "session/status.h"
#include "base/memory.h"
#include "session/session.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <epa2a/wait.h>

enum { TURNS = 200 }; /* reads of a head during a write, 1 ms apart */

struct status_page {
    int file;
    size_t page, used, head_bytes;
    uint32_t chunks; /* number of allocated chunks */
    struct status_page_head *head;
};

static size_t whole_pages(const struct status_page *b, size_t bytes)
{
    return (bytes + b->page - 1) / b->page * b->page;
}

/* Returns true if the limit of file sizes permits the size: the kernel kills a process that exceeds
 * the limit. */
static bool may_grow_to(size_t bytes)
{
    struct rlimit most;

    return getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur == RLIM_INFINITY ||
           bytes <= most.rlim_cur;
}

int status_page_file(const struct status_page *b)
{
    return b->file;
}

void *status_page_map(struct status_page *b, size_t bytes, uint64_t *out_at)
{
    size_t at = b->used, end = at + whole_pages(b, bytes);
    void *p;

    if (!may_grow_to(end) || ftruncate(b->file, (off_t)end) != 0)
        return NULL;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->file, (off_t)at);
    if (p == MAP_FAILED)
        return NULL;
    b->used = end;
    b->chunks++;
    *out_at = at;
    return p;
}

void status_page_unmap(struct status_page *b, void *p, size_t bytes)
{
    munmap(p, bytes);
    if (--b->chunks > 0)
        return;
    b->used = b->head_bytes;
    /* The next chunk must contain zeros. Shortening a memfd cannot fail. */
    if (ftruncate(b->file, (off_t)b->used) != 0)
        b->used = b->head_bytes;
}

void status_page_destroy(struct status_page *b)
{
    if (b == NULL)
        return;
    if (b->head != NULL)
        munmap(b->head, b->head_bytes);
    if (b->file >= 0)
        close(b->file);
    free(b);
}

enum epa_status status_page_create(struct status_page **out, struct epa_error *err)
{
    struct status_page *b = memory_alloc(1, sizeof(*b));
    struct status_page_head *head = MAP_FAILED;

    b->page = (size_t)sysconf(_SC_PAGESIZE);
    b->head_bytes = b->used = whole_pages(b, sizeof(*b->head));
    b->file = memfd_create(STATUS_PAGE_NAME, MFD_CLOEXEC);
    if (b->file >= 0 && may_grow_to(b->head_bytes) && ftruncate(b->file, (off_t)b->head_bytes) == 0)
        head = mmap(NULL, b->head_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->file, 0);
    if (head == MAP_FAILED) {
        status_page_destroy(b);
        return epa_fail(err, EPA_ERR_SYSTEM, "no memfd for a status page: %s", strerror(errno));
    }
    b->head = head;
    snprintf(head->version, sizeof(head->version), "%s", EPA2A_RELEASE);
    head->rank_bytes = sizeof(struct session_rank);
    head->notes_bytes = sizeof(struct session_notes);
    head->pid = (int32_t)getpid();
    head->began_ns = epa_now_ns();
    memcpy(head->magic, STATUS_PAGE_MAGIC, sizeof(head->magic));
    *out = b;
    return EPA_OK;
}

void status_page_show(struct status_page *b, const struct status_page_run *run)
{
    struct status_page_head *head = b->head;

    /* Release, and again below: pairs with read_head(). A reader that finds the same even number
     * before and after has read one consistent run. */
    __atomic_add_fetch(&head->turn, 1, __ATOMIC_ACQ_REL);
    if (run == NULL)
        head->run.began_ns = 0;
    else
        head->run = *run;
    __atomic_add_fetch(&head->turn, 1, __ATOMIC_RELEASE);
}

/* ---- the page of another process ---- */

static bool read_at(int file, uint64_t at, void *out, size_t bytes)
{
    return at <= INT64_MAX && pread(file, out, bytes, (off_t)at) == (ssize_t)bytes;
}

/* Uses read() instead of a mapping, since the owner may shorten the file at any time. */
static enum epa_status read_head(int file, struct status_page_head *out, struct epa_error *err)
{
    struct status_page_head again;

    for (uint32_t i = 0; i < TURNS; i++) {
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
        return epa_fail(
            err, EPA_ERR_SYSTEM, "process %d cannot be read: %s%s", (int)pid, strerror(errno),
            errno == EACCES || errno == EPERM ? "; only its own user and root may read its status"
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
        (void)epa_fail(err, EPA_ERR_SYSTEM, "process %d cannot be read: %s", (int)pid,
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
        s.rank = calloc(run->ranks, sizeof(*s.rank));
        if (s.rank == NULL)
            return epa_fail(err, EPA_ERR_NOMEM, "has %u ranks; no memory to read them", run->ranks);
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

/* ---- text ---- */

const char *status_state_name(enum status_state state)
{
    static const char *const name[] = {
        [STATUS_ABSENT] = "absent",   [STATUS_SET_UP] = "set-up",   [STATUS_RUNNING] = "running",
        [STATUS_WAITING] = "waiting", [STATUS_STOPPED] = "stopped", [STATUS_GONE] = "gone",
        [STATUS_DONE] = "done",       [STATUS_FAILED] = "failed",
    };

    return name[state];
}

const char *status_stage(const struct status *s, uint32_t rank)
{
    return s->rank[rank].state == STATUS_ABSENT
               ? "-"
               : session_stage(&s->notes, s->rank[rank].said.stage);
}

void status_waits_for(const struct status *s, uint32_t rank, char *out, size_t room)
{
    const struct session_wait *w = &s->rank[rank].said.waiting;
    double since = s->now_ns > w->since_ns ? (double)(s->now_ns - w->since_ns) / 1e9 : 0;
    unsigned long long seen = w->seen, wanted = w->wanted;
    char whom[32] = "", whose[40] = "", which[16] = "";

    snprintf(out, room, "-");
    if (!s->rank[rank].waits)
        return;
    if (w->peer != EPA_WAIT_NOBODY) {
        snprintf(whom, sizeof(whom), "rank %u", w->peer);
        snprintf(whose, sizeof(whose), " of rank %u", w->peer);
    }
    switch ((enum epa_wait_kind)w->kind) {
    case EPA_WAIT_SIGNAL:
        snprintf(out, room, "%s%s for %.2f s: signal %u is %llu, wants %llu",
                 w->what[0] == '\0' ? "a signal" : w->what, whose, since, w->number, seen, wanted);
        break;
    case EPA_WAIT_BARRIER:
    case EPA_WAIT_SET_UP:
        snprintf(out, room, "%s for %.2f s: reached barrier %llu%s, wants %llu",
                 whom[0] == '\0' ? "other ranks" : whom, since, seen,
                 w->kind == EPA_WAIT_SET_UP ? " of set-up" : "", wanted);
        break;
    case EPA_WAIT_DATA:
        if (w->number != EPA_WAIT_NOBODY)
            snprintf(which, sizeof(which), " %u", w->number);
        snprintf(out, room, "%s%s%s for %.2f s: its flag is %llu, wants %llu", w->what, which,
                 whose, since, seen, wanted);
        break;
    case EPA_WAIT_PUTS:
        snprintf(out, room, "its puts%s%s to be in place for %.2f s", whom[0] == '\0' ? "" : " to ",
                 whom, since);
        break;
    case EPA_WAIT_CALL:
        snprintf(out, room, "%s%s for %.2f s", w->what, whose, since);
        break;
    case EPA_WAIT_DEVICE:
        snprintf(out, room, "its device for %.2f s", since);
        break;
    case EPA_WAIT_NOTHING:
        break;
    }
}

const char *status_verb(const struct status *s)
{
    return s->head.run.verb <= VERB_VERIFY ? session_verb_name(s->head.run.verb) : "?";
}

void status_print_head(const struct status *s, struct text *out)
{
    struct status_page_run run = s->head.run;
    double elapsed = (double)(s->now_ns - s->head.began_ns) / 1e9;

    if (run.began_ns == 0) {
        text_add(out, "pid %d: between two runs, after %.1f s", s->head.pid, elapsed);
        return;
    }
    text_clean(run.file);
    text_clean(run.label);
    text_add(out, "pid %d: %s %s%s%s, run %u of %u, %.1f s; %u iterations", s->head.pid,
             status_verb(s), run.file, run.label[0] == '\0' ? "" : ": ", run.label, run.number,
             run.of, elapsed, run.iterations);
    if (run.warmup > 0)
        text_add(out, " after %u of warm-up", run.warmup);
    if (run.place_size > 1)
        text_add(out, "; process of rank %u of %u", run.place_rank, run.place_size);
}

void status_print(const struct status *s, const char *before, struct text *out)
{
    text_add(out, "%s", before);
    status_print_head(s, out);
    text_add(out, "\n");
    if (s->n > 0)
        text_add(out, "%s%6s %7s %-12s %-8s %-16s %9s %9s  %s\n", before, "rank", "pid", "host",
                 "state", "stage", "iteration", "samples", "waits for");
    for (uint32_t r = 0; r < s->n; r++) {
        const struct status_rank *rank = &s->rank[r];
        char waits[160], host[sizeof(rank->said.host)];

        if (s->head.run.place_size > 1 && rank->state == STATUS_ABSENT)
            continue; /* a rank of another process */
        snprintf(host, sizeof(host), "%s", rank->said.host);
        status_waits_for(s, r, waits, sizeof(waits));
        text_clean(host);
        text_clean(waits);
        text_add(out, "%s%6u %7d %-12s %-8s %-16s %9llu %9llu  %s\n", before, r, rank->said.pid,
                 host[0] == '\0' ? "-" : host, status_state_name(rank->state), status_stage(s, r),
                 (unsigned long long)rank->said.iteration, (unsigned long long)rank->said.samples,
                 waits);
    }
}
