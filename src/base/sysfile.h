/* Files of /proc and /sys: one line, one number, one field. `root` stands before the path:
 * "" but in tests. What cannot be read is "" or 0, and false. */
#ifndef SYSFILE_H
#define SYSFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first line, without what ends it. */
bool sysfile_line(const char *root, const char *path, char *out, size_t room);

/* The value of "key : value" or "key: value", for its first occurrence. */
bool sysfile_field(const char *root, const char *path, const char *key, char *out, size_t room);

uint64_t sysfile_number(const char *root, const char *path);

/* The word in brackets of "always [madvise] never". */
void sysfile_chosen(const char *root, const char *path, char *out, size_t room);

/* How many numbers a list such as "0-3,8" names. */
uint32_t sysfile_list_count(const char *list);

#endif
