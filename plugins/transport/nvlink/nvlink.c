/* NVLink transport: GPU memory of all ranks, mapped by all, for kernels that load and
 * store. Here it is opened and closed; what the host does in it is in host.c. */
#include "nvlink.h"

#include <stdlib.h>

enum {
    FLAGS = EPA_TRANSPORT_HOST | EPA_TRANSPORT_DEVICE | EPA_TRANSPORT_LOAD_STORE |
            EPA_TRANSPORT_SIGNAL_ADD | EPA_TRANSPORT_ANY_SOURCE,
};

/* For what was queued to end, on close. */
static const uint64_t leave_ns = 10000000000u;

struct config {
    int memory; /* enum memory_kind */
};

/* Also of what is half open. Lost: a GPU that does not finish keeps what it may still use
 * until the process ends; to take it away would be to wait for it. */
static void destroy(struct nvlink *n, bool lost)
{
    for (uint32_t i = 0; i < 2 && !lost; i++) {
        if (n->event[i] != NULL)
            (void)cudaEventDestroy(n->event[i]);
    }
    if (!lost) {
        memory_finish(&n->memory);
        if (n->stream != NULL)
            (void)cudaStreamDestroy(n->stream);
        if (n->reads != NULL)
            (void)cudaStreamDestroy(n->reads);
        if (n->pinned != NULL)
            (void)cudaFreeHost(n->pinned);
    }
    exchange_page_finish(&n->memory.exchange_page);
    (void)cudaGetLastError(); /* nobody else is to stumble over it */
    free(n);
}

/* What this rank still runs in the memory of others ends first: kernels are bounded, and
 * the backend tells them to leave where a rank has failed. */
void nvlink_close(struct epa_transport *t)
{
    struct nvlink *n = (struct nvlink *)t;
    bool lost;

    (void)n->backend->ops->sync(n->backend);
    lost = nvlink_drain(n, n->stream, leave_ns, false) == EPA_ERR_TIMEOUT ||
           nvlink_drain(n, n->reads, leave_ns, false) == EPA_ERR_TIMEOUT ||
           cudaStreamQuery(n->backend->stream) == cudaErrorNotReady;
    destroy(n, lost);
}

static enum epa_status check(const struct epa_transport_params *p, struct epa_error *err)
{
    const struct epa_world *world = &p->boot->world;

    if (p->backend == NULL || p->backend->memory != EPA_MEMORY_CUDA)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "nvlink: its heap is in the memory of a GPU; take backend: cuda");
    if (world->local_size != world->size)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "nvlink: reaches the %u ranks of one node, not all %u; take a "
                        "transport between nodes, or leave out ranks_per_node",
                        world->local_size, world->size);
    if (world->size > EPA_DEVICE_RANKS)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "nvlink: kernels know %d ranks at most, not %u", EPA_DEVICE_RANKS,
                        world->size);
    return EPA_OK;
}

/* Descriptors where every GPU can, as then ranks may leave in any order. */
static enum epa_status choose_memory(const struct nvlink *n, int asked,
                                     enum memory_kind *out, struct epa_error *err)
{
    *out = asked == MEMORY_IPC ? MEMORY_IPC : MEMORY_VMM;
    for (uint32_t r = 0; r < n->boot->world.size && *out == MEMORY_VMM; r++) {
        if (n->gpu[r].passes_memory != 0)
            continue;
        if (asked == MEMORY_VMM)
            return epa_fail(
                err, EPA_ERR_UNSUPPORTED,
                "nvlink: GPU %d (rank %u, %s) cannot pass memory by descriptors; "
                "leave out transport.memory, or set it to ipc",
                n->gpu[r].number, r, n->gpu[r].bus);
        *out = MEMORY_IPC;
    }
    return EPA_OK;
}

static enum epa_status create_streams(struct nvlink *n)
{
    static const char what[] = "making streams and loading kernels";
    cudaError_t error = cudaSetDevice(n->backend->device);

    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&n->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&n->reads, cudaStreamNonBlocking);
    for (uint32_t i = 0; i < 2 && error == cudaSuccess; i++)
        error = cudaEventCreate(&n->event[i]);
    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&n->pinned, PINNED_WORDS * sizeof(*n->pinned),
                              cudaHostAllocPortable);
    if (error == cudaSuccess)
        error = nvlink_load_kernels();
    return nvlink_cuda(n, error, what);
}

static void show(struct nvlink *n)
{
    struct memory *m = &n->memory;

    n->view = (struct epa_device_view){.rank = m->rank,
                                       .size = m->size,
                                       .stop = n->backend->stop,
                                       .fault = n->backend->device_fault};
    for (uint32_t r = 0; r < m->size; r++) {
        n->view.peer_heap[r] = m->region[r].base + m->heap_at;
        n->view.peer_signal[r] = (uint64_t *)(void *)m->region[r].base;
    }
    n->base.flags = FLAGS;
    n->base.heap = n->view.peer_heap[m->rank];
    n->base.heap_bytes = m->params.heap_bytes;
    n->base.peer_heap = n->view.peer_heap;
    n->base.view = &n->view;
}

static enum epa_status set_up(struct nvlink *n, const struct epa_transport_params *p,
                              struct epa_error *err)
{
    const struct config *config = p->config;
    struct memory_params params = {.boot = p->boot,
                                   .driver = &n->driver,
                                   .gpu = n->gpu,
                                   .device = p->backend->device,
                                   .heap_bytes = p->heap_bytes,
                                   .signals = p->signals};
    enum epa_status status = driver_init(&n->driver, err);

    if (status == EPA_OK)
        status = gpus_meet(p->boot, &n->driver, p->backend->device, n->gpu, err);
    if (status == EPA_OK)
        status = choose_memory(n, config->memory, &params.kind, err);
    if (status != EPA_OK)
        return status;
    status = create_streams(n);
    if (status != EPA_OK) {
        nvlink_ops.explain(&n->base, err);
        return status;
    }
    params.stream = n->stream;
    return memory_init(&n->memory, &params, err);
}

static enum epa_status open_all(const struct epa_transport_params *p,
                                struct epa_transport **out, struct epa_error *err)
{
    enum epa_status status = check(p, err);
    struct nvlink *n;

    if (status != EPA_OK)
        return status;
    n = calloc(1, sizeof(*n));
    if (n == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "nvlink: no memory for %u ranks",
                        p->boot->world.size);
    n->boot = p->boot;
    n->backend = p->backend;
    n->base = (struct epa_transport){
        .ops = &nvlink_ops, .rank = p->boot->world.rank, .size = p->boot->world.size};
    status = set_up(n, p, err);
    if (status != EPA_OK) {
        destroy(n, false);
        return status;
    }
    show(n);
    *out = &n->base;
    return EPA_OK;
}

static const struct epa_choice memories[] = {
    {"auto", MEMORY_AUTO, "vmm where every GPU can, else ipc"},
    {"vmm", MEMORY_VMM, "the driver's virtual memory, passed as file descriptors"},
    {"ipc", MEMORY_IPC, "CUDA IPC handles"},
    {0},
};

static const struct config defaults = {.memory = MEMORY_AUTO};

static const struct epa_option options[] = {
    {.name = "memory",
     EPA_CHOICE(struct config, memory),
     .choices = memories,
     .help = "how ranks get at each other's GPU memory"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "nvlink",
               .summary = "GPU memory of the ranks of one node, over NVLink",
               .options = {options, sizeof(struct config), &defaults}},
    .flags = FLAGS,
    .memory = EPA_MEMORY_CUDA,
    .open = open_all,
};
