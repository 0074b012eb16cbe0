/* fused on hosts: memory of an algorithm, which is allocated or only counted. */
#ifndef FUSED_ALLOC_H
#define FUSED_ALLOC_H

#include "fused_state.h"

/* Allocate memory of the backend, or a list in host memory, until the algorithm is destroyed.
 * Return NULL if bytes are only counted. */
void *fused_alloc(struct fused_host *, size_t bytes);
void *fused_alloc_list(struct fused_host *, size_t n, size_t size);

#endif
