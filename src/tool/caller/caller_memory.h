/* Memory of the application that a rank simulates: host memory, or memory of its device. */
#ifndef CALLER_MEMORY_H
#define CALLER_MEMORY_H

#include "caller/caller_state.h"

/* Allocates an array of n elements. On hosts the memory is from malloc(), whose bounds a sanitizer
 * checks. */
enum epa_status caller_alloc(struct caller *, const char *what, uint64_t n, uint64_t bytes,
                             void **out, struct epa_error *);
void caller_free(struct caller *, void *); /* accepts NULL */

bool caller_is_on_device(const struct caller *);

#endif
