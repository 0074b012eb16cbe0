/* A backend whose memory calls itself a GPU's, and which calls no CUDA: where a test lets
 * each call of the transport fail in turn, there are no others. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <epa2a/backend.h>

#include <stdlib.h>
#include <string.h>

enum { GPUS = 4 };

struct fake {
    struct epa_backend base; /* first */
    struct epa_bootstrap *boot;
    uint32_t stop;
    struct epa_fault fault;
};

static enum epa_status alloc(struct epa_backend *b, size_t bytes, void **out)
{
    *out = calloc(1, bytes + 1);
    return *out != NULL ? EPA_OK : EPA_ERR_NOMEM;
}

static void free_memory(struct epa_backend *b, void *memory)
{
    free(memory);
}

static enum epa_status copy(struct epa_backend *b, void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return EPA_OK;
}

static enum epa_status fill(struct epa_backend *b, void *to, int byte, size_t bytes)
{
    memset(to, byte, bytes);
    return EPA_OK;
}

static enum epa_status sync_all(struct epa_backend *b)
{
    struct fake *f = (struct fake *)b;

    if (!epa_aborted(f->boot))
        return EPA_OK;
    __atomic_store_n(&f->stop, 1, __ATOMIC_RELAXED);
    return EPA_ERR_ABORTED;
}

static void explain(struct epa_backend *b, struct epa_error *err)
{
}

static void close_all(struct epa_backend *b)
{
    free(b);
}

static const struct epa_backend_ops ops = {.alloc = alloc,
                                           .free = free_memory,
                                           .write = copy,
                                           .read = copy,
                                           .fill = fill,
                                           .sync = sync_all,
                                           .explain = explain,
                                           .close = close_all};

static enum epa_status open_all(const void *config, struct epa_bootstrap *boot,
                                struct epa_backend **out, struct epa_error *err)
{
    struct fake *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "fake: no memory");
    f->boot = boot;
    f->base = (struct epa_backend){.ops = &ops,
                                   .memory = EPA_MEMORY_CUDA,
                                   .device = (int)(boot->world.local_rank % GPUS),
                                   .stop = &f->stop,
                                   .device_fault = &f->fault,
                                   .multiprocessors = 4};
    *out = &f->base;
    return EPA_OK;
}

static const struct config {
    uint32_t nothing;
} defaults = {0};

static const struct epa_option options[] = {{0}};

EPA_PLUGIN_EXPORT
const struct epa_backend_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_BACKEND, struct epa_backend_plugin), .name = "fake",
               .summary = "GPUs that are none",
               .options = {options, sizeof(struct config), &defaults}},
    .memory = EPA_MEMORY_CUDA,
    .open = open_all,
};
