/* Reads files of /proc and /sys line by line. A missing file has no value. */
#include "base/sysfile.h"

#include <ctype.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static FILE *open_under(const char *root, const char *path)
{
    char full[1024];

    snprintf(full, sizeof(full), "%s%s", root, path);
    return fopen(full, "re");
}

/* Allocates no memory, so that a missing value is not a failed allocation. */
bool sysfile_line(const char *root, const char *path, char *out, size_t room)
{
    char full[1024];
    ssize_t n;
    int fd;

    snprintf(full, sizeof(full), "%s%s", root, path);
    fd = open(full, O_RDONLY | O_CLOEXEC);
    out[0] = 0;
    if (fd < 0)
        return false;
    n = read(fd, out, room - 1);
    close(fd);
    out[n > 0 ? n : 0] = 0;
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

/* Parses lines of /proc/self/cgroup: "0::/user.slice" of version 2, "4:cpu,cpuacct:/x" of version
 * 1. */
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

/* ---- CPU time ---- */

/* Reads "200000 100000" in cpu.max of version 2, two files in version 1; "max" and -1 mean no
 * quota. */
static void read_quota(void *arg, const char *root, const char *folder, int version)
{
    struct cpu_quota *out = arg;
    double quota, period;
    char path[700], text[64], *end;

    snprintf(path, sizeof(path), "%s/%s", folder, version == 2 ? "cpu.max" : "cpu.cfs_quota_us");
    sysfile_line(root, path, text, sizeof(text));
    quota = strtod(text, &end);
    if (version == 1) {
        snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", folder);
        sysfile_line(root, path, text, sizeof(text));
        end = text;
    }
    period = strtod(end, NULL);
    if (!(quota > 0 && period > 0))
        return;
    if (!(out->cores <= quota / period))
        out->cores = quota / period;
    snprintf(path, sizeof(path), "%s/cpu.stat", folder);
    if (sysfile_field(root, path, "nr_throttled", text, sizeof(text)))
        out->stops += strtoull(text, NULL, 10);
    if (sysfile_field(root, path, version == 2 ? "throttled_usec" : "throttled_time", text,
                      sizeof(text)))
        out->stopped_ns += strtoull(text, NULL, 10) * (version == 2 ? 1000 : 1);
}

void cpu_quota_read(const char *root, struct cpu_quota *out)
{
    *out = (struct cpu_quota){.cores = NAN};
    sysfile_cgroups(root, "cpu", read_quota, out);
}

/* ---- memory ---- */

/* Adds unused cached files to the free bytes: the kernel reclaims them before it enforces a limit.
 * "max" means no limit. */
static void lower_available(void *arg, const char *root, const char *folder, int version)
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

/* Heaps are memfd: they count like other memory in MemAvailable and in the cgroup. The size of the
 * tmpfs at /dev/shm does not limit them, since they belong to an internal mount of the kernel. */
uint64_t memory_available(const char *root, char *which, size_t room)
{
    uint64_t available = UINT64_MAX, group = UINT64_MAX;
    char text[64];

    snprintf(which, room, "MemAvailable");
    if (sysfile_field(root, "/proc/meminfo", "MemAvailable", text, sizeof(text)))
        available = strtoull(text, NULL, 10) << 10;
    sysfile_cgroups(root, "memory", lower_available, &group);
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
