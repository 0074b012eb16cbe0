/* Launches: blocks of a grid run on OS threads, as many at once as fit on the simulated device. The
 * stream of the kernel waits for them. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../fake/fake_cuda.h"
#include "block.h"

enum {
    MODULES = 64,
    KERNELS = 1024,
    DEFAULT_SHARED_BYTES = 48 << 10,
    ARGS_ALIGN = 128 /* of a tensor map */
};

/* A running kernel and its next block. */
struct run {
    const struct simt_grid *grid;
    const struct simt_kernel *kernel;
    const void *args;
    struct kernel_traffic *traffic; /* count of the rank; NULL: none */
    struct simt_cluster *clusters;  /* NULL: no clusters */
    uint64_t next, blocks;
    uint32_t busy; /* number of threads that run blocks of it */
    pthread_mutex_t lock;
    pthread_cond_t done;
};

/* A thread that runs blocks and waits for the next kernel when there are no more. */
struct hand {
    pthread_cond_t called;
    struct run *run;
    struct hand *next;
};

/* Idle threads. They stay until the process ends. */
static struct {
    pthread_mutex_t lock;
    struct hand *first;
} idle = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct {
    pthread_mutex_t lock;
    uint32_t n;
    struct module {
        const void *base;
        struct simt_kernel takes;
    } module[MODULES];
} modules = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- threads that run blocks ---- */

static void run_blocks(struct worker *w, struct run *run)
{
    const dim3 n = run->grid->blocks;
    uint64_t i;

    w->traffic = run->traffic;
    memset(w->loaded, 0, sizeof(w->loaded));
    while ((i = __atomic_fetch_add(&run->next, 1, __ATOMIC_RELAXED)) < run->blocks)
        simt_block_run(
            w, run->grid, run->kernel, run->args,
            (uint3){(unsigned)(i % n.x), (unsigned)(i / n.x % n.y), (unsigned)(i / n.x / n.y)},
            simt_cluster_at(run->clusters, i));
}

static struct run *wait_for_work(struct hand *hand)
{
    struct run *run;

    pthread_mutex_lock(&idle.lock);
    while (hand->run == NULL)
        pthread_cond_wait(&hand->called, &idle.lock);
    run = hand->run;
    pthread_mutex_unlock(&idle.lock);
    return run;
}

static void *hand_main(void *arg)
{
    struct hand *hand = arg;
    struct worker *w = simt_worker_create();

    for (;;) {
        struct run *run = wait_for_work(hand);

        run_blocks(w, run);
        pthread_mutex_lock(&idle.lock);
        hand->run = NULL;
        hand->next = idle.first;
        idle.first = hand;
        pthread_mutex_unlock(&idle.lock);
        pthread_mutex_lock(&run->lock);
        if (--run->busy == 0)
            pthread_cond_signal(&run->done);
        pthread_mutex_unlock(&run->lock);
    }
    return NULL;
}

static void hand_create(struct run *run)
{
    struct hand *hand = simt_alloc(sizeof(*hand));
    pthread_t thread;

    hand->run = run;
    pthread_cond_init(&hand->called, NULL);
    if (pthread_create(&thread, NULL, hand_main, hand) != 0)
        abort();
    pthread_detach(thread);
}

static void call_hand(struct run *run)
{
    struct hand *hand;

    pthread_mutex_lock(&idle.lock);
    hand = idle.first;
    if (hand != NULL) {
        idle.first = hand->next;
        hand->run = run;
        pthread_cond_signal(&hand->called);
    }
    pthread_mutex_unlock(&idle.lock);
    if (hand == NULL)
        hand_create(run);
}

/* ---- a kernel ---- */

struct launch {
    struct simt_grid grid;
    struct simt_kernel kernel;
    struct kernel_traffic *traffic;
    _Alignas(ARGS_ALIGN) char args[];
};

