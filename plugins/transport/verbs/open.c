/* Opens and closes the verbs transport: memory, rings, queue pairs, options. verbs.c contains the
 * data path. */
#include "close.h"
#include "connect.h"
#include "device.h"
#include "dmabuf.h"
#include "sources.h"
#include "state.h"
#include "verbs.h"
#include "waits.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum {
    AT_BEST = EPA_TRANSPORT_HOST | EPA_TRANSPORT_NODES | EPA_TRANSPORT_SIGNAL_ADD |
              EPA_TRANSPORT_LOAD_STORE,
    REQUEST_MOST = 1 << 30, /* bytes of a request; its length has 32 bits */
    PAGE = 4096,
};

/* Allocates the rings of all queues. A ring holds the pieces of a whole heap and a signal. */
static enum epa_status make_rings(struct verbs *v, uint64_t heap_bytes, uint32_t *slots,
                                  struct epa_error *err)
{
    struct queues *q = &v->queues;
    uint32_t size = v->base.size;
    uint64_t n, pieces;
    struct ibv_send_wr *wr;
    struct ibv_sge *sge;

    q->most_bytes = v->device.port.most_message & ~(uint64_t)(PAGE - 1);
    if (q->most_bytes > REQUEST_MOST || q->most_bytes == 0)
        q->most_bytes = REQUEST_MOST;
    pieces = queue_pieces(q, heap_bytes) + 1;
    n = (pieces > v->config.depth ? pieces : v->config.depth) + 1;
    if (n > UINT32_MAX / size)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "verbs: a heap of %" PRIu64 " bytes in messages of %" PRIu64
                        " does not fit into any queue",
                        heap_bytes, q->most_bytes);
    *slots = (uint32_t)n;
    q->ask_every = (uint32_t)n / 4 > 0 ? (uint32_t)n / 4 : 1;
    q->batch = v->config.batch;
    v->pinned_bytes = ((size * (n + 1)) * sizeof(uint64_t) + PAGE - 1) / PAGE * PAGE;
    /* MAP_SHARED keeps the same physical pages after a fork. */
    v->pinned =
        mmap(NULL, v->pinned_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    v->pinned = v->pinned == MAP_FAILED ? NULL : v->pinned;
    q->queue = calloc(size, sizeof(*q->queue));
    wr = calloc(size * n, sizeof(*wr));
    sge = calloc(size * n, sizeof(*sge));
    if (q->queue == NULL || wr == NULL || sge == NULL || v->pinned == NULL) {
        free(wr);
        free(sge);
        free(q->queue);
        q->queue = NULL;
        return epa_fail(err, EPA_ERR_NOMEM, "verbs: no memory for %u queues of %u", size, *slots);
    }
    q->n = size;
    for (uint32_t r = 0; r < size; r++) {
        uint64_t *value = (uint64_t *)v->pinned + r * (n + 1);

        q->queue[r] = (struct queue){.peer = r,
                                     .slots = *slots,
                                     .wr = wr + r * n,
                                     .sge = sge + r * n,
                                     .value = value,
                                     .dump = value + n};
    }
    return EPA_OK;
}

/* Registers the caller's heap, and prepares registrations of the sources of puts. */
static enum epa_status take_heap(struct verbs *v, const struct epa_transport_params *p,
                                 uint64_t pinned, struct epa_error *err)
{
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct dmabuf_range range = {.bytes = p->heap_bytes};
    enum epa_status status = EPA_OK;

    if (!v->on_gpu) {
        status =
            device_register(&v->device, p->heap, p->heap_bytes, access, pinned, &v->heap_mr, err);
    } else {
        status = dmabuf_init(&v->dmabuf, err);
        if (status == EPA_OK) {
            dmabuf_find(&v->dmabuf, p->heap, &range);
            range.start = (uintptr_t)p->heap;
            range.bytes = p->heap_bytes;
            status = dmabuf_register(&v->dmabuf, &v->device, &range, access, &v->heap_mr, err);
        }
    }
    if (status == EPA_OK)
        status =
            sources_init(&v->sources, &v->device, v->on_gpu ? &v->dmabuf : NULL, &v->queues, err);
    return status;
}

static enum epa_status make_memory(struct verbs *v, const struct epa_transport_params *p,
                                   struct epa_error *err)
{
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    const struct segments_params params = {.name = "verbs",
                                           .boot = p->boot,
                                           .heap_bytes = v->given ? 0 : p->heap_bytes,
                                           .signals = p->signals,
                                           .own_lines = v->base.size,
                                           .reach = v->config.direct && !v->given ? REACH_NODE
                                                                                  : REACH_OWN,
                                           .huge_pages = HUGE_AUTO,
                                           .prefault = true};
    uint64_t pinned = v->pinned_bytes;
    enum epa_status status = EPA_OK;

