/* Memory and threads of the host. The rank's thread writes every page of an allocation first, so the
 * memory is near the rank's core.
 *
 * The threads form a pool that polls for work. The caller publishes work by incrementing `round`; a
 * worker stores the finished round in its own `done`: two cache lines per round and worker. Waking a
 * sleeping thread takes tens of microseconds, longer than the work. Therefore workers spin, or yield if
 * there are more threads than cores, and sleep only after a long time without work. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "registry/registry.h"
#include <epa2a/wait.h>
#include "host/pin.h"

enum { MARKS = 64, LINE_BYTES = 64, HUGE_BYTES = 2 << 20 };

/* ---- workers ---- */

enum { IDLE_NS = 2000000, CLOCK_TURNS = 64 };

struct worker {
    _Alignas(64) uint32_t done; /* last finished round; only the worker writes */
    uint32_t number;
    struct workers *pool;
    pthread_t thread;
};

struct workers {
    _Alignas(64) uint32_t round; /* increases and may wrap: compared for equality only */
    uint32_t asleep;             /* number of workers in FUTEX_WAIT, or about to enter it */
    /* Written before `round`, read after it. */
    _Alignas(64) void (*fn)(void *, uint32_t, uint32_t); /* NULL: the worker ends */
    void *arg;
    uint32_t n, made; /* made: number of threads to join */
    bool crowded;     /* more threads than cores: waiting threads must yield */
    const int32_t *core;
    uint32_t cores;
    struct worker worker[];
};

/* Spins or yields once. *since: begin of the wait; initially 0. */
static void pass_time(const struct workers *pool, uint64_t *since)
{
    if (!pool->crowded) {
        epa_relax();
        return;
    }
    if (*since == 0)
        *since = epa_now_ns();
    epa_backoff(epa_now_ns() - *since, 1); /* short pauses, since the caller is about to publish */
}

/* Sleeps unless `round` differs from `seen`. */
static void sleep_until_work(struct workers *pool, uint32_t seen)
{
    /* Sequentially consistent, pairs with publish(): either publish() reads this increment and wakes
     * the worker, or the kernel reads the new round and the worker does not sleep. */
    __atomic_add_fetch(&pool->asleep, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &pool->round, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    __atomic_sub_fetch(&pool->asleep, 1, __ATOMIC_RELAXED);
}

static uint32_t next_round(struct workers *pool, uint32_t seen)
{
    uint64_t start = 0, since = 0;
    uint32_t round;

    /* Acquire: pairs with publish(); fn and arg are valid. */
    for (uint32_t turn = 1; (round = __atomic_load_n(&pool->round, __ATOMIC_ACQUIRE)) == seen;
         turn++) {
        pass_time(pool, &since);
        if (turn % CLOCK_TURNS != 0)
            continue;
        if (start == 0)
            start = epa_now_ns();
        else if (epa_now_ns() - start > IDLE_NS)
            sleep_until_work(pool, seen);
    }
    return round;
}

static void *worker_thread(void *arg)
{
    struct worker *me = arg;
    struct workers *pool = me->pool;

    if (pool->cores > 0)
        (void)pin_self(&pool->core[me->number % pool->cores], 1); /* a failure only costs speed */
    for (uint32_t round = 0;;) {
        round = next_round(pool, round);
        if (pool->fn == NULL)
            return NULL;
        pool->fn(pool->arg, me->number, pool->n);
        /* Release: pairs with the acquire in workers_run(), which makes the results of fn visible. */
        __atomic_store_n(&me->done, round, __ATOMIC_RELEASE);
    }
}

static uint32_t publish(struct workers *pool, void (*fn)(void *, uint32_t, uint32_t), void *arg)
{
    uint32_t round;

    pool->fn = fn;
    pool->arg = arg;
    /* Release: pairs with next_round(). Sequentially consistent for sleep_until_work(). */
    round = __atomic_add_fetch(&pool->round, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&pool->asleep, __ATOMIC_SEQ_CST) != 0)
        syscall(SYS_futex, &pool->round, FUTEX_WAKE_PRIVATE, pool->n, NULL, NULL, 0);
    return round;
}

/* Runs fn(arg, worker, n) on each worker and returns after the last one. Only the rank's thread calls
 * it. */
static void workers_run(struct workers *pool, void (*fn)(void *, uint32_t, uint32_t), void *arg)
{
    uint64_t since = 0;
    uint32_t round;

    if (pool->n == 1) {
        fn(arg, 0, 1);
        return;
    }
    round = publish(pool, fn, arg);
    fn(arg, 0, pool->n);
    for (uint32_t w = 1; w < pool->n; w++) {
        /* Acquire: pairs with the release in worker_thread(). No time limit: fn has its own, and an
         * early return would let the caller free memory that fn uses. */
        while (__atomic_load_n(&pool->worker[w].done, __ATOMIC_ACQUIRE) != round)
            pass_time(pool, &since);
    }
}

