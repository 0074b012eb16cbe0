/* Crash-safe files: a file appears under its name only when it is complete on disk, and replaces
 * another file only with `force`. After a kill of the program, or on a full disk, the previous file
 * is intact. A device or a pipe is written directly, and "-" is standard output. Messages begin
 * with `option`, such as "--json". */
#ifndef FILE_H
#define FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

#include "base/text.h"

/* Returns true if a path stands for standard output: "-", /dev/stdout and similar. */
bool file_is_stdout(const char *path);
/* Returns the descriptor that a path stands for, such as 3 for /dev/fd/3 and 1 for -; -1: the path names
 * a file. */
int file_descriptor(const char *path);
/* Returns true if standard output is a pipe or a socket whose reader has closed it, like `head`.
 * Writes to it then fail, and the functions below ignore the failure. */
bool stdout_is_unread(void);
/* Returns true if later text cannot replace text written to a path: a descriptor, a device or a
 * pipe. */
bool file_is_stream(const char *path);
/* Called before a run: rejects an existing file without `force`, and an output that file_write()
 * could not write. The check creates a file in the folder and removes it. */
enum epa_status file_check(const char *option, const char *path, bool force, struct epa_error *);
/* The same for a folder: rejects a path if folder_create() could not create its missing folders. */
enum epa_status folder_check(const char *option, const char *path, struct epa_error *);
/* Creates a folder and its missing parents, like mkdir -p. */
enum epa_status folder_create(const char *option, const char *path, struct epa_error *);
/* Writes a temporary file beside `path`, syncs and renames it. With `force` a file that keeps its
 * name, such as a mount point, is written in place. A text that cannot receive its name stays
 * beside it in epa2a-PID-N.saved, which the message names. */
enum epa_status file_write(const char *option, const char *path, bool force, const struct text *,
                           struct epa_error *);
/* Also returns the path of that file in *kept, which the caller frees; otherwise *kept is
 * unchanged. */
enum epa_status file_write_or_keep(const char *option, const char *path, bool force,
                                   const struct text *, char **kept, struct epa_error *);
/* Returns true if a name in a folder belongs to a temporary file, left by process *pid if that was
 * killed. */
bool file_is_temporary(const char *name, long *pid);
/* Reads a regular file of at most `most` bytes, or input from the shell ("-" or /dev/stdin,
 * <(command)); never waits for other files, or reads them without an end. EPA_ERR_SYSTEM: "PATH:
 * reason". A byte order mark of UTF-8 at the start is removed. The caller frees `out`, also after a
 * failure. */
#define FILE_MOST (UINT64_C(16) << 30)
enum epa_status file_read(const char *path, uint64_t most, struct text *out, struct epa_error *);
/* Like file_read(), but stops at the first zero byte, which is not text: EPA_ERR_CONFIG,
 * "PATH:LINE:COLUMN: reason". So a sparse or binary file is rejected before it takes memory. */
enum epa_status file_read_text(const char *path, uint64_t most, struct text *out,
                               struct epa_error *);
/* Opens a file under the rules of file_read(), for callers that read in parts. *bytes: the size of
 * the file, or UINT64_MAX for a pipe. The caller closes *fd. */
enum epa_status file_open(const char *path, int *fd, uint64_t *bytes, struct epa_error *);
/* Checks that `bytes` of memory are available for a file: the kernel would kill the program
 * otherwise. EPA_ERR_NOMEM: "PATH: reason". */
enum epa_status file_fits_memory(const char *path, uint64_t bytes, struct epa_error *);

/* A file that grows while users read it. The caller closes fd. */
struct file_stream {
    const char *option, *path;
    int fd;
};
enum epa_status file_stream_open(struct file_stream *, bool force, struct epa_error *);
enum epa_status file_stream_add(const struct file_stream *, const struct text *,
                                struct epa_error *);

#endif