    if (p->heap_bytes <= INT64_MAX / 2) { /* segments_init() refuses larger heaps */
        pinned += segments_bytes(&params) + (v->given && !v->on_gpu ? p->heap_bytes : 0);
        status = device_may_pin(pinned, err);
    }
    if (status == EPA_OK)
        status = segments_init(&v->segments, &params, err);
    if (status != EPA_OK)
        return status;
    v->peer = v->segments.peer;
    status = device_register(&v->device, v->peer[v->base.rank].segment, v->segments.bytes, access,
                             pinned, &v->mr, err);
    if (status == EPA_OK)
        status = device_register(&v->device, v->pinned, v->pinned_bytes, IBV_ACCESS_LOCAL_WRITE,
                                 pinned, &v->pinned_mr, err);
    if (status == EPA_OK && v->given)
        status = take_heap(v, p, pinned, err);
    v->heap_key = status != EPA_OK ? 0 : v->given ? v->heap_mr->lkey : v->mr->lkey;
    return status;
}

static enum epa_status connect(struct verbs *v, uint32_t slots, struct epa_error *err)
{
    const struct connect_params params = {.boot = v->boot,
                                          .config = &v->config,
                                          .device = &v->device,
                                          .base = (uintptr_t)v->peer[v->base.rank].segment,
                                          .heap = (uintptr_t)v->base.heap,
                                          .key = v->mr->rkey,
                                          .heap_key = v->given ? v->heap_mr->rkey : v->mr->rkey,
                                          .slots = slots};
    enum epa_status status;

    v->queues.pinned_key = v->pinned_mr->lkey;
    status = connect_create(&params, &v->queues, err);
    if (status == EPA_OK)
        status = connect_all(&params, &v->queues, &v->mtu, err);
    v->connected = status == EPA_OK;
    return status;
}

/* Yields at once for a software device, which needs the core. */
static void choose_wait(struct verbs *v)
{
    enum wait_kind kind = (enum wait_kind)v->config.wait;

    if (kind == WAIT_AUTO && v->device.software)
        kind = WAIT_YIELD;
    v->wait = wait_configure(v->boot, kind);
    /* Hardware writes 8 aligned bytes atomically; a software device may copy single bytes. */
    v->settle_ns = v->device.software ? 1000 : 0;
}

static void set_base(struct verbs *v, const struct epa_transport_params *p)
{
    uint32_t near = 0;

    for (uint32_t r = 0; r < v->base.size; r++) {
        v->peer_heap[r] = !v->given ? v->peer[r].heap : r == v->base.rank ? p->heap : NULL;
        near += v->peer_heap[r] != NULL;
    }
    v->base.ops = &verbs_ops;
    v->base.flags = AT_BEST;
    if (near < v->base.size)
        v->base.flags &= ~(uint32_t)EPA_TRANSPORT_LOAD_STORE;
    if (v->given)
        v->base.flags |= EPA_TRANSPORT_ANY_SOURCE;
    v->base.heap = v->peer_heap[v->base.rank];
    v->base.heap_bytes = p->heap_bytes;
    v->base.peer_heap = v->peer_heap;
}

static enum epa_status set_up(struct verbs *v, const struct epa_transport_params *p,
                              struct epa_error *err)
{
    uint32_t slots = 0;
    enum epa_status status = device_open(&v->config, &v->device, err);

    if (status == EPA_OK)
        status = make_rings(v, p->heap_bytes, &slots, err);
    if (status == EPA_OK)
        status = make_memory(v, p, err);
    if (status == EPA_OK) {
        set_base(v, p);
        choose_wait(v);
        status = connect(v, slots, err);
    }
    return status;
}

static enum epa_status open_all(const struct epa_transport_params *p, struct epa_transport **out,
                                struct epa_error *err)
{
    uint32_t size = p->boot->world.size;
    struct verbs *v = calloc(1, sizeof(*v));
    enum epa_status status;

    if (v == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "verbs: no memory");
    v->boot = p->boot;
    v->config = *(const struct config *)p->config;
    v->base.rank = p->boot->world.rank;
    v->base.size = size;
    v->given = p->heap != NULL;
    v->on_gpu = v->given && p->backend->memory == EPA_MEMORY_CUDA;
    v->peer_heap = calloc(size, sizeof(*v->peer_heap));
    v->ordered = calloc(size, sizeof(*v->ordered));
    if (v->peer_heap == NULL || v->ordered == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "verbs: no memory for %u ranks", size);
    else
        status = set_up(v, p, err);
    if (status != EPA_OK) {
        verbs_close(&v->base);
        return status;
    }
    *out = &v->base;
    return EPA_OK;
}

