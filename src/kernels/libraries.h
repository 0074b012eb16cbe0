/* Libraries of others that multiply. They are loaded when they are first wanted: no program that
 * goes without needs them. */
#ifndef KERNELS_LIBRARIES_H
#define KERNELS_LIBRARIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

enum library_id { LIBRARY_ID_CUBLASLT, LIBRARY_ID_ONEDNN, LIBRARY_IDS };

struct library_function {
    const char *name;
    size_t offset; /* of its pointer in `out` of library_load() */
};

/* Fills pointers to functions. NULL, with a sentence: it is
 * not there, or lacks one of them. What is opened is never closed: a driver, or a thread, may
 * still run its code. */
void *library_load(enum library_id, const struct library_function *, size_t n, void *out,
                   struct epa_error *);

struct library_found {
    const char *name, *file, *use;
    char version[24]; /* "13.1.0" */
};

/* False: it is not there, or this program was built without. */
bool library_find(enum library_id, struct library_found *out);

#endif
