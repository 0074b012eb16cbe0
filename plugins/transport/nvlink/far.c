/* Ranks of other nodes: rings, the host's part of the protocol, and the choice between the direct
 * and the staged way. See nvlink.h. */
#include "far.h"

#include "copies.h"
#include "state.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

enum {
    KERNEL_SLOTS = 1024, /* slots of the ring that kernels write; 64 KiB */
    HOST_SLOTS = 256,
};

/* ---- the proxy's bootstrap ---- */

/* Bootstrap for the transport between nodes; forwards to `real`. The world may show all ranks as
 * ranks of one node. */
struct far_boot {
    struct epa_bootstrap base; /* first */
    struct epa_bootstrap *real;
};

static struct epa_bootstrap *real_of(struct epa_bootstrap *boot)
{
    return ((struct far_boot *)boot)->real; /* base is the first member */
}

static enum epa_status gather(struct epa_bootstrap *boot, const void *mine, size_t bytes, void *all)
{
    return real_of(boot)->allgather(real_of(boot), mine, bytes, all);
}

static enum epa_status meet(struct epa_bootstrap *boot)
{
    return real_of(boot)->barrier(real_of(boot));
}

static void raise_abort(struct epa_bootstrap *boot)
{
    real_of(boot)->abort(real_of(boot));
}

static void explain_boot(struct epa_bootstrap *boot, struct epa_error *err)
{
    real_of(boot)->explain(real_of(boot), err);
}

/* Makes the bootstrap. `one_host`: all ranks are on one host, so the transport sees one node. The
 * proxy's thread does not report its waits: the rank's own thread does. */
static void make_net_boot(struct epa_bootstrap *real, bool one_host, struct far_boot *out)
{
    struct epa_world *world = &out->base.world;

    out->real = real;
    out->base = (struct epa_bootstrap){.world = real->world,
                                       .aborted = real->aborted,
                                       .allgather = gather,
                                       .barrier = meet,
                                       .abort = raise_abort,
                                       .explain = explain_boot};
    if (!one_host)
        return;
    world->local_rank = world->rank;
    world->local_size = world->size;
    world->node = NULL;
}

/* ---- rings, and the host's part of the protocol ---- */

enum { REASON = 224 };

struct far {
    struct far_params params;
    struct far_boot net_boot;
    struct epa_wait_config wait;
    struct copies copies;
    bool far[EPA_DEVICE_RANKS];
    bool fence[EPA_DEVICE_RANKS]; /* a fence precedes the host's next operation for that rank */
    struct far_words {
        _Alignas(64) uint64_t kernel_taken;
        _Alignas(64) uint64_t host_taken, host_ticket;
        _Alignas(64) struct epa_descriptor kernel[KERNEL_SLOTS], host[HOST_SLOTS];
        _Alignas(64) char payload[KERNEL_SLOTS][EPA_RING_PAYLOAD];
    } * words;      /* pinned */
    void *counters; /* in GPU memory */
    struct epa_device_ring ring;
    struct epa_host_ring host_ring;
    struct proxy *proxy;
    uint64_t quiets, arrivals;
    struct proxy_region region; /* base NULL: data is staged */
    char staged[REASON];        /* reason for staging */
};

static enum epa_status make_rings(struct far *f, struct epa_error *err)
{
    struct epa_backend *b = f->params.backend;
    struct epa_error why = {EPA_OK, ""};
    char *words = NULL;
    cudaError_t error = cudaSetDevice(b->device);
    enum epa_status status;

    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&f->words, sizeof(*f->words),
                              cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaSuccess) {
        memset(f->words, 0, sizeof(*f->words));
        error = cudaHostGetDevicePointer((void **)&words, f->words, 0);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return epa_fail_key(err, nvlink_status(error), EPA_LIMIT_NAMED,
                            "nvlink: rank %u: allocating rings: %s", f->params.boot->world.rank,
                            cudaGetErrorString(error));
    }
    status = b->ops->alloc(b, 2 * sizeof(uint64_t), &f->counters); /* zeroed */
    if (status != EPA_OK) {
        b->ops->explain(b, &why);
        return epa_fail(epa_awaits_as(err, &why), status, "nvlink: rank %u: %s",
                        f->params.boot->world.rank, why.text);
    }
    f->ring = (struct epa_device_ring){
        .slot = (void *)(words + offsetof(struct far_words, kernel)),
        .taken = (void *)(words + offsetof(struct far_words, kernel_taken)),
        .ticket = f->counters,
        .known = (uint64_t *)f->counters + 1,
        .payload = words + offsetof(struct far_words, payload),
        .slots = KERNEL_SLOTS};
    f->host_ring = (struct epa_host_ring){.slot = f->words->host,
                                          .taken = &f->words->host_taken,
                                          .ticket = &f->words->host_ticket,
                                          .slots = HOST_SLOTS};
    return EPA_OK;
}

