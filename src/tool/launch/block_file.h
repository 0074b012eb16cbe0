/* Files that contain blocks of ranks. Other processes of this host read the block of a rank that can no
 * longer send the block. Room for samples that a rank has not measured consists of holes, which need no
 * memory until they are read by a mapping. */
#ifndef BLOCK_FILE_H
#define BLOCK_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/world.h>
#include "boot/conn.h"

/* Describes the file that contains the blocks of this process, for other processes of this host. */
struct conn_block_file block_file_describe(const struct epa_launch *);

/* Opens the file of another process, which must exist. Returns -1 without such a file or without
 * permission. The file stays readable after the death of the process. */
int block_file_open(int32_t pid, const struct conn_block_file *);

/* Copies the block of `rank` from the file to the block of this process. */
void block_file_copy(int fd, const struct conn_block_file *, const struct epa_launch *,
                     uint32_t rank);

/* Finds the first data of the block of `rank` of this process at byte `at` or later: bytes *begin to *end
 * of the block. *begin is block_bytes if only a hole follows. Without a file all bytes are data. */
void block_file_find_data(const struct epa_launch *, uint32_t rank, size_t at, size_t *begin,
                          size_t *end);

#endif
