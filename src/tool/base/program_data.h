/* Data files of the running program, relative to its path: an installation may be moved. */
#ifndef PROGRAM_DIR_H
#define PROGRAM_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

/* Data files are below share/epa2a of the prefix. A program in a build tree finds them in its
 * source tree instead, at the top or below share/. `path` is relative: "configs/small.yaml",
 * "models/mixtral-8x7b.yaml". */

/* Writes the path of an existing data file or folder. Returns false if it does not exist. */
bool program_data_find(const char *path, char *out, size_t room);

/* Returns the names of the data files of a folder that end in `suffix`, without the suffix and
 * sorted. The arena owns *names. Returns their number; 0: no such file or no folder. */
uint32_t program_data_names(const char *folder, const char *suffix, struct arena *,
                            const char ***names);

#endif