/* ---- direct or staged ---- */

/* Finds the kind of memory that the region is for a NIC, or the reason why a NIC cannot use it. */
static enum epa_status direct_gpu(const struct far *f, enum epa_memory *out, struct epa_error *why)
{
    const struct driver *d = f->params.driver;
    const struct region *region = f->params.region;
    CUmemorytype type = CU_MEMORYTYPE_DEVICE;
    int rdma = 0, vmm = 1, ordering = 0, device = f->params.backend->device;

    *out = EPA_MEMORY_HOST; /* an emulated GPU has host memory */
    if (d->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                             (CUdeviceptr)(uintptr_t)region->base) == CUDA_SUCCESS &&
        type == CU_MEMORYTYPE_HOST)
        return EPA_OK;
    *out = EPA_MEMORY_CUDA;
    if (d->device_attribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, device) !=
        CUDA_SUCCESS)
        rdma = 0;
    if (region->kind == REGION_VMM &&
        d->device_attribute(&vmm, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                            device) != CUDA_SUCCESS)
        vmm = 0;
    if (rdma == 0 || vmm == 0)
        return epa_fail(why, EPA_ERR_UNSUPPORTED, "GPU %d has no GPUDirect RDMA for %s", device,
                        rdma == 0 ? "its memory" : "memory: vmm; memory: ipc may do");
    /* A kernel polls a signal that a NIC wrote after the data. The GPU guarantees this order from
     * ordering level OWNER on. Below OWNER, cuFlushGPUDirectRDMAWrites() would have to run between
     * data and signal, which is impossible with puts of a NIC. */
    if (d->device_attribute(&ordering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
                            device) != CUDA_SUCCESS ||
        ordering < CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
        return epa_fail(why, EPA_ERR_UNSUPPORTED, "GPU %d does not see what a NIC writes in order",
                        device);
    return EPA_OK;
}

static enum epa_status can_direct(struct far *f, struct epa_error *why)
{
    const struct epa_transport_plugin *net = f->params.net;
    enum epa_status status = direct_gpu(f, &f->region.memory, why), met;

    if (net->takes == NULL)
        return epa_fail(why, EPA_ERR_UNSUPPORTED, "%s takes no memory that it did not allocate",
                        net->plugin.name);
    /* takes() is collective, so this rank calls it even if its GPU is unsuitable. */
    met = net->takes(&f->net_boot.base, f->params.net_config, f->region.memory,
                     status == EPA_OK ? why : &(struct epa_error){EPA_OK, ""});
    return status == EPA_OK ? met : status;
}

/* Collective: all ranks choose the same way. */
static enum epa_status choose_way(struct far *f, struct epa_error *err)
{
    struct epa_bootstrap *boot = f->params.boot;
    const struct region *region = f->params.region;
    char(*all)[REASON] = calloc(boot->world.size, REASON), mine[REASON] = "";
    struct epa_error why = {EPA_OK, ""};
    enum epa_status status;

