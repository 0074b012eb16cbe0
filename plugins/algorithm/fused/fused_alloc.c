/* fused on hosts: memory of an algorithm, which is allocated or only counted. */
#include "fused_alloc.h"

void *fused_alloc(struct fused_host *h, size_t bytes)
{
    void *memory = NULL;

    if (h->counted != NULL)
        *h->counted += bytes;
    else if (h->a.backend->ops->alloc(h->a.backend, bytes, &memory) != EPA_OK)
        h->a.no_memory = true;
    return memory;
}

void *fused_alloc_list(struct fused_host *h, size_t n, size_t size)
{
    if (h->counted == NULL)
        return algo_alloc(&h->a, n, size);
    *h->counted += n * size + 2 * FUSED_LINE; /* including the overhead of algo_alloc() */
    return NULL;
}
