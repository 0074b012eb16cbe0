/* Files by temporary names, links and renames. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MOST = 1 << 30 };

static bool is_stdout(const char *path)
{
    return strcmp(path, "-") == 0;
}

/* Everything up to the last slash; "." without one. */
static void folder_of(const char *path, char *out, size_t room)
{
    const char *slash = strrchr(path, '/');

    if (slash == NULL)
        snprintf(out, room, ".");
    else if (slash == path)
        snprintf(out, room, "/");
    else
        snprintf(out, room, "%.*s", (int)(slash - path), path);
}

static enum epa_status check_folder(const char *option, const char *path, struct epa_error *err)
{
    char folder[PATH_MAX], current[PATH_MAX];
    struct stat at;
    int failed = 0;

    folder_of(path, folder, sizeof(folder));
    if (stat(folder, &at) != 0)
        failed = errno;
    else if (!S_ISDIR(at.st_mode))
        failed = ENOTDIR;
    else if (path[0] != '/' && getcwd(current, sizeof(current)) == NULL)
        failed = errno; /* it is there as long as we are in it, but takes no file */
    else if (faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) != 0)
        failed = errno;
    if (failed == 0)
        return EPA_OK;
    return epa_fail(err, failed == ENOENT || failed == ENOTDIR ? EPA_ERR_CONFIG : EPA_ERR_SYSTEM,
                    "%s %s: cannot write into the folder %s: %s", option, path, folder,
                    strerror(failed));
}

enum epa_status file_check(const char *option, const char *path, bool force, struct epa_error *err)
{
    struct stat at;

    if (is_stdout(path))
        return EPA_OK;
    if (path[0] == 0 || strlen(path) >= PATH_MAX - 32)
        return epa_fail(err, EPA_ERR_CONFIG, "%s wants the name of a file, or -", option);
    if (stat(path, &at) != 0) {
        if (!force && lstat(path, &at) == 0)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s %s: there is a link that leads nowhere; --force "
                            "replaces it",
                            option, path);
        return check_folder(option, path, err);
    }
    if (S_ISDIR(at.st_mode))
        return epa_fail(err, EPA_ERR_CONFIG, "%s %s: that is a folder", option, path);
    if (!S_ISREG(at.st_mode))
        return EPA_OK;
    if (!force)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s %s: there is such a file already; --force overwrites it", option, path);
    return check_folder(option, path, err);
}