    if (all == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "nvlink: no memory for a proxy");
    if (f->params.direct == DIRECT_OFF)
        snprintf(f->staged, REASON, "transport.direct is off");
    else if (can_direct(f, &why) != EPA_OK)
        snprintf(mine, REASON, "%.*s", REASON - 1, why.text);
    status = boot->allgather(boot, mine, REASON, all);
    if (status != EPA_OK)
        boot->explain(boot, err);
    for (uint32_t r = 0; r < boot->world.size && f->staged[0] == '\0' && status == EPA_OK; r++)
        if (all[r][0] != '\0')
            snprintf(f->staged, REASON, "%.*s", REASON - 1, all[r]);
    free(all);
    if (status != EPA_OK)
        return status;
    if (f->staged[0] != '\0')
        return f->params.direct != DIRECT_ON
                   ? EPA_OK
                   : epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.direct",
                                  "nvlink: transport.direct: on, but %s; auto stages data",
                                  f->staged);
    f->region.base = region->base;
    f->region.bytes = (uint64_t)(f->params.heap - region->base) + f->params.heap_bytes;
    return EPA_OK;
}

static void destroy(struct far *f, bool lost)
{
    if (f->counters != NULL)
        f->params.backend->ops->free(f->params.backend, f->counters);
    if (f->words != NULL && !lost)
        (void)cudaFreeHost(f->words);
    if (!lost)
        free(f);
}

enum epa_status far_open(const struct far_params *params, struct far **out, struct epa_error *err)
{
    struct far *f = calloc(1, sizeof(*f));
    enum epa_status status;

    if (f == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "nvlink: no memory for a proxy");
    f->params = *params;
    f->wait = wait_configure(params->boot, WAIT_AUTO);
    make_net_boot(params->boot, params->one_host, &f->net_boot);
    for (uint32_t r = 0; r < params->boot->world.size; r++)
        f->far[r] = !epa_same_node(&params->boot->world, r);
    copies_init(&f->copies, params->driver, params->backend);
    status = make_rings(f, err);
    if (status == EPA_OK)
        status = choose_way(f, err);
    if (status == EPA_OK)
        status = proxy_start(
            &(struct proxy_params){
                .boot = &f->net_boot.base,
                .net = params->net,
                .net_config = params->net_config,
                .far = f->far,
                .copies = &f->copies.base,
                .heap = params->heap,
                .signal = params->signal,
                .heap_bytes = params->heap_bytes,
                .signals = params->signals,
                .region = f->region,
                .trace = params->trace,
                .ring = {{.slot = f->words->kernel,
                          .taken = &f->words->kernel_taken,
                          .payload = f->words->payload[0],
                          .slots = KERNEL_SLOTS},
                         f->host_ring},
            },
            &f->proxy, err);
    if (status != EPA_OK) {
        destroy(f, false);
        return status;
    }
    *out = f;
    return EPA_OK;
}

bool far_close(struct far *f)
{
    bool lost;

    if (f == NULL)
        return true;
    proxy_stop(f->proxy);
    lost = !copies_left(&f->copies);
    destroy(f, lost);
    return !lost;
}

const struct epa_device_ring *far_ring(const struct far *f)
{
    return &f->ring;
}

bool far_adds(const struct far *f)
{
    return f->region.base == NULL;
}

enum epa_status far_status(const struct far *f)
{
    return proxy_status(f->proxy);
}

void far_explain(const struct far *f, struct epa_error *err)
{
    proxy_explain(f->proxy, err);
}

void far_fence(struct far *f, uint32_t peer)
{
    f->fence[peer] = true;
}

/* Writes a pending fence first. The fence stays pending if the ring has no room. */
enum epa_status far_ask(struct far *f, struct epa_descriptor what)
{
    struct epa_descriptor fence = {.op = EPA_RING_FENCE, .peer = what.peer};
    enum epa_status status = far_status(f);

    if (status != EPA_OK)
        return status;
    if (f->fence[what.peer] && !epa_ring_write(&f->host_ring, &fence))
        return EPA_AGAIN;
    f->fence[what.peer] = false;
    return epa_ring_write(&f->host_ring, &what) ? EPA_OK : EPA_AGAIN;
}

/* One step of a wait of the host for the proxy. */
static enum epa_status turn(struct far *f, struct epa_wait *wait, struct failure *failure)
{
    enum epa_status status = far_status(f);

    return status == EPA_OK ? wait_turn(&f->wait, wait, failure) : status;
}

