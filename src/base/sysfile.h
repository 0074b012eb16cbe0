/* Files of /proc and /sys: one line, one number, one field, and what of memory they leave to this
 * process. `root` stands before the path: "" but in tests. What cannot be read is "" or 0, and
 * false. */
#ifndef SYSFILE_H
#define SYSFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first line, without what ends it. */
bool sysfile_line(const char *root, const char *path, char *out, size_t room);

/* The value of "key : value", "key: value" or "key 12", for its first occurrence. */
bool sysfile_field(const char *root, const char *path, const char *key, char *out, size_t room);

uint64_t sysfile_number(const char *root, const char *path);

/* The word in brackets of "always [madvise] never". */
void sysfile_chosen(const char *root, const char *path, char *out, size_t room);

/* How many numbers a list such as "0-3,8" names. */
uint32_t sysfile_list_count(const char *list);

/* Calls visit for the folder ("/sys/fs/cgroup/a/b") of each control group of this process that has
 * the controller, and for those above it up to the top: each may have a limit. version: 1 or 2. In
 * a container the folder may not be there, and the top is the container's own group. */
void sysfile_cgroups(const char *root, const char *controller,
                     void (*visit)(void *arg, const char *root, const char *folder, int version),
                     void *arg);

/* Bytes that all ranks together may still take: the least of MemAvailable and what the limits of
 * the cgroup and those above it leave. `which` gets the name of that limit; UINT64_MAX: nothing
 * could be read. */
uint64_t memory_available(const char *root, char *which, size_t room);

/* Room that RLIMIT_AS leaves to this process and to each that it forks; UINT64_MAX:
 * there is no limit. */
uint64_t memory_address_space(const char *root);

#endif
