/* Access to the block of a rank on this host that can no longer send the block. */
#ifndef BLOCK_FILE_H
#define BLOCK_FILE_H

#include <stdbool.h>
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

#endif
