/* Each rank allocates one region on its GPU and maps the regions of all other ranks.
 *
 * With the driver's virtual memory API a region is a handle, which a file descriptor represents in
 * other processes. Every rank maps the region itself, and the driver frees the memory after the last
 * unmapping, so ranks may leave in any order. With CUDA IPC the owner must leave last: its page
 * counts ranks of other processes, and the owner waits for them. IPC does not work within a process:
 * ranks of the same process use the owner's address, and the last of them frees the memory. */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include <epa2a/wait.h>

#include "stream.h"

enum {
    GRANULE = 2 << 20,     /* minimum alignment: page size of the GPU */
    HEAP_ALIGN = 64 << 10, /* words and the start of the heap may share a page */
};

/* Words of a rank's page. */
enum {
    PAGE_MAPPED, /* number of ranks in other processes that have opened the owner's memory */
    PAGE_USERS,  /* number of ranks of the owner's process that use it; the last one frees it */
    PAGE_WORDS,
};

static const uint64_t exchange_ns = 60000000000u;
/* Time limit for ranks of other processes to close this rank's memory; a killed rank never
 * does. */
static const uint64_t leave_ns = 2000000000u;

/* Description of a rank's region for other ranks. */
struct card {
    uint64_t bytes, heap_bytes;
    uint32_t signals;
    uint64_t handle; /* VMM: valid for ranks of the same process */
    char *base;      /* valid for ranks of the same process */
    cudaIpcMemHandle_t ipc;
};

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static enum epa_status driver_fail(const struct memory *m, CUresult result, uint32_t r,
                                   const char *what, struct epa_error *err)
{
    const char *why = NULL;

    if (m->params.driver->error_string(result, &why) != CUDA_SUCCESS || why == NULL)
        why = "unknown error";
    return epa_fail_key(err, result == CUDA_ERROR_OUT_OF_MEMORY ? EPA_ERR_NOMEM : EPA_ERR_SYSTEM,
                        EPA_LIMIT_NAMED,
                        "nvlink: rank %u on GPU %d: %s of the %" PRIu64 " bytes of rank %u: %s",
                        m->rank, m->params.device, what, m->bytes, r, why);
}

static enum epa_status runtime_fail(const struct memory *m, cudaError_t error, uint32_t r,
                                    const char *what, struct epa_error *err)
{
    (void)cudaGetLastError(); /* clears the error: the returned status reports it */
    return epa_fail_key(err, nvlink_status(error), EPA_LIMIT_NAMED,
                        "nvlink: rank %u on GPU %d: %s of the %" PRIu64 " bytes of rank %u: %s",
                        m->rank, m->params.device, what, m->bytes, r, cudaGetErrorString(error));
}

static uint64_t *page_word(const struct memory *m, uint32_t r, uint32_t word)
{
    return &m->pages.peer[r].segment->signal[word].word;
}

/* ---- the driver's virtual memory ---- */

/* Serialises unmapping. Ranks as threads map the same allocation, and the driver (580.159.04) frees
 * its record of an allocation twice if several threads unmap at once: AddressSanitizer found the
 * double free in cuMemUnmap(). */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void unmap_vmm(const struct memory *m, struct region *region)
{
    CUdeviceptr at = (CUdeviceptr)region->base;

    pthread_mutex_lock(&turn);
    (void)m->params.driver->unmap(at, region->bytes);
    (void)m->params.driver->address_free(at, region->bytes);
    pthread_mutex_unlock(&turn);
    *region = (struct region){.kind = REGION_NONE};
}

static enum epa_status map_in_turn(struct memory *m, uint32_t r,
                                   CUmemGenericAllocationHandle handle, uint64_t bytes,
                                   struct epa_error *err)
{
    const struct driver *d = m->params.driver;
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = m->params.device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = 0;
    CUresult result = d->reserve(&at, bytes, GRANULE, 0, 0);

    if (result != CUDA_SUCCESS)
        return driver_fail(m, result, r, "reserving addresses", err);
    result = d->map(at, bytes, 0, handle, 0);
    if (result != CUDA_SUCCESS) {
        (void)d->address_free(at, bytes);
        return driver_fail(m, result, r, "mapping", err);
    }
    m->region[r] = (struct region){.kind = REGION_VMM, .base = (char *)at, .bytes = bytes};
    result = d->set_access(at, bytes, &access, 1);
    if (result != CUDA_SUCCESS)
        return driver_fail(m, result, r, "getting access to the mapping", err);
    return EPA_OK;
}

