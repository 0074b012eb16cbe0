/* A chain of allocations, each with a header of a cache line. */
#include "base/pool.h"

#include <stdlib.h>

enum { LINE = 64 };

struct pool_part {
    struct pool_part *before;
};

void *pool_alloc(struct pool *pool, size_t n, size_t size)
{
    size_t bytes = (n * size + LINE - 1) / LINE * LINE;
    struct pool_part *part;

    pool->bytes += bytes;
    if (pool->counting)
        return NULL;
    part = aligned_alloc(LINE, LINE + bytes);
    if (part == NULL) {
        pool->failed = true;
        return NULL;
    }
    part->before = pool->last;
    pool->last = part;
    return (char *)part + LINE;
}

void pool_free(struct pool *pool)
{
    for (struct pool_part *part = pool->last; part != NULL;) {
        struct pool_part *before = part->before;

        free(part);
        part = before;
    }
    *pool = (struct pool){0};
}
