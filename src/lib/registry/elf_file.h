/* The size of a plugin's file, before the dynamic loader maps it. */
#ifndef ELF_FILE_H
#define ELF_FILE_H

#include <epa2a/status.h>

/* Refuses a truncated ELF file: dlopen() would map pages beyond its end, and the first access to
 * such a page ends the program with SIGBUS. Leaves every other defect to dlopen(), which reports
 * it.
 *
 * The check holds for the size at this moment. A process that shortens the file between the check
 * and dlopen(), or while the plugin is in use, still causes SIGBUS. Therefore install a plugin by a
 * rename over the old file, as `install` and package managers do: the mapped file then keeps its
 * size. */
EPA_CHECKED enum epa_status elf_file_check(const char *path, struct epa_error *);

#endif
