/* Memory of arrays, in parts that are freed together. If an allocation fails, or if `counting` is set,
 * parts are NULL; `bytes` is the total size. */
#ifndef POOL_H
#define POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool {
    struct pool_part *last;
    uint64_t bytes;
    bool counting, failed;
};
/* Allocates [n] of `size` bytes, not cleared, at the start of a cache line. */
void *pool_alloc(struct pool *, size_t n, size_t size);
void pool_free(struct pool *);

#endif
