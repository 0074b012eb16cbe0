/* Memory of the application that a rank simulates. */
#include "caller/caller_memory.h"

#include <stdlib.h>

#include "base/memory.h"

bool caller_is_on_device(const struct caller *c)
{
    return c->params.backend->memory != EPA_MEMORY_HOST;
}

enum epa_status caller_alloc(struct caller *c, const char *what, uint64_t n, uint64_t bytes,
                             void **out, struct epa_error *err)
{
    if (caller_is_on_device(c))
        return op_alloc(c->params.backend, what, n * bytes, out, err);
    *out = memory_alloc(n, bytes);
    return EPA_OK;
}

void caller_free(struct caller *c, void *memory)
{
    if (!caller_is_on_device(c))
        free(memory);
    else if (memory != NULL)
        c->params.backend->ops->free(c->params.backend, memory);
}
