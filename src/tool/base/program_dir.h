/* Folders that belong to the running program: its build tree, or the prefix of its installation.
 * /proc/self/exe is the start of every search, so an installation may be moved. */
#ifndef PROGRAM_DIR_H
#define PROGRAM_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

/* Writes the top of meson's build tree that contains the program: <top>/src/epa2a or
 * <top>/tests/unit/X. Returns false if the program is not in a build tree. */
bool program_build_tree(char *top, size_t room);

/* Writes an installed folder: `folder` is absolute or relative to the program's folder. */
void program_installed(const char *folder, char *out, size_t room);

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
