/* Flushes the cache of the device. */
#include "flush.h"

#include "stream.h"

enum epa_status cuda_flush_make(struct cuda *c)
{
    if (c->flush != NULL)
        return EPA_OK;
    c->flush_bytes = 2 * c->base.cache_bytes;
    return c->base.ops->alloc(&c->base, c->flush_bytes, &c->flush);
}

enum epa_status cuda_flush_cache(struct epa_backend *base)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter(c);

    if (status == EPA_OK)
        status = cuda_flush_make(c);
    return status != EPA_OK
               ? status
               : cuda_check(c, cudaMemsetAsync(c->flush, 0, c->flush_bytes, c->base.stream),
                            "cudaMemsetAsync");
}
