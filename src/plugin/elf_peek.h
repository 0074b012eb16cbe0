/* Looks into a shared object without loading it. */
#ifndef ELF_PEEK_H
#define ELF_PEEK_H

#include <epa2a/status.h>
#include <stddef.h>
#include <stdint.h>

/* Copies the first `bytes` of the exported object `symbol` out of the file `fd`, as they
 * stand before relocation: numbers are right, pointers are not. No code of the file runs.
 * Refuses what is cut short, not for this machine or without that symbol; err completes
 * the sentence "this file cannot be loaded: ...". */
EPA_CHECKED enum epa_status elf_peek(int fd, const char *symbol, void *out, size_t bytes,
                                     struct epa_error *);

#endif
