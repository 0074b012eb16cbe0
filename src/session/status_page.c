/* Pieces of the board are given out one behind the other and taken back all at once, when the
 * last is given back: sessions come one after the other, or all before the first. */
#include "session/status_page.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"

enum { TURNS = 200 }; /* looks at a head that is being written, a millisecond apart */

struct status_page {
    int file;
    size_t page, used, head_bytes;
    uint32_t pieces; /* that are given out */
    struct status_page_head *head;
};

static size_t whole_pages(const struct status_page *b, size_t bytes)
{
    return (bytes + b->page - 1) / b->page * b->page;
}

/* A file that is too long for its user costs the process its life. */
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
    b->pieces++;
    *out_at = at;
    return p;
}

void status_page_unmap(struct status_page *b, void *p, size_t bytes)
{
    munmap(p, bytes);
    if (--b->pieces > 0)
        return;
    b->used = b->head_bytes;
    /* So that what comes next holds zeros. It cannot fail: the file becomes shorter. */
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

static enum epa_status map_head(struct status_page *b, struct epa_error *err)
{
    if (!may_grow_to(b->head_bytes))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "the limit of a file's size is too low");
    if (ftruncate(b->file, (off_t)b->head_bytes) == 0)
        b->head = mmap(NULL, b->head_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->file, 0);
    if (b->head == NULL || b->head == MAP_FAILED) {
        b->head = NULL;
        return epa_fail(err, EPA_ERR_SYSTEM, "mmap of a memfd: %s", strerror(errno));
    }
    return EPA_OK;
}

enum epa_status status_page_create(size_t rank_bytes, size_t notes_bytes, struct status_page **out,
                                   struct epa_error *err)
{
    struct status_page *b = calloc(1, sizeof(*b));
    enum epa_status status = EPA_OK;

    if (b == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a status page");
    b->page = (size_t)sysconf(_SC_PAGESIZE);
    b->head_bytes = b->used = whole_pages(b, sizeof(*b->head));
    b->file = memfd_create(STATUS_PAGE_NAME, MFD_CLOEXEC);
    if (b->file < 0)
        status = epa_fail(err, EPA_ERR_SYSTEM, "memfd_create: %s", strerror(errno));
    if (status == EPA_OK)
        status = map_head(b, err);
    if (status != EPA_OK) {
        status_page_destroy(b);
        return status;
    }
    snprintf(b->head->version, sizeof(b->head->version), "%s", EPA2A_VERSION);
    b->head->rank_bytes = (uint32_t)rank_bytes;
    b->head->notes_bytes = (uint32_t)notes_bytes;
    b->head->pid = (int32_t)getpid();
    b->head->began_ns = clock_ns();
    memcpy(b->head->magic, STATUS_PAGE_MAGIC, sizeof(b->head->magic));
    *out = b;
    return EPA_OK;
}

void status_page_show(struct status_page *b, const struct status_page_run *run)
{
    struct status_page_head *head = b->head;

    /* Release, and again below: who reads the same even number before and after has read
     * what belongs together, in read_head(). */
    __atomic_add_fetch(&head->turn, 1, __ATOMIC_ACQ_REL);
    if (run == NULL)
        head->run.began_ns = 0;
    else
        head->run = *run;
    __atomic_add_fetch(&head->turn, 1, __ATOMIC_RELEASE);
}

/* ---- of another process ---- */

/* By read() and not by a mapping: its owner may make it shorter at any time. */
static bool read_head(int file, struct status_page_head *out)
{
    return pread(file, out, sizeof(*out), 0) == (ssize_t)sizeof(*out) &&
           memcmp(out->magic, STATUS_PAGE_MAGIC, sizeof(out->magic)) == 0;
}

enum epa_status status_page_read(int file, size_t rank_bytes, size_t notes_bytes,
                                 struct status_page_head *out, struct epa_error *err)
{
    struct status_page_head again;

    for (uint32_t i = 0; i < TURNS; i++) {
        if (!read_head(file, out) || !read_head(file, &again))
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "is an epa2a whose version is not known here; ask it with the "
                            "epa2a that it runs");
        out->version[sizeof(out->version) - 1] = '\0';
        out->run.file[sizeof(out->run.file) - 1] = '\0';
        out->run.label[sizeof(out->run.label) - 1] = '\0';
        if (strcmp(out->version, EPA2A_VERSION) != 0 || out->rank_bytes != rank_bytes ||
            out->notes_bytes != notes_bytes)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "is epa2a %s, another build than this, which is %s; ask it "
                            "with the epa2a that it runs",
                            out->version, EPA2A_VERSION);
        if (out->turn == again.turn && out->turn % 2 == 0)
            return EPA_OK;
        usleep(1000);
    }
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "is between two runs, and has nothing to show");
}

/* Whether what that link names is a board. */
static bool is_status_page(int folder, const char *name)
{
    static const char is[] = "/memfd:" STATUS_PAGE_NAME;
    char to[sizeof(is) + 16];
    ssize_t n = readlinkat(folder, name, to, sizeof(to) - 1);

    if (n < (ssize_t)sizeof(is) - 1)
        return false;
    to[n] = '\0';
    return strncmp(to, is, sizeof(is) - 1) == 0 &&
           (to[sizeof(is) - 1] == '\0' || to[sizeof(is) - 1] == ' ');
}

static enum epa_status find_status_page(DIR *folder, pid_t pid, int *out, struct epa_error *err)
{
    const struct dirent *entry;

    while ((entry = readdir(folder)) != NULL) {
        if (!is_status_page(dirfd(folder), entry->d_name))
            continue;
        *out = openat(dirfd(folder), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (*out >= 0)
            return EPA_OK;
        return epa_fail(err, EPA_ERR_SYSTEM, "process %d cannot be read: %s", (int)pid,
                        strerror(errno));
    }
    return epa_fail(err, EPA_ERR_CONFIG,
                    "process %d runs no experiment of epa2a; 'epa2a status' lists those "
                    "that do",
                    (int)pid);
}

enum epa_status status_page_open(pid_t pid, int *out, struct epa_error *err)
{
    enum epa_status status;
    char path[48];
    DIR *folder;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    folder = opendir(path);
    if (folder == NULL && (errno == ENOENT || errno == ESRCH))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "there is no process %d; 'epa2a status' lists those that run an "
                        "experiment",
                        (int)pid);
    if (folder == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "process %d cannot be read: %s%s", (int)pid,
                        strerror(errno),
                        errno == EACCES || errno == EPERM
                            ? "; only its own user and root may ask for its status"
                            : "");
    status = find_status_page(folder, pid, out, err);
    closedir(folder);
    return status;
}
