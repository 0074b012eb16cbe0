/* Files that survive: one appears under its name only when all of it is on disk, and never in the
 * place of another without `force`; a program that is killed, or a disk that is full, leaves what
 * was there before. A device or a pipe is written to as it is, and "-" is standard output.
 * `option`, such as "--json", begins what is said. */
#ifndef FILE_H
#define FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

#include "base/text.h"

/* Whether a path stands for standard output: "-", /dev/stdout and its like. */
bool file_is_stdout(const char *path);
/* Standard output is a pipe or a socket, and its reader has closed it, as `head` does. Writes to it
 * fail then, and the functions below take them as done. */
bool stdout_is_unread(void);
/* Whether text for a path cannot be written over later: a descriptor, a device or a pipe. */
bool file_is_stream(const char *path);
/* Before anything runs: refuses an existing file without `force`, and an output that file_write()
 * could not write: it creates a file in the folder, and removes it. */
enum epa_status file_check(const char *option, const char *path, bool force, struct epa_error *);
/* Written to a temporary file beside `path`, synced and renamed. With `force` a file that keeps its
 * name, such as a mount point, is written in place. A text that cannot get its name stays
 * beside it in epa2a-PID-N.saved, which the message names. */
enum epa_status file_write(const char *option, const char *path, bool force, const struct text *,
                           struct epa_error *);
/* Also gives the path of that file in *kept, which the caller frees; else *kept stays. */
enum epa_status file_write_or_keep(const char *option, const char *path, bool force,
                                   const struct text *, char **kept, struct epa_error *);
/* Whether a name in a folder is one of a temporary file, which process *pid left behind if it was
 * killed. */
bool file_is_temporary(const char *name, long *pid);
/* Everything in a regular file of at most so many bytes, or from the shell ("-" or /dev/stdin,
 * <(command)); nothing else is waited for, or read without an end. EPA_ERR_SYSTEM: "PATH: why". A
 * byte order mark of UTF-8 at the start is left out. The caller frees `out`, also after a failure. */
#define FILE_MOST (UINT64_C(16) << 30)
enum epa_status file_read(const char *path, uint64_t most, struct text *out, struct epa_error *);
/* As file_read(), but stops at the first zero byte, which no text has: EPA_ERR_CONFIG,
 * "PATH:LINE:COLUMN: why". A sparse or binary file is refused before it takes memory. */
enum epa_status file_read_text(const char *path, uint64_t most, struct text *out,
                               struct epa_error *);
/* Opens what file_read() reads, for callers that read in parts. *bytes: the size of the file, or
 * UINT64_MAX for a pipe. The caller closes *fd. */
enum epa_status file_open(const char *path, int *fd, uint64_t *bytes, struct epa_error *);
/* Refuses to read `bytes` into memory if no more are available: the kernel would kill the
 * program. EPA_ERR_NOMEM: "PATH: why". */
enum epa_status file_fits_memory(const char *path, uint64_t bytes, struct epa_error *);

/* A file that grows while people read it. The caller closes fd. */
struct file_stream {
    const char *option, *path;
    int fd;
};
enum epa_status file_stream_open(struct file_stream *, bool force, struct epa_error *);
enum epa_status file_stream_add(const struct file_stream *, const struct text *,
                                struct epa_error *);

/* ---- files of /proc and /sys ---- */

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

/* The CPU time that control groups allow to this process, and how often the kernel stopped their
 * processes because it was used up (throttling), counted from the start of each group. */
struct cpu_quota {
    double cores;               /* of the smallest quota; NAN: no quota */
    uint64_t stops, stopped_ns; /* of all groups of this process and those above */
};
void cpu_quota_read(const char *root, struct cpu_quota *out);

/* Bytes that all ranks together may still take: the least of MemAvailable and what the limits of
 * the cgroup and those above it leave. `which` gets the name of that limit; UINT64_MAX: nothing
 * could be read. */
uint64_t memory_available(const char *root, char *which, size_t room);

/* Room that RLIMIT_AS leaves to this process and to each that it forks; UINT64_MAX:
 * there is no limit. */
uint64_t memory_address_space(const char *root);

#endif