/* Maps `handle`, the region of rank `r`, for this rank's GPU. */
static enum epa_status map_vmm(struct memory *m, uint32_t r, CUmemGenericAllocationHandle handle,
                               uint64_t bytes, struct epa_error *err)
{
    enum epa_status status;

    pthread_mutex_lock(&turn);
    status = map_in_turn(m, r, handle, bytes, err);
    pthread_mutex_unlock(&turn);
    return status;
}

static enum epa_status create_vmm(struct memory *m, struct epa_error *err)
{
    const struct driver *d = m->params.driver;
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = m->params.device}};
    CUmemGenericAllocationHandle handle = 0;
    size_t granule = GRANULE;
    CUresult result;
    int fd = -1, rdma = 0;

    if (m->params.far &&
        d->device_attribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                            m->params.device) == CUDA_SUCCESS)
        prop.allocFlags.gpuDirectRDMACapable = rdma != 0;
    result = d->granularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (result != CUDA_SUCCESS)
        return driver_fail(m, result, m->rank, "asking for the granularity", err);
    m->bytes = round_up(m->bytes, granule);
    result = d->create(&handle, m->bytes, &prop, 0);
    if (result != CUDA_SUCCESS)
        return driver_fail(m, result, m->rank, "allocation", err);
    m->handle = handle;
    m->has_handle = true;
    result = d->export_handle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS)
        return driver_fail(m, result, m->rank, "making a descriptor", err);
    m->fd = fd;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "nvlink: fcntl of a descriptor: %s",
                              strerror(errno));
    return map_vmm(m, m->rank, handle, m->bytes, err);
}

/* A rank of this process keeps its handle until all ranks have mapped it. The handle of a rank in
 * another process is imported, and the mapping then keeps the memory alive. */
static enum epa_status attach_vmm(struct memory *m, uint32_t r, const struct card *card, int fd,
                                  bool same, struct epa_error *err)
{
    CUmemGenericAllocationHandle handle = card->handle;
    enum epa_status status;
    CUresult result;

    if (same)
        return map_vmm(m, r, handle, card->bytes, err);
    result = m->params.driver->import_handle(&handle, (void *)(uintptr_t)fd,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return driver_fail(m, result, r, "importing the descriptor", err);
    status = map_vmm(m, r, handle, card->bytes, err);
    (void)m->params.driver->release(handle);
    return status;
}

/* ---- CUDA IPC ---- */

static enum epa_status create_ipc(struct memory *m, struct epa_error *err)
{
    void *base = NULL;
    cudaError_t error = cudaMalloc(&base, m->bytes);

    if (error != cudaSuccess)
        return runtime_fail(m, error, m->rank, "allocation", err);
    m->region[m->rank] = (struct region){.kind = REGION_OWNED, .base = base, .bytes = m->bytes};
    /* Relaxed: the allgather orders the store before reads of other ranks. */
    __atomic_store_n(page_word(m, m->rank, PAGE_USERS), 1, __ATOMIC_RELAXED);
    return EPA_OK;
}

/* Takes a share of the memory of the page's owner; returns false if the memory is already freed. */
static bool take_share(uint64_t *users)
{
    uint64_t n = __atomic_load_n(users, __ATOMIC_RELAXED);

    while (n > 0 && !__atomic_compare_exchange_n(users, &n, n + 1, false, __ATOMIC_ACQ_REL,
                                                 __ATOMIC_RELAXED)) {
    }
    return n > 0;
}

/* Uses the owner's address and enables peer access if the owner's GPU differs. Access stays enabled
 * until the process ends, since other ranks of the process may use it, too. */
static enum epa_status share_ipc(struct memory *m, uint32_t r, const struct card *card,
                                 struct epa_error *err)
{
    int other = m->params.gpu[r].number;

    if (!take_share(page_word(m, r, PAGE_USERS)))
        return epa_fail(err, EPA_ERR_ABORTED, "nvlink: rank %u has left during set-up", r);
    m->region[r] = (struct region){.kind = REGION_SHARED, .base = card->base, .bytes = card->bytes};
    if (other != m->params.device) {
        cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);

        if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled)
            return runtime_fail(m, error, r, "peer access", err);
        (void)cudaGetLastError(); /* clears "already enabled", which is not a failure */
    }
    return EPA_OK;
}