static void workers_destroy(struct workers *pool)
{
    if (pool == NULL)
        return;
    if (pool->made > 0)
        publish(pool, NULL, NULL);
    for (uint32_t w = 1; w <= pool->made; w++)
        pthread_join(pool->worker[w].thread, NULL);
    free(pool);
}

/* Creates a pool of `n` workers: the caller is worker 0, and n - 1 threads run on the cores of the
 * world. */
static enum epa_status workers_create(uint32_t n, const struct epa_world *world,
                                      struct workers **out, struct epa_error *err)
{
    size_t bytes = sizeof(struct workers) + n * sizeof(struct worker);
    struct workers *pool = aligned_alloc(64, bytes);

    if (pool == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u workers", n);
    memset(pool, 0, bytes);
    pool->n = n;
    pool->core = world->core;
    pool->cores = world->cores;
    pool->crowded = (uint64_t)world->local_size * n > world->local_cores ||
                    (world->cores > 0 && n > world->cores);
    for (uint32_t w = 1; w < n; w++) {
        struct worker *worker = &pool->worker[w];
        int failed;

        worker->number = w;
        worker->pool = pool;
        failed = pthread_create(&worker->thread, NULL, worker_thread, worker);
        if (failed != 0) {
            workers_destroy(pool);
            return epa_fail_errno(err, EPA_ERR_SYSTEM, failed, "thread for worker %u of %u: %s", w,
                                  n, strerror(failed));
        }
        pool->made++;
    }
    *out = pool;
    return EPA_OK;
}

/* ---- the backend ---- */

struct config {
    uint32_t workers;
    bool huge_pages;
};

struct host {
    struct epa_backend base; /* first */
    const struct config *config;
    struct workers *workers;
    /* Buffer that flush_cache() writes, a part per worker; allocated at the first call. */
    char *flush;
    size_t flush_bytes; /* bytes of a part */
    int flush_byte;
    struct epa_error last; /* failure, for explain() */
    uint64_t mark[MARKS];
};

static struct epa_error *clear_error(struct host *host)
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
        return epa_fail(clear_error(host), EPA_ERR_NOMEM, "host: no memory for %zu bytes", bytes);
    if (host->config->huge_pages && align == HUGE_BYTES)
        (void)madvise(memory, whole, MADV_HUGEPAGE); /* optional: small pages are slower */
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

static void write_flush_part(void *arg, uint32_t worker, uint32_t workers)
{
    struct host *host = arg;

    (void)workers;
    memset(host->flush + worker * host->flush_bytes, host->flush_byte, host->flush_bytes);
}

/* Each worker writes twice the size of its core's L2. L3 and other shared caches are not flushed. */
static enum epa_status host_flush_cache(struct epa_backend *base)
{
    struct host *host = (struct host *)base;
    size_t bytes = host->flush_bytes;

    if (host->flush == NULL) {
        bytes = cache_flush_bytes();
        host->flush = aligned_alloc(LINE_BYTES, bytes * host->config->workers);
    }
    if (host->flush == NULL)
        return epa_fail(clear_error(host), EPA_ERR_NOMEM,
                        "host: no memory for %zu bytes to flush caches",
                        bytes * host->config->workers);
    host->flush_bytes = bytes;
    host->flush_byte++; /* a new value each time: hardware may skip a store of the same value */
    return host_parallel(base, write_flush_part, host);
}

static enum epa_status host_mark(struct epa_backend *base, uint32_t i)
{
    struct host *host = (struct host *)base;

    if (i >= MARKS)
        return epa_fail(clear_error(host), EPA_ERR_UNSUPPORTED,
                        "host: mark %u exceeds the maximum %d", i, MARKS - 1);
    host->mark[i] = epa_now_ns();
    return EPA_OK;
}

static enum epa_status host_elapsed(struct epa_backend *base, uint32_t i, uint32_t j, double *ns)
{
    struct host *host = (struct host *)base;

    if (i >= MARKS || j >= MARKS || host->mark[i] == 0 || host->mark[j] == 0)
        return epa_fail(clear_error(host), EPA_ERR_UNSUPPORTED,
                        "host: no time between marks %u and %u: record both first", i, j);
    *ns = (double)(int64_t)(host->mark[j] - host->mark[i]);
    return EPA_OK;
}

static void host_explain(struct epa_backend *base, struct epa_error *err)
{
    const struct host *host = (const struct host *)base;

    if (host->last.status != EPA_OK)
        epa_fail_key(err, host->last.status, host->last.key, "%s", host->last.text);
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
        return epa_fail(err, EPA_ERR_NOMEM, "host: no memory for the backend");
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
     .help = "number of threads per rank, including the rank's own",
     .tune = "1 2 4 8 16"},
    {.name = "huge_pages",
     EPA_BOOL(struct config, huge_pages),
     .help = "request 2 MiB pages for allocations of at least that size",
     .tune = "*"},
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
