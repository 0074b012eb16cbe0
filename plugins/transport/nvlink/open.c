/* Opens and closes the transport: near ranks, memory, streams, the proxy for other nodes, options. */
#include "close.h"
#include "far.h"
#include "gpus.h"
#include "nvlink.h"
#include "state.h"
#include "stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FLAGS = EPA_TRANSPORT_HOST | EPA_TRANSPORT_DEVICE | EPA_TRANSPORT_LOAD_STORE |
            EPA_TRANSPORT_SIGNAL_ADD | EPA_TRANSPORT_ANY_SOURCE,
};

struct config {
    int memory; /* enum memory_kind */
    const char *between_nodes;
    int direct; /* enum direct_kind */
};

enum { BOOT_ID = 40 };

/* Counts the ranks on this rank's host in *here. ranks_per_node may divide one host into several
 * nodes, all of which this transport reaches. */
static enum epa_status count_host(struct epa_bootstrap *boot, uint32_t *here, struct epa_error *err)
{
    const struct epa_world *world = &boot->world;
    char mine[BOOT_ID] = "", all[EPA_DEVICE_RANKS][BOOT_ID];
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    enum epa_status status;

    if (file != NULL) {
        if (fgets(mine, sizeof(mine), file) == NULL)
            mine[0] = 0;
        fclose(file);
    }
    status = boot->allgather(boot, mine, sizeof(mine), all);
    if (status != EPA_OK) {
        boot->explain(boot, err);
        return status;
    }
    for (uint32_t r = 0; r < world->size; r++)
        *here += strncmp(all[r], mine, sizeof(mine)) == 0;
    return EPA_OK;
}

static enum epa_status check(const struct epa_transport_params *p, bool *one_host,
                             struct epa_error *err)
{
    const struct epa_world *world = &p->boot->world;
    uint32_t here = 0;
    enum epa_status status;

    if (p->backend == NULL || p->backend->memory != EPA_MEMORY_CUDA)
        return epa_fail_key(err, EPA_ERR_CONFIG, "transport.name backend.name",
                            "nvlink: its heap is in the memory of a GPU; take backend: cuda");
    if (world->size > EPA_DEVICE_RANKS)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "ranks",
                            "nvlink: kernels know %d ranks at most, not %u", EPA_DEVICE_RANKS,
                            world->size);
    *one_host = true;
    if (world->local_size == world->size)
        return EPA_OK;
    status = count_host(p->boot, &here, err);
    *one_host = here == world->size;
    if (status == EPA_OK && !*one_host && p->between == NULL)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.between_nodes transport.name",
                            "nvlink: reaches the %u ranks of one host, not all %u; set "
                            "transport.between_nodes to a transport between hosts",
                            here, world->size);
    return status;
}

/* Prefers descriptors if every GPU supports them, since ranks may then leave in any order. */
static enum epa_status choose_memory(const struct nvlink *n, int asked, enum memory_kind *out,
                                     struct epa_error *err)
{
    *out = asked == MEMORY_IPC ? MEMORY_IPC : MEMORY_VMM;
    for (uint32_t r = 0; r < n->base.size && *out == MEMORY_VMM; r++) {
        if (n->gpu[r].passes_memory != 0)
            continue;
        if (asked == MEMORY_VMM)
            return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.memory",
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
    if (error == cudaSuccess)
        return EPA_OK;
    (void)nvlink_cuda(n, error, what);
    n->failure.status = nvlink_status(error);
    return n->failure.status;
}

static void show(struct nvlink *n)
{
    struct memory *m = &n->memory;

    n->view = (struct epa_device_view){.rank = n->base.rank,
                                       .size = n->base.size,
                                       .stop = n->backend->stop,
                                       .beat = n->backend->beat,
                                       .fault = n->backend->device_fault};
    for (uint32_t r = 0; r < n->base.size; r++) {
        if (!n->near[r])
            continue;
        n->view.peer_heap[r] = m->region[r].base + m->heap_at;
        n->view.peer_signal[r] = (uint64_t *)(void *)m->region[r].base;
    }
    n->base.flags = FLAGS;
    n->base.heap = n->view.peer_heap[n->base.rank];
    n->base.heap_bytes = m->params.heap_bytes;
    n->base.peer_heap = n->view.peer_heap;
    n->base.view = &n->view;
}

static enum epa_status set_up(struct nvlink *n, const struct epa_transport_params *p, bool far,
                              struct epa_error *err)
{
    const struct config *config = p->config;
    struct memory_params params = {.boot = n->boot,
                                   .near = n->near,
                                   .far = far,
                                   .driver = &n->driver,
                                   .gpu = n->gpu,
                                   .device = p->backend->device,
                                   .heap_bytes = p->heap_bytes,
                                   .signals = p->signals};
    enum epa_status status = driver_init(&n->driver, err);

