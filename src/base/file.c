/* Files by temporary names, links and renames. */
#include "base/file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

bool file_is_stdout(const char *path)
{
    return strcmp(path, "-") == 0;
}

bool stdout_is_unread(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    struct stat at;

    /* A terminal that hung up reports POLLERR, too, but its writes fail with EIO. */
    return fstat(STDOUT_FILENO, &at) == 0 && (S_ISFIFO(at.st_mode) || S_ISSOCK(at.st_mode)) &&
           poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
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

/* A link of another user, who can change where it leads. */
static bool is_foreign_link(const char *path)
{
    struct stat at;

    return lstat(path, &at) == 0 && S_ISLNK(at.st_mode) && at.st_uid != 0 && at.st_uid != geteuid();
}

static enum epa_status refuse_link(const char *option, const char *path, struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_CONFIG, "%s %s: that is a link of another user", option, path);
}

enum epa_status file_check(const char *option, const char *path, bool force, struct epa_error *err)
{
    struct stat at;

    if (file_is_stdout(path))
        return EPA_OK;
    if (path[0] == 0 || strlen(path) >= PATH_MAX - 32)
        return epa_fail(err, EPA_ERR_CONFIG, "%s wants the name of a file, or -", option);
    if (is_foreign_link(path))
        return refuse_link(option, path, err);
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
    failed = !write_whole(fd, text->data, text->bytes) || fsync(fd) != 0 ? errno : 0;
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
        return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", option, path, explain_errno(failed));
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
    if (file_is_stdout(s->path))
        return EPA_OK;
    if (is_foreign_link(s->path))
        return refuse_link(s->option, s->path, err);
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
    if (file_is_stdout(s->path))
        return write_stdout(text, err);
    if (write_whole(s->fd, text->data, text->bytes))
        return EPA_OK;
    return epa_fail(err, EPA_ERR_SYSTEM, "%s %s: %s", s->option, s->path, explain_errno(errno));
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