static enum epa_status attach_ipc(struct memory *m, uint32_t r, const struct card *card, bool same,
                                  struct epa_error *err)
{
    void *base = NULL;
    cudaError_t error;

    if (same)
        return share_ipc(m, r, card, err);
    error = cudaIpcOpenMemHandle(&base, card->ipc, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess)
        return runtime_fail(m, error, r, "opening the IPC handle", err);
    m->region[r] = (struct region){.kind = REGION_OPENED, .base = base, .bytes = card->bytes};
    /* Relaxed: the owner reads the counter only after the barrier that ends the set-up. */
    __atomic_add_fetch(page_word(m, r, PAGE_MAPPED), 1, __ATOMIC_RELAXED);
    return EPA_OK;
}

/* Waits for other processes to close this rank's memory: freeing open memory is undefined. */
static void wait_for_others(const struct memory *m)
{
    const uint64_t *mapped = page_word(m, m->rank, PAGE_MAPPED);
    uint64_t begun = 0, waited = 0;

    /* Acquire: pairs with the release in detach(). */
    while (__atomic_load_n(mapped, __ATOMIC_ACQUIRE) != 0 && waited < leave_ns &&
           !epa_aborted(m->params.boot)) {
        epa_backoff(waited, m->wait.spin_ns);
        waited = epa_waited_ns(&begun, waited, leave_ns);
    }
}

/* ---- set-up and teardown ---- */

static void detach(struct memory *m, uint32_t r)
{
    struct region *region = &m->region[r];

    switch (region->kind) {
    case REGION_NONE:
        return;
    case REGION_VMM:
        unmap_vmm(m, region);
        return;
    case REGION_OPENED:
        (void)cudaIpcCloseMemHandle(region->base);
        /* Release: pairs with the acquire in wait_for_others(). */
        __atomic_sub_fetch(page_word(m, r, PAGE_MAPPED), 1, __ATOMIC_RELEASE);
        break;
    case REGION_OWNED:
        wait_for_others(m);
        /* fall through */
    case REGION_SHARED:
        /* Acquire and release: all accesses of other ranks come before the free. */
        if (__atomic_sub_fetch(page_word(m, r, PAGE_USERS), 1, __ATOMIC_ACQ_REL) == 0)
            (void)cudaFree(region->base);
        break;
    }
    *region = (struct region){.kind = REGION_NONE};
}

static void close_own(struct memory *m)
{
    pthread_mutex_lock(&turn);
    if (m->has_handle)
        (void)m->params.driver->release(m->handle);
    pthread_mutex_unlock(&turn);
    m->has_handle = false;
    if (m->fd >= 0)
        close(m->fd);
    m->fd = -1;
}

void memory_finish(struct memory *m)
{
    if (m->size == 0) /* not initialised, or finished */
        return;
    for (uint32_t r = 0; r < m->size; r++) {
        if (r != m->rank)
            detach(m, r);
    }
    detach(m, m->rank); /* last: other ranks may wait until this rank has closed their memory */
    close_own(m);
    segments_finish(&m->pages);
    m->size = 0;
}

static enum epa_status create_own(struct memory *m, struct epa_error *err)
{
    enum epa_status status = m->params.kind == MEMORY_VMM ? create_vmm(m, err) : create_ipc(m, err);
    cudaError_t error;

    if (status != EPA_OK)
        return status;
    error = cudaMemsetAsync(m->region[m->rank].base, 0, m->bytes, m->params.stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(m->params.stream);
    if (error != cudaSuccess)
        return runtime_fail(m, error, m->rank, "zeroing", err);
    return EPA_OK;
}

static enum epa_status compare(const struct memory *m, const struct card *cards,
                               struct epa_error *err)
{
    const struct card *mine = &cards[m->rank];

