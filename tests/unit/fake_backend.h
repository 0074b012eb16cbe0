/* Memory and workers of the host for operations under test, without a backend plugin. */
#ifndef FAKE_BACKEND_H
#define FAKE_BACKEND_H

#include <stdlib.h>
#include <string.h>

#include <epa2a/backend.h>

static enum epa_status host_alloc(struct epa_backend *b, size_t bytes, void **out)
{
    *out = malloc(bytes);
    return EPA_OK;
}

static void host_free(struct epa_backend *b, void *p)
{
    free(p);
}

static enum epa_status host_fill(struct epa_backend *b, void *to, int byte, size_t bytes)
{
    memset(to, byte, bytes);
    return EPA_OK;
}

static enum epa_status host_parallel(struct epa_backend *b,
                                     void (*fn)(void *arg, uint32_t worker, uint32_t workers),
                                     void *arg)
{
    fn(arg, 0, 1);
    return EPA_OK;
}

static const struct epa_backend_ops host_ops = {
    .alloc = host_alloc, .free = host_free, .fill = host_fill, .parallel = host_parallel};

#endif
