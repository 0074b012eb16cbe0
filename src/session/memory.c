/* How much memory is left for the ranks. Heaps are memfd: they are memory like any other
 * and count in MemAvailable and in the cgroup; the size of the tmpfs at /dev/shm does not
 * bound them, as they live in a mount of the kernel's own. So nothing but arithmetic stops
 * a heap that is too large before the machine is out of memory. */
#include "session/memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The files of one version of control groups. */
struct cgroup {
    const char *mount, *limit, *usage, *cache;
};

static const struct cgroup version1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                       "memory.usage_in_bytes", "total_inactive_file"};
static const struct cgroup version2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                       "inactive_file"};

/* A file that holds one number; "max" and anything else is no number. */
static bool number_in(const char *path, uint64_t *out)
{
    FILE *file = fopen(path, "re");
    bool read;

    if (file == NULL)
        return false;
    read = fscanf(file, "%" SCNu64, out) == 1;
    fclose(file);
    return read;
}

/* "name value" in a file such as memory.stat, or "name: value kB" in meminfo. */
static bool named_number(const char *path, const char *name, uint64_t *out)
{
    char word[128];
    uint64_t value;
    bool found = false;
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return false;
    while (!found && fscanf(file, "%127s %" SCNu64 "%*[^\n]", word, &value) == 2) {
        found = strcmp(word, name) == 0;
        if (found)
            *out = value;
    }
    fclose(file);
    return found;
}

/* Cached files that nobody uses are given back before a limit is felt. */
static uint64_t room_of(const char *root, const struct cgroup *v, const char *path)
{
    char file[1024];
    uint64_t limit, used = 0, cache = 0;

    snprintf(file, sizeof(file), "%s%s%s/%s", root, v->mount, path, v->limit);
    if (!number_in(file, &limit) || limit >= UINT64_MAX / 4)
        return UINT64_MAX;
    snprintf(file, sizeof(file), "%s%s%s/%s", root, v->mount, path, v->usage);
    number_in(file, &used);
    snprintf(file, sizeof(file), "%s%s%s/memory.stat", root, v->mount, path);
    named_number(file, v->cache, &cache);
    used -= cache < used ? cache : used;
    return limit > used ? limit - used : 0;
}

/* From the group of this process up to the top: each may have a limit. In a container the
 * path may not be there, and the top is the container's own group. */
static uint64_t least_room(const char *root, const struct cgroup *v, char *path)
{
    uint64_t least = UINT64_MAX;

    for (;;) {
        uint64_t room = room_of(root, v, path);
        char *slash = strrchr(path, '/');

        least = room < least ? room : least;
        if (slash == NULL)
            return least;
        *slash = 0;
    }
}

static uint64_t cgroup_room(const char *root)
{
    char name[512], line[512];
    uint64_t least = UINT64_MAX;
    FILE *file;

    snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
    file = fopen(name, "re");
    if (file == NULL)
        return least;
    while (fgets(line, sizeof(line), file) != NULL) {
        char *controllers = strchr(line, ':');
        char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        const struct cgroup *v;
        uint64_t room;

        if (path == NULL)
            continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        if (strcmp(controllers + 1, "memory") != 0 && controllers[1] != 0)
            continue;
        v = controllers[1] != 0 ? &version1 : &version2;
        room = least_room(root, v, path);
        least = room < least ? room : least;
    }
    fclose(file);
    return least;
}

uint64_t memory_available(const char *root, char *which, uint32_t room)
{
    char path[512];
    uint64_t available = UINT64_MAX, group = cgroup_room(root);

    snprintf(which, room, "MemAvailable");
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    if (named_number(path, "MemAvailable:", &available))
        available <<= 10;
    if (group < available) {
        snprintf(which, room, "room in the cgroup");
        return group;
    }
    return available;
}

uint64_t memory_address_space(const char *root)
{
    struct rlimit limit;
    uint64_t pages = 0, used;
    char path[512];

    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    snprintf(path, sizeof(path), "%s/proc/self/statm", root);
    number_in(path, &pages);
    used = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}
