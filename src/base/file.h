/* Files that survive: one appears under its name only when all of it is on disk, and never in the
 * place of another without `force`; a program that is killed, or a disk that is full, leaves what
 * was there before. A device or a pipe is written to as it is, and "-" is standard output.
 * `option`, such as "--json", begins what is said. */
#ifndef FILE_H
#define FILE_H

#include <epa2a/status.h>

#include "base/text.h"

/* Before anything runs: refuses an existing file without `force`, and a folder that cannot be
 * written to. */
enum epa_status file_check(const char *option, const char *path, bool force, struct epa_error *);
/* Written to a temporary file beside `path`, synced and renamed. */
enum epa_status file_write(const char *option, const char *path, bool force, const struct text *,
                           struct epa_error *);
/* Everything in a regular file of at most 1 GiB; nothing else is waited for, or read without an end.
 * EPA_ERR_SYSTEM: "PATH: why". */
enum epa_status file_read(const char *path, struct text *out, struct epa_error *);

/* A file that grows while people read it. The caller closes fd. */
struct file_stream {
    const char *option, *path;
    int fd;
};
enum epa_status file_stream_open(struct file_stream *, bool force, struct epa_error *);
enum epa_status file_stream_add(const struct file_stream *, const struct text *,
                                struct epa_error *);

#endif
