/* Files by temporary names, links and renames. An output has a place: its folder, which stays open,
 * and its name in this folder. file_check() and file_write() find the same place and the same
 * method of writing, so a check before a run holds for the write after it. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/output.h"
#include "base/sysfile.h"
#include "base/terminal.h"

enum {
    LINKS_MOST = 40, /* limit of the kernel for symbolic links */
    TEMPORARY_BYTES = 64,
    TEMPORARY_TRIES = 1000,
    MEMORY_UNCHECKED = 1 << 24 /* bytes that may be read without a check of the free memory */
};

/* ---- standard files ---- */

/* Opening /dev/stdout again would start at the beginning of a file that the shell has opened, and a
 * rename would remove its name. */
int file_descriptor(const char *path)
{
    static const char *const standard[] = {"/dev/stdin", "/dev/stdout", "/dev/stderr"};
    static const char *const folder[] = {"/dev/fd/", "/proc/self/fd/"};

    if (strcmp(path, "-") == 0)
        return STDOUT_FILENO;
    for (int fd = 0; fd < 3; fd++)
        if (strcmp(path, standard[fd]) == 0)
            return fd;
    for (size_t i = 0; i < sizeof(folder) / sizeof(folder[0]); i++) {
        size_t n = strlen(folder[i]),
               digits = strspn(path + (strncmp(path, folder[i], n) == 0 ? n : 0), "0123456789");

        if (strncmp(path, folder[i], n) == 0 && digits > 0 && digits < 9 &&
            path[n + digits] == '\0')
            return atoi(path + n);
    }
    return -1;
}

bool file_is_stdout(const char *path)
{
    return file_descriptor(path) == STDOUT_FILENO;
}

bool stdout_is_unread(void)
{
    struct pollfd out = {.fd = stdout_descriptor()};
    struct stat at;

    /* A terminal that hung up reports POLLERR, too, but its writes fail with EIO. */
    return fstat(out.fd, &at) == 0 && (S_ISFIFO(at.st_mode) || S_ISSOCK(at.st_mode)) &&
           poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

bool file_is_stream(const char *path)
{
    struct stat at;

    return file_descriptor(path) >= 0 || (stat(path, &at) == 0 && !S_ISREG(at.st_mode));
}

/* Descriptors from the shell stay open in programs that this one starts; our own do not. */
static enum epa_status check_descriptor(const char *option, const char *path, int fd,
                                        struct epa_error *err)
{
    int at = fd == STDOUT_FILENO ? stdout_descriptor() : fd;
    int flags = fcntl(at, F_GETFD), how = fcntl(at, F_GETFL);

    if (flags >= 0 && (fd <= STDERR_FILENO || (flags & FD_CLOEXEC) == 0) &&
        (how & O_ACCMODE) != O_RDONLY)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_CONFIG, "%s %s: descriptor %d is not open for writing", option,
                    path, fd);
}

/* ---- the place of an output ---- */

struct place {
    const char *option, *path;
    int folder; /* open for openat() and similar calls */
    char base[NAME_MAX + 1];
    enum way {
        WAY_NEW,      /* no file has the name */
        WAY_REPLACE,  /* by a rename */
        WAY_IN_PLACE, /* the name cannot be moved to another file: a mount point, for example */
        WAY_STREAM,   /* a device, a pipe or a socket */
    } way;
};

/* Returns the bytes of `path` up to the last slash, for messages; "." without one. */
static int folder_bytes(const char *path, const char **out)
{
    const char *slash = strrchr(path, '/');

    *out = slash == NULL ? "." : slash == path ? "/" : path;
    return slash == NULL || slash == path ? 1 : (int)(slash - path);
}

static enum epa_status fail_folder(const struct place *p, int error, struct epa_error *err)
{
    const char *folder;
    int n = folder_bytes(p->path, &folder);
    bool usage = error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG;
    bool missing = error == ENOENT && strchr(p->path, '/') != NULL;

    return epa_fail_errno(err, usage ? EPA_ERR_CONFIG : EPA_ERR_SYSTEM, error,
                          "%s %s: cannot write into the folder %.*s: %s%s", p->option, p->path, n,
                          folder, strerror(error),
                          missing ? "; create the folder first (mkdir -p)" : "");
}