/* Returns the number of blocks that fit on a multiprocessor. */
static uint32_t blocks_that_fit(uint32_t threads, size_t shared_bytes)
{
    uint32_t by_threads = FAKE_THREADS / threads;
    size_t by_shared = FAKE_SHARED_OF_ALL / (FAKE_SHARED_RESERVED + shared_bytes);

    if (shared_bytes > FAKE_SHARED_BYTES)
        return 0;
    return by_shared < by_threads ? (uint32_t)by_shared : by_threads;
}

static void run_kernel(void *data)
{
    const struct launch *l = data;
    struct run run = {
        .grid = &l->grid, .kernel = &l->kernel, .args = l->args, .traffic = l->traffic};
    uint32_t threads = l->grid.threads.x * l->grid.threads.y * l->grid.threads.z;
    uint64_t room =
        (uint64_t)fake_multiprocessors() * blocks_that_fit(threads, l->grid.shared_bytes);

    run.blocks = (uint64_t)l->grid.blocks.x * l->grid.blocks.y * l->grid.blocks.z;
    run.busy = (uint32_t)(run.blocks < room ? run.blocks : room);
    if (l->grid.cluster > 1 && (run.clusters = simt_clusters_create(run.blocks / 2)) == NULL)
        abort();
    pthread_mutex_init(&run.lock, NULL);
    pthread_cond_init(&run.done, NULL);
    for (uint32_t i = 0, n = run.busy; i < n; i++)
        call_hand(&run);
    pthread_mutex_lock(&run.lock);
    while (run.busy > 0)
        pthread_cond_wait(&run.done, &run.lock);
    pthread_mutex_unlock(&run.lock);
    free(run.clusters);
    pthread_cond_destroy(&run.done);
    pthread_mutex_destroy(&run.lock);
}

cudaError_t simt_queue(const struct simt_grid *grid, const struct simt_kernel *kernel,
                       const void *args, cudaStream_t stream)
{
    uint64_t threads = (uint64_t)grid->threads.x * grid->threads.y * grid->threads.z;
    uint64_t blocks = (uint64_t)grid->blocks.x * grid->blocks.y * grid->blocks.z;
    struct launch *l;
    cudaError_t code = cudaErrorInvalidConfiguration;

    if (fake_fails())
        code = cudaErrorUnknown;
    else if (threads > 0 && threads <= SIMT_THREADS && blocks > 0 &&
             grid->shared_bytes <= SIMT_SHARED_BYTES) {
        l = aligned_alloc(ARGS_ALIGN,
                          (sizeof(*l) + kernel->bytes + ARGS_ALIGN - 1) / ARGS_ALIGN * ARGS_ALIGN);
        if (l == NULL)
            return cudaErrorMemoryAllocation;
        l->grid = *grid;
        l->kernel = *kernel;
        l->traffic = fake_traffic_of_stream(stream);
        memcpy(l->args, args, kernel->bytes);
        code = fake_queue(stream, run_kernel, l, sizeof(*l) + kernel->bytes);
        free(l);
    }
    fake_last_error(code);
    return code;
}

/* Lanes of a warp that load the same word load it once. */
static bool is_loaded_again(struct worker *w, const void *at, size_t bytes)
{
    const void **entry =
        &w->loaded[w->now->number / SIMT_WARP][(uintptr_t)at / bytes % SIMT_LOADED];

    if (bytes > sizeof(uint64_t))
        return false;
    if (*entry == at)
        return true;
    *entry = at;
    return false;
}

void simt_count(const void *at, size_t bytes, enum fake_access access)
{
    struct worker *w = simt_place()->worker;

    if (w->traffic != NULL && (access != FAKE_LOAD || !is_loaded_again(w, at, bytes)))
        fake_traffic_add(w->traffic, at, bytes, access);
}

/* ---- functions of the runtime ---- */

void simt_params(const void *here, const struct simt_kernel *takes)
{
    Dl_info info = {0};
    uint32_t at = 0;

    pthread_mutex_lock(&modules.lock);
    if (dladdr(here, &info) == 0)
        abort();
    /* An unloaded module may have used the address before. */
    while (at < modules.n && modules.module[at].base != info.dli_fbase)
        at++;
    if (at == MODULES)
        abort();
    modules.module[at] = (struct module){info.dli_fbase, *takes};
    modules.n += at == modules.n;
    pthread_mutex_unlock(&modules.lock);
}

