/* Who may decide what a file holds: its owner, whoever may write to it, and whoever may
 * put another one in its place, which goes for each folder above it. The idea: the walk
 * holds each folder open while the next is looked at, so the answer is about what was
 * opened, whatever is renamed meanwhile; and once it succeeds, nobody else can make the
 * path mean another file. */
#include "plugin/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *type_words(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "a folder";
    case S_IFLNK:
        return "a symbolic link";
    case S_IFIFO:
        return "a pipe";
    case S_IFSOCK:
        return "a socket";
    default:
        return "a device";
    }
}

/* `what` begins the sentence. POSIX ACLs that let others write show in the group bits. */
static enum epa_status check_owner(const struct stat *stat, const char *what, bool may_be_sticky,
                                   struct epa_error *err)
{
    bool sticky = (stat->st_mode & S_ISVTX) != 0 && may_be_sticky;

    if (stat->st_uid != 0 && stat->st_uid != geteuid())
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s belongs to user %u, neither to root nor to you", what,
                        (unsigned)stat->st_uid);
    if ((stat->st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "%s can be written by others (mode %04o)", what,
                        (unsigned)(stat->st_mode & 07777));
    return EPA_OK;
}

/* Opens the next folder of the walk; real[0..end) is its path, *name its last part. */
static enum epa_status step(int above, const char *name, const char *real, size_t end, int *out,
                            struct epa_error *err)
{
    char what[PATH_MAX + 32];
    struct stat stat;
    enum epa_status status;
    int fd = openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    snprintf(what, sizeof(what), "the folder %.*s", (int)end, real);
    if (fd < 0 || fstat(fd, &stat) != 0) {
        status = epa_fail(err, EPA_ERR_UNSUPPORTED, "%s: %s", what, strerror(errno));
        if (fd >= 0)
            close(fd);
        return status;
    }
    status = check_owner(&stat, what, real[end] != '\0', err);
    if (status != EPA_OK)
        close(fd);
    else
        *out = fd;
    return status;
}

/* real[] is absolute and free of links, "." and "..". */
static enum epa_status walk(char *real, int *out_fd, struct epa_error *err)
{
    size_t end = 1, start;
    int fd = -1;
    /* "/" alone ends at 1; for the rule on sticky folders it is the last only then. */
    enum epa_status status = step(AT_FDCWD, "/", real, end, &fd, err);

    while (status == EPA_OK && real[end] != '\0') {
        char name[NAME_MAX + 1];
        int next = -1;

        start = end;
        end += strcspn(real + start, "/");
        snprintf(name, sizeof(name), "%.*s", (int)(end - start), real + start);
        status = step(fd, name, real, end, &next, err);
        close(fd);
        fd = next;
        end += real[end] == '/';
    }
    if (status == EPA_OK)
        *out_fd = fd;
    return status;
}

enum epa_status trust_folder(const char *path, int *out_fd, char *real, size_t real_bytes,
                             struct epa_error *err)
{
    char *resolved = realpath(path, NULL);
    enum epa_status status;

    if (resolved == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "the folder %s: %s", path, strerror(errno));
    if (strlen(resolved) >= real_bytes)
        status = epa_fail(err, EPA_ERR_UNSUPPORTED, "the path of its folder is too long");
    else
        status = walk(resolved, out_fd, err);
    if (status == EPA_OK)
        strcpy(real, resolved);
    free(resolved);
    return status;
}

/* The first look (O_PATH) opens nothing that could block or act, such as a pipe or a
 * device; the second is at what will be read. */
static enum epa_status open_checked(int folder_fd, const char *name, int flags, int *out,
                                    struct epa_error *err)
{
    struct stat stat;
    enum epa_status status;
    int fd = openat(folder_fd, name, flags | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &stat) != 0) {
        status =
            epa_fail(err, EPA_ERR_UNSUPPORTED, "the file cannot be opened: %s", strerror(errno));
    } else if (!S_ISREG(stat.st_mode)) {
        status = epa_fail(err, EPA_ERR_UNSUPPORTED, "the file is %s", type_words(stat.st_mode));
    } else {
        status = check_owner(&stat, "the file", false, err);
    }
    if (status != EPA_OK && fd >= 0)
        close(fd);
    else if (status == EPA_OK)
        *out = fd;
    return status;
}

enum epa_status trust_file(int folder_fd, const char *name, int *out_fd, struct epa_error *err)
{
    int fd = -1;
    enum epa_status status = open_checked(folder_fd, name, O_PATH, &fd, err);

    if (status != EPA_OK)
        return status;
    close(fd);
    return open_checked(folder_fd, name, O_RDONLY | O_NONBLOCK, out_fd, err);
}