static int write_all(int fd, const struct text *text)
{
    for (size_t at = 0; at < text->bytes;) {
        ssize_t n = write(fd, text->data + at, text->bytes - at);

        if (n < 0 && errno != EINTR)
            return -1;
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static enum epa_status write_stdout(const struct text *text, struct epa_error *err)
{
    if (fwrite(text->data, 1, text->bytes, stdout) == text->bytes && fflush(stdout) == 0)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_SYSTEM, "standard output: %s", strerror(errno));
}

/* A new file beside `path`, with the rights that the user's umask gives. */
static int open_temporary(const char *path, char *name, size_t room)
{
    int fd = -1;

    for (unsigned i = 0; fd < 0 && i < 100; i++) {
        if ((size_t)snprintf(name, room, "%s.%ld-%u.tmp", path, (long)getpid(), i) >= room) {
            errno = ENAMETOOLONG;
            return -1;
        }
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            return -1;
    }
    return fd;
}

/* Without --force by link(), which fails where rename() would replace. File systems that
 * have no links get a rename after a last look. */
static int give_name(const char *temporary, const char *path, bool force)
{
    struct stat at;

    if (force)
        return rename(temporary, path);
    if (link(temporary, path) == 0) {
        unlink(temporary);
        return 0;
    }
    if (errno == EEXIST)
        return -1;
    if (lstat(path, &at) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(temporary, path);
}

static void sync_folder(const char *path)
{
    char folder[PATH_MAX];
    int fd;

    folder_of(path, folder, sizeof(folder));
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd); /* the data is safe by now; only the name could be lost with the power */
    close(fd);
}

static enum epa_status write_regular(const char *option, const char *path, bool force,
                                     const struct text *text, struct epa_error *err)
{
    char name[PATH_MAX];
    int fd = open_temporary(path, name, sizeof(name)), failed;

    if (fd < 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", option, path, strerror(errno));
    failed = write_all(fd, text) != 0 || fsync(fd) != 0 ? errno : 0;
    if (close(fd) != 0 && failed == 0)
        failed = errno;
    if (failed == 0 && give_name(name, path, force) != 0)
        failed = errno;
    if (failed == EEXIST) /* measured for minutes: not to be thrown away */
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s %s: such a file has appeared since the start; the result is "
                        "in %s",
                        option, path, name);
    if (failed != 0) {
        unlink(name);
        return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", option, path, strerror(failed));
    }
    sync_folder(path);
    return EPA_OK;
}

enum epa_status file_stream_open(struct file_stream *s, bool force, struct epa_error *err)
{
    struct stat at;
    bool is_file = stat(s->path, &at) != 0 || S_ISREG(at.st_mode);
    int how = O_WRONLY | O_CLOEXEC;

    s->fd = -1;
    if (is_stdout(s->path))
        return EPA_OK;
    /* Without O_NONBLOCK a pipe that nobody reads would not open. */
    how |= !is_file ? O_NONBLOCK : force ? O_CREAT | O_TRUNC : O_CREAT | O_EXCL;
    s->fd = open(s->path, how, 0666);
    if (s->fd < 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", s->option, s->path,
                        errno == ENXIO ? "nobody reads this pipe" : strerror(errno));
    fcntl(s->fd, F_SETFL, 0); /* a reader may be slow */
    return EPA_OK;
}

enum epa_status file_stream_add(const struct file_stream *s, const struct text *text,
                                struct epa_error *err)
{
    if (is_stdout(s->path))
        return write_stdout(text, err);
    if (write_all(s->fd, text) == 0)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", s->option, s->path, strerror(errno));
}

/* A device or a pipe has no name to be taken by a rename, and must not lose its own. */
enum epa_status file_write(const char *option, const char *path, bool force,
                           const struct text *text, struct epa_error *err)
{
    struct file_stream special = {option, path, -1};
    struct stat at;
    bool there = stat(path, &at) == 0;
    char *real;
    enum epa_status status;

    if (is_stdout(path))
        return write_stdout(text, err);
    if (there && !S_ISREG(at.st_mode)) {
        status = file_stream_open(&special, force, err);
        if (status == EPA_OK) {
            status = file_stream_add(&special, text, err);
            close(special.fd);
        }
        return status;
    }
    real =
        there ? realpath(path, NULL) : NULL; /* a link stays a link: what it leads to is replaced */
    status = write_regular(option, real != NULL ? real : path, force, text, err);
    free(real);
    return status;
}

enum epa_status file_read(const char *path, struct text *out, struct epa_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), failed;
    char bytes[16384];
    struct stat at;
    ssize_t n = 1;

    if (fd < 0 || fstat(fd, &at) != 0) {
        failed = errno;
    } else if (!S_ISREG(at.st_mode)) {
        close(fd);
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: is not a regular file", path);
    } else if (at.st_size > FILE_MOST) {
        close(fd);
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: has %lld MiB; up to %d are read", path,
                        (long long)at.st_size >> 20, FILE_MOST >> 20);
    } else {
        while (out->bytes <= FILE_MOST && (n = read(fd, bytes, sizeof(bytes))) > 0)
            text_add_bytes(out, bytes, (size_t)n);
        failed = n < 0 ? errno : 0;
    }
    if (fd >= 0)
        close(fd);
    return failed == 0 ? EPA_OK : epa_fail(err, EPA_ERR_SYSTEM, "%s: %s", path, strerror(failed));
}