/* Splits `path`, which is relative to p->folder, and enters its folder. Returns an error number. */
static int enter_folder(struct place *p, const char *path)
{
    const char *folder, *slash = strrchr(path, '/');
    const char *base = slash == NULL ? path : slash + 1;
    int n = folder_bytes(path, &folder), fd, failed;
    char *name;

    if (strlen(base) >= sizeof(p->base))
        return ENAMETOOLONG;
    name = memory_printf("%.*s", n, folder);
    fd = openat(p->folder, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    failed = fd < 0 ? errno : 0;
    free(name);
    if (failed != 0)
        return failed;
    if (p->folder >= 0)
        close(p->folder);
    p->folder = fd;
    memcpy(p->base, base, strlen(base) + 1);
    return 0;
}

/* Follows symbolic links: the target is written, and the link stays. */
static int follow_links(struct place *p)
{
    char target[PATH_MAX];
    int failed = 0;

    for (int i = 0; failed == 0; i++) {
        ssize_t n = readlinkat(p->folder, p->base, target, sizeof(target) - 1);

        if (n < 0)
            return errno == EINVAL ? 0 : errno;
        target[n] = '\0';
        failed = i == LINKS_MOST ? ELOOP : enter_folder(p, target);
    }
    return failed;
}

/* Returns true if a file keeps its name and rename() cannot replace it: a mount point (docker -v
 * FILE:FILE), a file that must not be removed, and a file of another user in a folder such as /tmp.
 * On kernels and containers without statx(), rename() itself fails. */
static bool keeps_name(const struct place *p, const struct stat *at)
{
    const uint64_t keeps = STATX_ATTR_MOUNT_ROOT | STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND;
    struct statx more;
    struct stat folder;

    if (statx(p->folder, p->base, AT_SYMLINK_NOFOLLOW, 0, &more) == 0 &&
        (more.stx_attributes & keeps) != 0)
        return true;
    return geteuid() != 0 && at->st_uid != geteuid() && fstat(p->folder, &folder) == 0 &&
           (folder.st_mode & S_ISVTX) != 0 && folder.st_uid != geteuid();
}

/* Returns true for a link of another user: its owner can change the target between two calls of
 * ours. */
static bool is_foreign_link(const struct stat *at)
{
    return S_ISLNK(at->st_mode) && at->st_uid != 0 && at->st_uid != geteuid();
}

static void place_finish(struct place *p)
{
    if (p->folder >= 0)
        close(p->folder);
    p->folder = -1;
}

static enum epa_status fail_name(const struct place *p, int error, struct epa_error *err)
{
    if (error == ENAMETOOLONG)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s %.40s...: the name is too long: a file has up to %d bytes, its path %d",
                        p->option, p->path, NAME_MAX, PATH_MAX - 1);
    return epa_fail_errno(err, EPA_ERR_SYSTEM, error, "%s %s: %s", p->option, p->path,
                          strerror(error));
}

/* Selects the method of writing for an existing file, or a dangling link. */
static enum epa_status select_write_method(struct place *p, const struct stat *at, bool force,
                                           struct epa_error *err)
{
    if (S_ISDIR(at->st_mode))
        return epa_fail(err, EPA_ERR_CONFIG, "%s %s: that is a folder", p->option, p->path);
    p->way = WAY_STREAM;
    if (!S_ISREG(at->st_mode) && !S_ISLNK(at->st_mode))
        return EPA_OK;
    if (!force)
        return epa_fail(err, EPA_ERR_CONFIG,
                        S_ISREG(at->st_mode)
                            ? "%s %s: there is such a file already; --force overwrites it"
                            : "%s %s: it is a dangling link; --force replaces it",
                        p->option, p->path);
    p->way = keeps_name(p, at) ? WAY_IN_PLACE : WAY_REPLACE;
    return EPA_OK;
}

/* Finds the place of an output. The caller finishes `out` after success and failure. */
static enum epa_status place_find(const char *option, const char *path, bool force,
                                  struct place *out, struct epa_error *err)
{
    struct stat at, target;
    int failed;