static enum epa_status check(const void *config, struct epa_error *err)
{
    return device_check(config, err);
}

/* Any device accepts host memory. GPU memory requires a hardware device and dma-buf export. */
static enum epa_status takes(struct epa_bootstrap *boot, const void *config, enum epa_memory memory,
                             struct epa_error *err)
{
    struct device device;
    enum epa_status status;

    (void)boot;
    if (memory == EPA_MEMORY_HOST)
        return device_check(config, err);
    status = device_open(config, &device, err);
    if (status != EPA_OK)
        return status;
    status = dmabuf_check(&device, err);
    device_close(&device);
    return status;
}

static const struct epa_choice waits[] = {
    {"auto", WAIT_AUTO,
     "spin 20 us, then yield; with more ranks than cores, or a software device, yield "
     "at once"},
    {"spin", WAIT_SPIN, "poll without yielding the core"},
    {"yield", WAIT_YIELD, "yield the core after each poll"},
    {0},
};

static const struct epa_choice mtus[] = {
    {"auto", 0, "minimum of the ports of two ranks"},
    {"256", 256, NULL},
    {"512", 512, NULL},
    {"1024", 1024, NULL},
    {"2048", 2048, NULL},
    {"4096", 4096, NULL},
    {0},
};

static const struct config defaults = {.gid = "auto",
                                       .pkey = "auto",
                                       .timeout = 16,
                                       .retries = 6, /* soft-RoCE treats 7 as infinite */
                                       .depth = 128,
                                       .batch = 16,
                                       .inline_bytes = 64,
                                       .direct = true,
                                       .wait = WAIT_AUTO};

static const struct epa_option options[] = {
    {.name = "device",
     EPA_STRING(struct config, device),
     .help = "name as in `ibv_devices`; the default is the first with an active port"},
    {.name = "port",
     EPA_U32(struct config, port),
     .max = 255,
     .help = "port of the device; 0: the first active port"},
    {.name = "gid",
     EPA_STRING(struct config, gid),
     .help = "index or address of the GID; auto: the first RoCE v2 GID of an IPv4 address, "
             "else the first GID"},
    {.name = "mtu",
     EPA_CHOICE(struct config, mtu),
     .choices = mtus,
     .help = "maximum packet size in bytes"},
    {.name = "pkey",
     EPA_STRING(struct config, pkey),
     .help = "partition key, such as 0x8001; auto: the first of the port"},
    {.name = "service_level",
     EPA_U32(struct config, service_level),
     .max = 15,
     .help = "service level of InfiniBand, or priority on Ethernet"},
    {.name = "traffic_class",
     EPA_U32(struct config, traffic_class),
     .max = 255,
     .help = "traffic class of the global header; on RoCE v2 the DSCP times 4"},
    {.name = "timeout",
     EPA_U32(struct config, timeout),
     .min = 1,
     .max = 31,
     .help = "exponent of the retransmission timeout: 4.096 us times 2 to this power"},
    {.name = "retries",
     EPA_U32(struct config, retries),
     .max = 7,
     .help = "number of retransmissions before a peer counts as lost; soft-RoCE treats 7 as "
             "unlimited"},
    {.name = "depth",
     EPA_U32(struct config, depth),
     .min = 8,
     .max = 32768,
     .help = "maximum number of requests in flight per peer",
     .tune = "64 256 1024"},
    {.name = "batch",
     EPA_U32(struct config, batch),
     .min = 1,
     .max = 1024,
     .help = "number of puts per peer that are posted together, unless a signal is "
             "posted first",
     .tune = "1 4 16 64"},
    {.name = "inline",
     EPA_U32(struct config, inline_bytes),
     .max = 4096,
     .help = "maximum number of inline bytes in a request, up to the device's limit",
     .tune = "0 64 220"},
    {.name = "direct",
     EPA_BOOL(struct config, direct),
     .help = "stores instead of the device between ranks of one node",
     .tune = "*"},
    {.name = "wait",
     EPA_CHOICE(struct config, wait),
     .choices = waits,
     .help = "waiting strategy of a rank",
     .tune = "*"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "verbs", .summary = "RDMA devices: InfiniBand and RoCE, by libibverbs",
               .options = {options, sizeof(struct config), &defaults}},
    .flags = AT_BEST,
    .memory = EPA_MEMORY_HOST,
    .check = check,
    .takes = takes,
    .open = open_all,
};