    if (file_is_stdout(path))
        return write_stdout(text, err);
    if (is_foreign_link(path))
        return refuse_link(option, path, err);
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

/* A file from the shell: standard input, or a pipe of <(command), which has a writer. */
static bool is_handed_over(const char *path)
{
    return strncmp(path, "/dev/stdin", 10) == 0 || strncmp(path, "/dev/fd/", 8) == 0 ||
           strncmp(path, "/proc/self/fd/", 14) == 0;
}

/* Editors and PowerShell begin a file of UTF-8 text with a byte order mark. */
static void drop_mark(struct text *text)
{
    size_t n = text_mark_bytes(text->data, text->bytes);

    if (n == 0)
        return;
    text->bytes -= n;
    memmove(text->data, text->data + n, text->bytes + 1);
}

enum epa_status file_read(const char *path, uint64_t most, struct text *out, struct epa_error *err)
{
    /* Without O_NONBLOCK a pipe that nobody writes to would not open. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    enum epa_status status = EPA_OK;
    char piece[1 << 14];
    struct stat at;
    ssize_t n = 1;

    *out = (struct text){0};
    text_add(out, "%s", "");
    if (fd < 0 || fstat(fd, &at) != 0 || fcntl(fd, F_SETFL, 0) != 0)
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(at.st_mode) && !S_ISDIR(at.st_mode) && !is_handed_over(path))
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s: it is not a regular file", path);
    else if (S_ISREG(at.st_mode) && (uint64_t)at.st_size > most)
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s: it has %lld MiB; up to %llu are read", path,
                          (long long)at.st_size >> 20, (unsigned long long)most >> 20);
    while (status == EPA_OK && n != 0 && out->bytes <= most) {
        n = read(fd, piece, sizeof(piece));
        text_add_bytes(out, piece, n > 0 ? (size_t)n : 0);
        if (n < 0 && errno != EINTR)
            status = epa_fail(err, EPA_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    }
    if (out->bytes > most)
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s: it is longer than %llu MiB", path,
                          (unsigned long long)most >> 20);
    if (fd >= 0)
        close(fd);
    drop_mark(out);
    return status;
}

/* ---- files of /proc and /sys ---- */

static FILE *open_under(const char *root, const char *path)
{
    char full[1024];

    snprintf(full, sizeof(full), "%s%s", root, path);
    return fopen(full, "re");
}

bool sysfile_line(const char *root, const char *path, char *out, size_t room)
{
    FILE *file = open_under(root, path);

    out[0] = 0;
    if (file == NULL)
        return false;
    if (fgets(out, (int)room, file) == NULL)
        out[0] = 0;
    fclose(file);
    out[strcspn(out, "\n")] = 0;
    return out[0] != 0;
}

bool sysfile_field(const char *root, const char *path, const char *key, char *out, size_t room)
{
    FILE *file = open_under(root, path);
    char line[1024];
    size_t n = strlen(key);

    out[0] = 0;
    if (file == NULL)
        return false;
    while (out[0] == 0 && fgets(line, sizeof(line), file) != NULL) {
        const char *at = line + n;

        if (strncmp(line, key, n) != 0)
            continue;
        at += strspn(at, " \t");
        if (*at == ':')
            at += 1 + strspn(at + 1, " \t");
        else if (at == line + n || !isdigit((unsigned char)*at))
            continue;
        snprintf(out, room, "%.*s", (int)strcspn(at, "\n"), at);
    }
    fclose(file);
    return out[0] != 0;
}

uint64_t sysfile_number(const char *root, const char *path)
{
    char line[64];

    return sysfile_line(root, path, line, sizeof(line)) ? strtoull(line, NULL, 10) : 0;
}

void sysfile_chosen(const char *root, const char *path, char *out, size_t room)
{
    char line[128];
    const char *open;

    out[0] = 0;
    sysfile_line(root, path, line, sizeof(line));
    open = strchr(line, '[');
    if (open != NULL)
        snprintf(out, room, "%.*s", (int)strcspn(open + 1, "]"), open + 1);
}

uint32_t sysfile_list_count(const char *list)
{
    uint32_t n = 0;

    while (*list >= '0' && *list <= '9') {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;

        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        n += last >= first ? (uint32_t)(last - first + 1) : 0;
        list = *end == ',' ? end + 1 : end;
    }
    return n;
}

static bool has_word(const char *list, const char *word)
{
    for (size_t n = strlen(word); list != NULL; list = strchr(list, ',')) {
        list += *list == ',';
        if (strncmp(list, word, n) == 0 && (list[n] == ',' || list[n] == 0))
            return true;
    }
    return false;
}

/* Lines of /proc/self/cgroup: "0::/user.slice" of version 2, "4:cpu,cpuacct:/x" of version 1. */
void sysfile_cgroups(const char *root, const char *controller,
                     void (*visit)(void *arg, const char *root, const char *folder, int version),
                     void *arg)
{
    FILE *file = open_under(root, "/proc/self/cgroup");
    char line[512], folder[600];

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        char *words = strchr(line, ':'), *path = words != NULL ? strchr(words + 1, ':') : NULL;
        int version, top;

        if (path == NULL)
            continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        version = words[1] == 0 ? 2 : 1;
        if (version == 1 && !has_word(words + 1, controller))
            continue;
        top = snprintf(folder, sizeof(folder), "/sys/fs/cgroup%s%s", version == 1 ? "/" : "",
                       version == 1 ? controller : "");
        snprintf(folder + top, sizeof(folder) - (size_t)top, "%s", path);
        visit(arg, root, folder, version);
        while (strlen(folder) > (size_t)top) {
            *strrchr(folder, '/') = 0;
            visit(arg, root, folder, version);
        }
    }
    if (file != NULL)
        fclose(file);
}

/* ---- memory ---- */

/* Cached files that nobody uses are given back before a limit is felt. "max" is no limit. */
static void take_least_room(void *arg, const char *root, const char *folder, int version)
{
    uint64_t *least = arg, limit, used, cache = 0, room;
    char path[700], text[64];

    snprintf(path, sizeof(path), "%s/%s", folder,
             version == 2 ? "memory.max" : "memory.limit_in_bytes");
    if (!sysfile_line(root, path, text, sizeof(text)) || !isdigit((unsigned char)text[0]))
        return;
    limit = strtoull(text, NULL, 10);
    if (limit >= UINT64_MAX / 4)
        return;
    snprintf(path, sizeof(path), "%s/%s", folder,
             version == 2 ? "memory.current" : "memory.usage_in_bytes");
    used = sysfile_number(root, path);
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    if (sysfile_field(root, path, version == 2 ? "inactive_file" : "total_inactive_file", text,
                      sizeof(text)))
        cache = strtoull(text, NULL, 10);
    used -= cache < used ? cache : used;
    room = limit > used ? limit - used : 0;
    *least = room < *least ? room : *least;
}

/* Heaps are memfd: they are memory like any other and count in MemAvailable and in the cgroup; the
 * size of the tmpfs at /dev/shm does not bound them, as they live in a mount of the kernel's
 * own. */
uint64_t memory_available(const char *root, char *which, size_t room)
{
    uint64_t available = UINT64_MAX, group = UINT64_MAX;
    char text[64];

    snprintf(which, room, "MemAvailable");
    if (sysfile_field(root, "/proc/meminfo", "MemAvailable", text, sizeof(text)))
        available = strtoull(text, NULL, 10) << 10;
    sysfile_cgroups(root, "memory", take_least_room, &group);
    if (group >= available)
        return available;
    snprintf(which, room, "room in the cgroup");
    return group;
}

uint64_t memory_address_space(const char *root)
{
    struct rlimit limit;
    uint64_t used;

    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    used = sysfile_number(root, "/proc/self/statm") * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}