    *out = (struct place){.option = option, .path = path, .folder = AT_FDCWD};
    if (path[0] == '\0')
        return epa_fail(err, EPA_ERR_CONFIG, "%s wants the name of a file, or -", option);
    failed = enter_folder(out, path);
    if (failed != 0)
        return failed == ENAMETOOLONG ? fail_name(out, failed, err) : fail_folder(out, failed, err);
    if (out->base[0] == '\0')
        return epa_fail(err, EPA_ERR_CONFIG, "%s %s: that is a folder", option, path);
    if (fstatat(out->folder, out->base, &at, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? EPA_OK : fail_name(out, errno, err);
    if (is_foreign_link(&at))
        return epa_fail(err, EPA_ERR_CONFIG, "%s %s: that is a link of another user", option, path);
    if (S_ISLNK(at.st_mode) && fstatat(out->folder, out->base, &target, 0) == 0) {
        failed = follow_links(out);
        if (failed != 0)
            return fail_name(out, failed, err);
        at = target;
    }
    return select_write_method(out, &at, force, err);
}

/* ---- temporary files ---- */

/* Temporary names are short, so that a file system accepts them with every valid name, and have one
 * form, so that later runs find them. Signals that end the program are blocked while such a file
 * exists. */

bool file_is_temporary(const char *name, long *pid)
{
    unsigned number;
    int end = 0;

    return sscanf(name, "epa2a-%ld-%u.tmp%n", pid, &number, &end) == 2 && end > 0 &&
           name[end] == '\0';
}

static void block_ends(sigset_t *before)
{
    sigset_t ends;

    sigemptyset(&ends);
    sigaddset(&ends, SIGHUP);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, before);
}

static void saved_name(const char *temporary, char out[TEMPORARY_BYTES])
{
    snprintf(out, TEMPORARY_BYTES, "%.*s.saved", (int)strlen(temporary) - 4, temporary);
}

/* Creates a file with the permissions of the user's umask, and a number that no saved file has;
 * returns -1 with errno. */
static int open_temporary(const struct place *p, char name[TEMPORARY_BYTES])
{
    char saved[TEMPORARY_BYTES];
    struct stat at;
    int fd = -1;

    for (unsigned i = 0; fd < 0 && i < TEMPORARY_TRIES; i++) {
        snprintf(name, TEMPORARY_BYTES, "epa2a-%ld-%u.tmp", (long)getpid(), i);
        saved_name(name, saved);
        errno = EEXIST;
        if (fstatat(p->folder, saved, &at, AT_SYMLINK_NOFOLLOW) != 0)
            fd = openat(p->folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            return -1;
    }
    return fd;
}

static int open_in_place(const struct place *p)
{
    return openat(p->folder, p->base, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
}

/* Creates a file with the method of file_write() instead of access(): the result also covers
 * read-only file systems, quotas, and containers without faccessat2(). */
static enum epa_status check_place(const struct place *p, struct epa_error *err)
{
    char name[TEMPORARY_BYTES];
    sigset_t before;
    int fd = -1, failed = 0;

    if (p->way == WAY_STREAM)
        return EPA_OK;
    if (p->way != WAY_IN_PLACE) {
        block_ends(&before);
        fd = open_temporary(p, name);
        failed = fd < 0 ? errno : 0;
        if (fd >= 0)
            unlinkat(p->folder, name, 0);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (fd < 0 && p->way != WAY_NEW)
        fd = open_in_place(p);
    if (fd < 0)
        return p->way == WAY_IN_PLACE ? fail_name(p, errno, err) : fail_folder(p, failed, err);
    close(fd);
    return EPA_OK;
}

enum epa_status file_check(const char *option, const char *path, bool force, struct epa_error *err)
{
    int fd = file_descriptor(path);
    struct place place;
    enum epa_status status;

    if (fd >= 0)
        return check_descriptor(option, path, fd, err);
    status = place_find(option, path, force, &place, err);
    if (status == EPA_OK)
        status = check_place(&place, err);
    place_finish(&place);
    return status;
}

/* ---- folders ---- */

/* Returns the length of the next part of `path`, which ends at a slash or at the end of `path`:
 * a, a/b and a/b/c of a/b/c. `n`: length of the part before. Returns 0 after the last
 * part. */
static size_t next_part(const char *path, size_t n)
{
    n += strspn(path + n, "/");
    return path[n] == '\0' ? 0 : n + strcspn(path + n, "/");
}

enum epa_status folder_check(const char *option, const char *path, struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    bool missing = false;

    for (size_t n = next_part(path, 0); n != 0 && !missing; n = next_part(path, n)) {
        char *part = memory_printf("%.*s", (int)n, path);

        missing = access(part, F_OK) != 0;
        if (missing)
            status = file_check(option, part, false, err);
        free(part);
    }
    return status;
}

enum epa_status folder_create(const char *option, const char *path, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (size_t n = next_part(path, 0); n != 0 && status == EPA_OK; n = next_part(path, n)) {
        char *part = memory_printf("%.*s", (int)n, path);

        /* EEXIST: another rank or program has just created it. */
        if (access(part, F_OK) != 0 && mkdir(part, 0777) != 0 && errno != EEXIST)
            status =
                epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "%s %s: cannot create the folder %s: %s",
                               option, path, part, strerror(errno));
        free(part);
    }
    return status;
}

/* ---- writing ---- */

static const char *explain_errno(int error)
{
    return error == EFBIG ? "File too large (RLIMIT_FSIZE: ulimit -f)" : strerror(error);
}

static enum epa_status write_stdout(const struct text *text, struct epa_error *err)
{
    if ((text->bytes == 0 || fwrite(text->data, 1, text->bytes, stdout) == text->bytes) &&
        fflush(stdout) == 0)
        return EPA_OK;
    if (stdout_is_unread()) /* main() derives the exit code from it */
        return EPA_OK;
    return epa_fail(err, EPA_ERR_SYSTEM, "standard output: %s", explain_errno(errno));
}

/* Writes and syncs the text, and closes the file. Returns an error number. */
static int fill_file(int fd, const struct text *text)
{
    int failed = !write_whole(fd, text->data, text->bytes) || fsync(fd) != 0 ? errno : 0;

    if (close(fd) != 0 && failed == 0)
        failed = errno;
    return failed;
}

/* Writes over the old text: a failure leaves a part of the new or the old text. */
static int write_in_place(const struct place *p, const struct text *text)
{
    int fd = open_in_place(p), failed;

    if (fd < 0)
        return errno;
    failed = ftruncate(fd, 0) != 0 ? errno : 0;
    if (failed == 0)
        return fill_file(fd, text);
    close(fd);
    return failed;
}

/* Renames the temporary file. Without --force uses link(), which fails where rename() would replace
 * a file. File systems without links receive a rename after a last check. */
static int rename_temporary(const struct place *p, const char *temporary, bool force)
{
    struct stat at;

    if (!force) {
        if (linkat(p->folder, temporary, p->folder, p->base, 0) == 0) {
            unlinkat(p->folder, temporary, 0);
            return 0;
        }
        if (errno == EEXIST)
            return EEXIST;
        if (fstatat(p->folder, p->base, &at, AT_SYMLINK_NOFOLLOW) == 0)
            return EEXIST;
    }
    return renameat(p->folder, temporary, p->folder, p->base) == 0 ? 0 : errno;
}

static void sync_folder(const struct place *p)
{
    int fd = openat(p->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return;
    fsync(fd); /* the data is safe; a power failure could lose the name only */
    close(fd);
}

/* Keeps a complete temporary file that cannot receive its name under a name that is not temporary,
 * since measurements take minutes. */
static enum epa_status keep_temporary(const struct place *p, char name[TEMPORARY_BYTES], int failed,
                                      char **kept, struct epa_error *err)
{
    const char *folder;
    int n = folder_bytes(p->path, &folder);
    char saved[TEMPORARY_BYTES];
    char *path;

    saved_name(name, saved);
    if (renameat(p->folder, name, p->folder, saved) == 0)
        name = saved;
    path = strchr(p->path, '/') == NULL
               ? memory_printf("%s", name)
               : memory_printf("%.*s/%s", folder[1] == '\0' ? 0 : n, folder, name);
    if (failed == EEXIST)
        epa_fail(err, EPA_ERR_CONFIG,
                 "%s %s: such a file has appeared since the start; the result is in %s", p->option,
                 p->path, path);
    else
        epa_fail_errno(err, EPA_ERR_SYSTEM, failed, "%s %s: %s; the result is in %s", p->option,
                       p->path, strerror(failed), path);
    if (kept != NULL)
        *kept = path;
    else
        free(path);
    return err->status;
}

static enum epa_status write_regular(const struct place *p, bool force, const struct text *text,
                                     char **kept, struct epa_error *err)
{
    char name[TEMPORARY_BYTES];
    int fd = p->way == WAY_IN_PLACE ? -1 : open_temporary(p, name), failed, named;

    if (fd < 0) {
        failed = p->way == WAY_NEW ? errno : write_in_place(p, text);
        return failed == 0 ? EPA_OK
                           : epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", p->option, p->path,
                                      explain_errno(failed));
    }
    failed = fill_file(fd, text);
    if (failed != 0) {
        unlinkat(p->folder, name, 0);
        return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", p->option, p->path,
                        explain_errno(failed));
    }
    named = rename_temporary(p, name, force);
    if (named != 0 && p->way == WAY_REPLACE && write_in_place(p, text) == 0) {
        unlinkat(p->folder, name, 0);
        named = 0;
    }
    if (named != 0)
        return keep_temporary(p, name, named, kept, err);
    sync_folder(p);
    return EPA_OK;
}

enum epa_status file_stream_open(struct file_stream *s, bool force, struct epa_error *err)
{
    int how = O_WRONLY | O_CLOEXEC, fd = file_descriptor(s->path);
    struct place place;
    enum epa_status status;

    s->fd = -1;
    if (fd == STDOUT_FILENO)
        return EPA_OK;
    if (fd >= 0) {
        status = check_descriptor(s->option, s->path, fd, err);
        if (status == EPA_OK)
            s->fd = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        return status != EPA_OK || s->fd >= 0
                   ? status
                   : epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "%s %s: %s", s->option, s->path,
                                    strerror(errno));
    }
    status = place_find(s->option, s->path, force, &place, err);
    if (status == EPA_OK) {
        /* O_NONBLOCK: open() of a pipe without a reader must not block. */
        how |= place.way == WAY_STREAM ? O_NONBLOCK
               : place.way == WAY_NEW  ? O_CREAT | O_EXCL
                                       : O_CREAT | O_TRUNC;
        s->fd = openat(place.folder, place.base, how, 0666);
        if (s->fd < 0)
            status = epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "%s %s: %s", s->option, s->path,
                                    errno == ENXIO ? "this pipe has no reader" : strerror(errno));
        else
            fcntl(s->fd, F_SETFL, 0); /* a reader may be slow */
    }
    place_finish(&place);
    return status;
}