    for (uint32_t r = 0; r < m->size; r++) {
        if (cards[r].heap_bytes != mine->heap_bytes || cards[r].signals != mine->signals)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "nvlink: rank %u has a heap of %" PRIu64
                            " bytes and %u signals, rank %u of %" PRIu64 " and %u",
                            r, cards[r].heap_bytes, cards[r].signals, m->rank, mine->heap_bytes,
                            mine->signals);
        /* The GPU of rank r may have larger pages; kernels access the heap only. */
        if (cards[r].bytes < m->heap_at + mine->heap_bytes || cards[r].bytes > 2 * m->bytes)
            return epa_fail(err, EPA_ERR_SYSTEM,
                            "nvlink: rank %u says that its region has %" PRIu64
                            " bytes, rank %u has %" PRIu64,
                            r, cards[r].bytes, m->rank, m->bytes);
    }
    return EPA_OK;
}

/* Maps the regions of all ranks; regions of ranks of this process are shared, not mapped. */
static enum epa_status attach_all(struct memory *m, const struct card *cards, struct epa_error *err)
{
    bool vmm = m->params.kind == MEMORY_VMM;
    int fds[EPA_DEVICE_RANKS];
    enum epa_status status =
        vmm ? exchange_fds(m->params.boot, m->params.near, m->fd, exchange_ns, fds, err) : EPA_OK;

    if (status != EPA_OK)
        return status;
    for (uint32_t r = 0; r < m->size && status == EPA_OK; r++) {
        bool same = !m->pages.peer[r].mapped;

        if (r != m->rank && m->params.near[r])
            status = vmm ? attach_vmm(m, r, &cards[r], fds[r], same, err)
                         : attach_ipc(m, r, &cards[r], same, err);
    }
    for (uint32_t r = 0; r < m->size && vmm; r++) {
        if (fds[r] >= 0)
            close(fds[r]);
    }
    return status;
}

static enum epa_status meet(struct memory *m, struct epa_error *err)
{
    struct epa_bootstrap *boot = m->params.boot;
    struct card mine = {.bytes = m->bytes,
                        .heap_bytes = m->params.heap_bytes,
                        .signals = m->params.signals,
                        .handle = m->handle,
                        .base = m->region[m->rank].base};
    struct card cards[EPA_DEVICE_RANKS];
    enum epa_status status;

    if (m->params.kind == MEMORY_IPC) {
        cudaError_t error = cudaIpcGetMemHandle(&mine.ipc, mine.base);

        if (error != cudaSuccess)
            return runtime_fail(m, error, m->rank, "making an IPC handle", err);
    }
    status = boot->allgather(boot, &mine, sizeof(mine), cards);
    if (status != EPA_OK)
        boot->explain(boot, err);
    if (status == EPA_OK)
        status = compare(m, cards, err);
    if (status == EPA_OK)
        status = attach_all(m, cards, err);
    if (status != EPA_OK)
        return status;
    status = boot->barrier(boot); /* all ranks have mapped all regions */
    if (status != EPA_OK)
        boot->explain(boot, err);
    return status;
}

enum epa_status memory_init(struct memory *out, const struct memory_params *p,
                            struct epa_error *err)
{
    const struct segments_params pages = {.name = "nvlink",
                                          .boot = p->boot,
                                          .own_lines = PAGE_WORDS,
                                          .reach = p->far ? REACH_NODE : REACH_HOST,
                                          .huge_pages = HUGE_OFF};
    struct memory *m = out;
    enum epa_status status;

    *m = (struct memory){.params = *p, .fd = -1};
    m->rank = p->boot->world.rank;
    if (p->heap_bytes > INT64_MAX / 2)
        return epa_fail(err, EPA_ERR_CONFIG, "nvlink: a heap of %" PRIu64 " bytes is too large",
                        p->heap_bytes);
    m->heap_at = round_up(((uint64_t)p->signals + OWN_WORDS) * sizeof(uint64_t), HEAP_ALIGN);
    m->bytes = round_up(m->heap_at + p->heap_bytes, GRANULE);
    m->wait = wait_configure(p->boot, WAIT_AUTO);
    status = segments_init(&m->pages, &pages, err);
    if (status != EPA_OK)
        return status;
    m->size = p->boot->world.size; /* memory_finish() releases resources from here on */
    status = create_own(m, err);
    if (status == EPA_OK)
        status = meet(m, err);
    if (status != EPA_OK) {
        memory_finish(m);
        return status;
    }
    close_own(m); /* mappings keep the memory alive; no further process can open it */
    return EPA_OK;
}