    if (status == EPA_OK)
        status = gpus_meet(n->boot, n->near, &n->driver, p->backend->device, n->gpu, err);
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

static void describe(struct epa_transport *t,
                     void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    far_describe(nvlink_of(t)->far, say, arg);
}

/* Without device_peak(), which does not measure links to other nodes. */
static enum epa_status open_far(struct nvlink *n, const struct epa_transport_params *p,
                                bool one_host, struct epa_error *err)
{
    const struct far_params params = {.boot = p->boot,
                                      .backend = p->backend,
                                      .driver = &n->driver,
                                      .net = p->between,
                                      .net_config = p->between_config != NULL
                                                        ? p->between_config
                                                        : p->between->plugin.options.defaults,
                                      .one_host = one_host,
                                      .heap = n->base.heap,
                                      .signal = n->view.peer_signal[n->base.rank],
                                      .heap_bytes = p->heap_bytes,
                                      .signals = p->signals,
                                      .trace = p->trace,
                                      .direct = ((const struct config *)p->config)->direct,
                                      .region = &n->memory.region[n->base.rank]};
    enum epa_status status = far_open(&params, &n->far, err);

    if (status != EPA_OK)
        return status;
    n->ops = nvlink_ops;
    n->ops.device_peak = NULL;
    n->ops.describe = describe;
    n->base.ops = &n->ops;
    n->base.flags = (n->base.flags & ~(uint32_t)EPA_TRANSPORT_LOAD_STORE) | EPA_TRANSPORT_NODES;
    if (!far_adds(n->far))
        n->base.flags &= ~(uint32_t)EPA_TRANSPORT_SIGNAL_ADD;
    n->base.ring = far_ring(n->far);
    return EPA_OK;
}

static enum epa_status open_all(const struct epa_transport_params *p, struct epa_transport **out,
                                struct epa_error *err)
{
    const struct epa_world *world = &p->boot->world;
    bool one_host, far = p->between != NULL && world->local_size < world->size;
    enum epa_status status = check(p, &one_host, err);
    struct nvlink *n;

    if (status != EPA_OK)
        return status;
    n = calloc(1, sizeof(*n));
    if (n == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "nvlink: no memory for %u ranks", world->size);
    n->boot = p->boot;
    n->backend = p->backend;
    n->base = (struct epa_transport){.ops = &nvlink_ops, .rank = world->rank, .size = world->size};
    for (uint32_t r = 0; r < world->size; r++) /* the proxy reaches the other ranks */
        n->near[r] = !far || epa_same_node(world, r);
    status = set_up(n, p, far, err);
    if (status == EPA_OK)
        show(n);
    if (status == EPA_OK && far)
        status = open_far(n, p, one_host, err);
    if (status != EPA_OK) {
        nvlink_destroy(n, false);
        return status;
    }
    *out = &n->base;
    return EPA_OK;
}

static const char *between_nodes(const void *config)
{
    return ((const struct config *)config)->between_nodes;
}

static const struct epa_choice memories[] = {
    {"auto", MEMORY_AUTO, "vmm if every GPU supports it, else ipc"},
    {"vmm", MEMORY_VMM, "the driver's virtual memory, passed as file descriptors"},
    {"ipc", MEMORY_IPC, "CUDA IPC handles"},
    {0},
};

static const struct epa_choice directs[] = {
    {"auto", DIRECT_AUTO,
     "direct where every GPU and the transport between nodes can, else staged"},
    {"on", DIRECT_ON, "direct; fail where one cannot"},
    {"off", DIRECT_OFF, "staged"},
    {0},
};

static const struct config defaults = {.memory = MEMORY_AUTO, .direct = DIRECT_AUTO};

static const struct epa_option options[] = {
    {.name = "memory",
     EPA_CHOICE(struct config, memory),
     .choices = memories,
     .help = "mechanism that maps GPU memory of other ranks"},
    {.name = "between_nodes",
     EPA_STRING(struct config, between_nodes),
     .help =
         "transport to ranks of other nodes: ucx, or {name: ucx, tls: tcp} with options of ucx"},
    {.name = "direct",
     EPA_CHOICE(struct config, direct),
     .choices = directs,
     .help = "data to other nodes go straight from GPU memory, or by pinned host memory"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "nvlink",
               .summary =
                   "GPU memory of the ranks of a node, over NVLink; to other nodes by a proxy",
               .options = {options, sizeof(struct config), &defaults}},
    .flags = FLAGS,
    .memory = EPA_MEMORY_CUDA,
    .between_nodes = between_nodes,
    .open = open_all,
};