enum epa_status file_stream_add(const struct file_stream *s, const struct text *text,
                                struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    if (file_is_stdout(s->path))
        return write_stdout(text, err);
    output_begin(s->fd);
    if (!write_whole(s->fd, text->data, text->bytes))
        status =
            epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", s->option, s->path, explain_errno(errno));
    output_end();
    return status;
}

static enum epa_status write_stream(const char *option, const char *path, const struct text *text,
                                    struct epa_error *err)
{
    struct file_stream stream = {option, path, -1};
    enum epa_status status = file_stream_open(&stream, true, err);

    if (status != EPA_OK)
        return status;
    status = file_stream_add(&stream, text, err);
    if (stream.fd >= 0)
        close(stream.fd);
    return status;
}

enum epa_status file_write_or_keep(const char *option, const char *path, bool force,
                                   const struct text *text, char **kept, struct epa_error *err)
{
    struct place place;
    enum epa_status status;
    sigset_t before;

    if (file_descriptor(path) >= 0)
        return write_stream(option, path, text, err);
    status = place_find(option, path, true, &place, err);
    if (status == EPA_OK && place.way == WAY_STREAM) {
        status = write_stream(option, path, text, err);
    } else if (status == EPA_OK) {
        if (!force) /* keep a file that has appeared since the check */
            place.way = WAY_NEW;
        block_ends(&before);
        status = write_regular(&place, force, text, kept, err);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    place_finish(&place);
    return status;
}

enum epa_status file_write(const char *option, const char *path, bool force,
                           const struct text *text, struct epa_error *err)
{
    return file_write_or_keep(option, path, force, text, NULL, err);
}

/* Returns true for a file from the shell: standard input, or a pipe of <(command), which has a
 * writer. */
static bool is_handed_over(const char *path)
{
    return strcmp(path, "-") == 0 || strncmp(path, "/dev/stdin", 10) == 0 ||
           strncmp(path, "/dev/fd/", 8) == 0 || strncmp(path, "/proc/self/fd/", 14) == 0;
}

/* Removes the byte order mark with which editors and PowerShell begin UTF-8 text. */
static void drop_mark(struct text *text)
{
    size_t n = text_mark_bytes(text->data, text->bytes);

    if (n == 0)
        return;
    text->bytes -= n;
    memmove(text->data, text->data + n, text->bytes + 1);
}

enum epa_status file_open(const char *path, int *fd, uint64_t *bytes, struct epa_error *err)
{
    /* Without O_NONBLOCK, open() would wait for a writer of a pipe. */
    int file = open(strcmp(path, "-") == 0 ? "/dev/stdin" : path,
                    O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    enum epa_status status = EPA_OK;
    struct stat at;

    if (file < 0 || fstat(file, &at) != 0 || fcntl(file, F_SETFL, 0) != 0)
        status = epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "%s: %s", path, strerror(errno));
    else if (S_ISDIR(at.st_mode))
        status = epa_fail_errno(err, EPA_ERR_SYSTEM, EISDIR, "%s: %s", path, strerror(EISDIR));
    else if (!S_ISREG(at.st_mode) && !is_handed_over(path))
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s: it is not a regular file", path);
    if (status != EPA_OK) {
        if (file >= 0)
            close(file);
        return status;
    }
    *fd = file;
    *bytes = S_ISREG(at.st_mode) ? (uint64_t)at.st_size : UINT64_MAX;
    return EPA_OK;
}

enum epa_status file_fits_memory(const char *path, uint64_t bytes, struct epa_error *err)
{
    char limit[64] = "room in RLIMIT_AS";
    uint64_t room = memory_address_space(""), available;

    if (bytes <= MEMORY_UNCHECKED)
        return EPA_OK;
    if (bytes <= room)
        available = memory_available("", limit, sizeof(limit));
    else
        available = room;
    if (bytes <= available)
        return EPA_OK;
    return epa_fail_key(err, EPA_ERR_NOMEM, EPA_LIMIT_NAMED,
                        "%s: reading it needs %llu MiB of memory; %s: %llu MiB", path,
                        (unsigned long long)bytes >> 20, limit,
                        (unsigned long long)available >> 20);
}

/* Reports the line and column of the zero byte at `at`. */
static enum epa_status fail_zero_byte(const char *path, const struct text *text, size_t at,
                                      struct epa_error *err)
{
    size_t line = 1, column = 1;

    for (size_t i = 0; i < at; i++) {
        column = text->data[i] == '\n' ? 1 : column + 1;
        line += text->data[i] == '\n';
    }
    return epa_fail(err, EPA_ERR_CONFIG,
                    "%s:%zu:%zu: a zero byte, which no text file has: the file is binary, or was "
                    "not written completely",
                    path, line, column);
}

static enum epa_status read_into(const char *path, uint64_t most, bool is_text, struct text *out,
                                 struct epa_error *err)
{
    enum epa_status status;
    char piece[1 << 14];
    const char *zero;
    uint64_t bytes;
    ssize_t n = 1;
    int fd = -1;

    *out = (struct text){0};
    text_add(out, "%s", "");
    status = file_open(path, &fd, &bytes, err);
    if (status == EPA_OK && bytes != UINT64_MAX && bytes > most)
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s: the file has %llu MiB, above the limit of %llu",
                          path, (unsigned long long)bytes >> 20, (unsigned long long)most >> 20);
    while (status == EPA_OK && n != 0 && out->bytes <= most) {
        n = read(fd, piece, sizeof(piece));
        if (n < 0 && errno != EINTR)
            status = epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "%s: %s", path, strerror(errno));
        if (n <= 0)
            continue;
        zero = is_text ? memchr(piece, 0, (size_t)n) : NULL;
        if (out->bytes == 0 && zero == NULL && bytes != UINT64_MAX)
            status = file_fits_memory(path, bytes, err);
        text_add_bytes(out, piece, (size_t)n);
        if (zero != NULL)
            status =
                fail_zero_byte(path, out, out->bytes - (size_t)n + (size_t)(zero - piece), err);
    }
    if (status == EPA_OK && out->bytes > most)
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s: it is longer than %llu MiB", path,
                          (unsigned long long)most >> 20);
    if (fd >= 0)
        close(fd);
    drop_mark(out);
    return status;
}

enum epa_status file_read(const char *path, uint64_t most, struct text *out, struct epa_error *err)
{
    return read_into(path, most, false, out, err);
}

enum epa_status file_read_text(const char *path, uint64_t most, struct text *out,
                               struct epa_error *err)
{
    return read_into(path, most, true, out, err);
}
