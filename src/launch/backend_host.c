/* Memory and threads of the host. A rank's thread that allocates touches every page first,
 * so memory is near the core that the rank is pinned to. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "plugin/registry.h"
#include "base/clock.h"
#include "launch/cache.h"
#include "launch/workers.h"

enum { MARKS = 64, LINE_BYTES = 64, HUGE_BYTES = 2 << 20 };

struct config {
    uint32_t workers;
    bool huge_pages;
};

struct host {
    struct epa_backend base; /* first */
    const struct config *config;
    struct workers *workers;
    /* What flush_cache() writes, a part for each worker; made at its first call. */
    char *flush;
    size_t flush_bytes; /* of a part */
    int flush_byte;
    struct epa_error last; /* failure, for explain() */
    uint64_t mark[MARKS];
};

static struct epa_error *fresh(struct host *host)
{
    host->last.status = EPA_OK;
    return &host->last;
}

static enum epa_status host_alloc(struct epa_backend *base, size_t bytes, void **out)
{
    struct host *host = (struct host *)base;
    size_t align = bytes >= HUGE_BYTES ? HUGE_BYTES : LINE_BYTES;
    size_t whole = bytes > 0 ? (bytes + align - 1) / align * align : align;
    void *memory = whole >= bytes ? aligned_alloc(align, whole) : NULL;

    if (memory == NULL)
        return epa_fail(fresh(host), EPA_ERR_NOMEM, "host: no memory for %zu bytes", bytes);
    if (host->config->huge_pages && align == HUGE_BYTES)
        (void)madvise(memory, whole, MADV_HUGEPAGE); /* small pages do, only slower */
    memset(memory, 0, whole);
    *out = memory;
    return EPA_OK;
}

static void host_free(struct epa_backend *base, void *memory)
{
    (void)base;
    free(memory);
}

static enum epa_status host_write(struct epa_backend *base, void *to, const void *host,
                                  size_t bytes)
{
    (void)base;
    if (bytes > 0)
        memcpy(to, host, bytes);
    return EPA_OK;
}

static enum epa_status host_read(struct epa_backend *base, void *host, const void *from,
                                 size_t bytes)
{
    return host_write(base, host, from, bytes);
}

static enum epa_status host_fill(struct epa_backend *base, void *to, int byte, size_t bytes)
{
    (void)base;
    if (bytes > 0)
        memset(to, byte, bytes);
    return EPA_OK;
}

static enum epa_status host_sync(struct epa_backend *base)
{
    (void)base;
    return EPA_OK;
}

static enum epa_status host_parallel(struct epa_backend *base,
                                     void (*fn)(void *arg, uint32_t worker, uint32_t workers),
                                     void *arg)
{
    workers_run(((struct host *)base)->workers, fn, arg);
    return EPA_OK;
}

static void write_over(void *arg, uint32_t worker, uint32_t workers)
{
    struct host *host = arg;

    (void)workers;
    memset(host->flush + worker * host->flush_bytes, host->flush_byte, host->flush_bytes);
}

/* Twice what an L2 holds, by each worker on the core that it runs on. What ranks share, L3
 * above all, is not gone then. */
static enum epa_status host_flush_cache(struct epa_backend *base)
{
    struct host *host = (struct host *)base;
    size_t bytes = host->flush_bytes;

    if (host->flush == NULL) {
        bytes = cache_flush_bytes();
        host->flush = aligned_alloc(LINE_BYTES, bytes * host->config->workers);
    }
    if (host->flush == NULL)
        return epa_fail(fresh(host), EPA_ERR_NOMEM,
                        "host: no memory for %zu bytes to write caches over with",
                        bytes * host->config->workers);
    host->flush_bytes = bytes;
    host->flush_byte++; /* other bytes each time: a write that changes nothing may be saved */
    return host_parallel(base, write_over, host);
}

static enum epa_status host_mark(struct epa_backend *base, uint32_t i)
{
    struct host *host = (struct host *)base;

    if (i >= MARKS)
        return epa_fail(fresh(host), EPA_ERR_UNSUPPORTED, "host: mark %u of %d", i, MARKS);
    host->mark[i] = clock_ns();
    return EPA_OK;
}

static enum epa_status host_elapsed(struct epa_backend *base, uint32_t i, uint32_t j, double *ns)
{
    struct host *host = (struct host *)base;

    if (i >= MARKS || j >= MARKS || host->mark[i] == 0 || host->mark[j] == 0)
        return epa_fail(fresh(host), EPA_ERR_UNSUPPORTED,
                        "host: no time between marks %u and %u: not both were made", i, j);
    *ns = (double)(int64_t)(host->mark[j] - host->mark[i]);
    return EPA_OK;
}

static void host_explain(struct epa_backend *base, struct epa_error *err)
{
    const struct host *host = (const struct host *)base;

    if (host->last.status != EPA_OK)
        epa_fail(err, host->last.status, "%s", host->last.text);
}

static void host_close(struct epa_backend *base)
{
    struct host *host = (struct host *)base;

    if (host == NULL)
        return;
    workers_destroy(host->workers);
    free(host->flush);
    free(host);
}

static const struct epa_backend_ops ops = {
    .alloc = host_alloc,
    .free = host_free,
    .write = host_write,
    .read = host_read,
    .fill = host_fill,
    .sync = host_sync,
    .parallel = host_parallel,
    .mark = host_mark,
    .elapsed = host_elapsed,
    .flush_cache = host_flush_cache,
    .explain = host_explain,
    .close = host_close,
};

static enum epa_status host_open(const void *config, struct epa_bootstrap *boot,
                                 struct epa_backend **out, struct epa_error *err)
{
    struct host *host = calloc(1, sizeof(*host));
    enum epa_status status;

    if (host == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "host: no memory for a backend");
    host->base = (struct epa_backend){.ops = &ops, .memory = EPA_MEMORY_HOST, .device = -1};
    host->config = config;
    status = workers_create(host->config->workers, &boot->world, &host->workers, err);
    if (status != EPA_OK) {
        free(host);
        return status;
    }
    *out = &host->base;
    return EPA_OK;
}

static uint32_t host_threads(const void *config)
{
    return ((const struct config *)config)->workers;
}

static const struct config defaults = {.workers = 1, .huge_pages = true};
static const struct epa_option options[] = {
    {.name = "workers",
     EPA_U32(struct config, workers),
     .min = 1,
     .max = 256,
     .help = "number of threads per rank, including the rank's own"},
    {.name = "huge_pages",
     EPA_BOOL(struct config, huge_pages),
     .help = "request 2 MiB pages for allocations of at least that size"},
    {0},
};

const struct epa_backend_plugin backend_host_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_BACKEND, struct epa_backend_plugin), .name = "host",
               .summary = "memory and cores of this host",
               .options = {options, sizeof(struct config), &defaults}},
    .memory = EPA_MEMORY_HOST,
    .threads = host_threads,
    .open = host_open,
};