static enum epa_status ask_patiently(struct far *f, struct epa_descriptor what,
                                     struct epa_wait *wait, struct failure *failure)
{
    enum epa_status status;

    while ((status = far_ask(f, what)) == EPA_AGAIN) {
        failure->peer = what.peer;
        status = turn(f, wait, failure);
        if (status != EPA_OK)
            return status;
    }
    return status;
}

enum epa_status far_quiet(struct far *f, uint64_t timeout_ns, struct failure *failure)
{
    struct epa_wait wait = {.timeout_ns = timeout_ns};
    struct epa_descriptor what = {
        .op = PROXY_QUIET, .peer = f->params.boot->world.rank, .value = f->quiets + 1};
    enum epa_status status;

    *failure = (struct failure){.at = FAILED_QUIET};
    status = ask_patiently(f, what, &wait, failure);
    f->quiets += status == EPA_OK;
    while (status == EPA_OK) {
        const uint64_t *quiets = proxy_quiet(f->proxy, &failure->peer);

        /* Acquire: pairs with the release of the proxy. */
        if (__atomic_load_n(quiets, __ATOMIC_ACQUIRE) >= f->quiets)
            return epa_wait_done(&f->wait, &wait);
        status = turn(f, &wait, failure);
    }
    return status;
}

enum epa_status far_arrive(struct far *f, uint64_t timeout_ns, struct failure *failure)
{
    struct epa_wait wait = {.timeout_ns = timeout_ns};
    enum epa_status status = EPA_OK;

    f->arrivals++;
    *failure = (struct failure){.at = FAILED_QUIET};
    for (uint32_t r = 0; r < f->params.boot->world.size && status == EPA_OK; r++) {
        struct epa_descriptor what = {.op = PROXY_ARRIVE, .peer = r, .value = f->arrivals};

        if (f->far[r])
            status = ask_patiently(f, what, &wait, failure);
    }
    return status == EPA_OK ? epa_wait_done(&f->wait, &wait) : status;
}

enum epa_status far_await(struct far *f, uint64_t timeout_ns, struct failure *failure)
{
    struct epa_wait wait = {.timeout_ns = timeout_ns};
    uint32_t size = f->params.boot->world.size;
    enum epa_status status = EPA_OK;

    *failure = (struct failure){.at = FAILED_BARRIER, .compare = EPA_GE, .want = f->arrivals};
    for (uint32_t r = 0; r < size && status == EPA_OK; r++) {
        const uint64_t *arrived = proxy_arrived(f->proxy, r);

        /* Acquire: pairs with the release of the proxy. */
        while (f->far[r] && status == EPA_OK &&
               (failure->seen = __atomic_load_n(arrived, __ATOMIC_ACQUIRE)) < f->arrivals) {
            failure->peer = r;
            status = turn(f, &wait, failure);
        }
    }
    if (status == EPA_OK)
        return epa_wait_done(&f->wait, &wait);
    for (uint32_t r = 0; r < size; r++)
        if (f->far[r] &&
            __atomic_load_n(proxy_arrived(f->proxy, r), __ATOMIC_RELAXED) < f->arrivals)
            wait_note_missing(failure, r);
    return status;
}

void far_describe(const struct far *f, void (*say)(void *arg, const char *key, const char *value),
                  void *arg)
{
    char text[REASON + 64];
    uint32_t far = 0;

    for (uint32_t r = 0; r < f->params.boot->world.size; r++)
        far += f->far[r];
    snprintf(text, sizeof(text), "%u of %u peers, by %s", far, f->params.boot->world.size - 1,
             f->params.net->plugin.name);
    say(arg, "between nodes", text);
    if (f->region.base != NULL)
        snprintf(text, sizeof(text), "direct: %s puts from and to GPU memory",
                 f->params.net->plugin.name);
    else
        snprintf(text, sizeof(text), "staged in pinned host memory: %s", f->staged);
    say(arg, "data between nodes", text);
    snprintf(text, sizeof(text), "of %u of these peers", proxy_reaches(f->proxy));
    if (f->region.base == NULL)
        say(arg, "copies reach the staging", text);
    proxy_describe(f->proxy, say, arg);
}