static bool find_params(const void *kernel, struct simt_kernel *out)
{
    Dl_info info = {0};
    bool found = false;

    pthread_mutex_lock(&modules.lock);
    for (uint32_t i = 0; i < modules.n && dladdr(kernel, &info) != 0 && !found; i++) {
        found = modules.module[i].base == info.dli_fbase;
        if (found)
            *out = modules.module[i].takes;
    }
    pthread_mutex_unlock(&modules.lock);
    out->kernel = kernel;
    return found;
}

/* Returns the number of blocks per cluster. */
static uint32_t cluster_of(const cudaLaunchConfig_t *config)
{
    for (uint32_t i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
            return config->attrs[i].val.clusterDim.x * config->attrs[i].val.clusterDim.y *
                   config->attrs[i].val.clusterDim.z;
    return 1;
}

/* Limits of dynamic shared memory that differ from the default. */
static struct {
    pthread_mutex_t lock;
    struct {
        const void *kernel;
        int bytes;
    } of[KERNELS];
    uint32_t n;
} limits = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Returns the limit of a kernel, and sets it if `bytes` is not NULL. */
static int shared_limit(const void *kernel, const int *bytes)
{
    int limit = DEFAULT_SHARED_BYTES;
    uint32_t at = 0;

    pthread_mutex_lock(&limits.lock);
    while (at < limits.n && limits.of[at].kernel != kernel)
        at++;
    if (at == KERNELS)
        abort();
    if (bytes != NULL) {
        limits.of[at].kernel = kernel;
        limits.of[at].bytes = *bytes;
        limits.n += at == limits.n;
    }
    if (at < limits.n)
        limit = limits.of[at].bytes;
    pthread_mutex_unlock(&limits.lock);
    return limit;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args)
{
    struct simt_grid grid = {config->gridDim, config->blockDim, config->dynamicSmemBytes,
                             cluster_of(config)};
    struct simt_kernel k;

    if (grid.cluster > 2 || config->gridDim.x % grid.cluster != 0) {
        fprintf(stderr,
                "simt: clusters of 1 or 2 blocks that follow each other in x are emulated\n");
        return cudaErrorInvalidClusterSize;
    }
    if (config->dynamicSmemBytes > (size_t)shared_limit(kernel, NULL))
        return cudaErrorInvalidValue;
    if (find_params(kernel, &k))
        return simt_queue(&grid, &k, args[0], config->stream);
    fprintf(stderr, "simt: nobody has said what this module's kernels take: see "
                    "tests/gpu/simt/README.md\n");
    return cudaErrorInvalidDeviceFunction;
}

FAKE(cudaFuncGetAttributes, (struct cudaFuncAttributes * out, const void *kernel), cudaErrorUnknown,
     (*out = (struct cudaFuncAttributes){.maxThreadsPerBlock = SIMT_THREADS,
                                         .maxDynamicSharedSizeBytes = shared_limit(kernel, NULL)}))

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute which, int value)
{
    if (which == cudaFuncAttributeMaxDynamicSharedMemorySize && value > SIMT_SHARED_BYTES)
        return cudaErrorInvalidValue;
    if (fake_fails())
        return cudaErrorUnknown;
    if (which == cudaFuncAttributeMaxDynamicSharedMemorySize)
        (void)shared_limit(kernel, &value);
    return cudaSuccess;
}

FAKE(cudaOccupancyMaxActiveBlocksPerMultiprocessor,
     (int *out, const void *kernel, int threads, size_t shared_bytes), cudaErrorUnknown,
     *out = (int)blocks_that_fit((uint32_t)threads, shared_bytes))

FAKE(cudaOccupancyMaxActiveClusters,
     (int *out, const void *kernel, const cudaLaunchConfig_t *config), cudaErrorUnknown,
     *out = (int)(fake_multiprocessors() *
                  blocks_that_fit(config->blockDim.x, config->dynamicSmemBytes) /
                  cluster_of(config)))
