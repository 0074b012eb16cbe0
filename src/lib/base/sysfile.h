/* Values of files of /proc and /sys, limits of control groups, and free memory. The parameter `root`
 * is "", or a folder with other files for tests. */
#ifndef SYSFILE_H
#define SYSFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the first line, without its end of line. */
bool sysfile_line(const char *root, const char *path, char *out, size_t room);

/* Reads the value of "key : value", "key: value" or "key 12", for its first occurrence. */
bool sysfile_field(const char *root, const char *path, const char *key, char *out, size_t room);

uint64_t sysfile_number(const char *root, const char *path);

/* Reads the word in brackets of "always [madvise] never". */
void sysfile_chosen(const char *root, const char *path, char *out, size_t room);

/* Returns the count of numbers in a list such as "0-3,8". */
uint32_t sysfile_list_count(const char *list);

/* Calls visit for the folder ("/sys/fs/cgroup/a/b") of each control group of this process with the
 * controller, and for the groups above it up to the top: each may have a limit. version: 1 or 2. In
 * a container the folder may be missing; the top is then the container's own group. */
void sysfile_cgroups(const char *root, const char *controller,
                     void (*visit)(void *arg, const char *root, const char *folder, int version),
                     void *arg);

/* CPU quota of this process by its control groups, and the number of times that the kernel stopped
 * their processes at an exhausted quota (throttling), counted from the start of each group. */
struct cpu_quota {
    double cores;               /* of the smallest quota; NAN: no quota */
    uint64_t stops, stopped_ns; /* over all groups of this process and the groups above */
};
void cpu_quota_read(const char *root, struct cpu_quota *out);

/* Returns the bytes still available to all ranks together: the least of MemAvailable and the rest
 * under the limits of the cgroup and the groups above. `which` receives the name of that limit;
 * UINT64_MAX: no value was readable. */
uint64_t memory_available(const char *root, char *which, size_t room);

/* Returns the address space that RLIMIT_AS leaves to this process and to each of its forks;
 * UINT64_MAX: no limit. */
uint64_t memory_address_space(const char *root);

#endif
