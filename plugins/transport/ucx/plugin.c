/* Options and open() of the transport. */
#include "barrier.h"
#include "describe.h"
#include "resources.h"
#include "links.h"
#include "log.h"
#include "region.h"
#include "state.h"
#include "ucx.h"
#include "waits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/log_def.h>

/* ---- opening ---- */

enum {
    FLAGS = EPA_TRANSPORT_HOST | EPA_TRANSPORT_SIGNAL_ADD | EPA_TRANSPORT_ANY_SOURCE |
            EPA_TRANSPORT_NODES,
};

static enum epa_status create(const struct epa_transport_params *p, struct ucx **out,
                              struct epa_error *err)
{
    const struct epa_world *world = &p->boot->world;
    struct ucx *u = calloc(1, sizeof(*u));

    if (u == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ucx: no memory");
    *out = u;
    u->boot = p->boot;
    u->config = *(const struct config *)p->config;
    u->signals = p->signals;
    u->limit_ns = u->config.default_timeout_ns != 0 ? u->config.default_timeout_ns
                  : p->boot->timeout_ns != 0        ? p->boot->timeout_ns
                                                    : UINT64_MAX;
    u->base = (struct epa_transport){
        .ops = &ucx_ops, .rank = world->rank, .size = world->size, .heap_bytes = p->heap_bytes};
    u->wait = wait_configure(p->boot, WAIT_AUTO);
    pthread_mutex_init(&u->lock, NULL);
    u->peer = calloc(world->size, sizeof(*u->peer));
    u->peer_heap = calloc(world->size, sizeof(*u->peer_heap));
    u->values = calloc(u->config.outstanding, sizeof(*u->values));
    if (u->peer == NULL || u->peer_heap == NULL || u->values == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ucx: no memory for %u ranks", world->size);
    for (uint32_t r = 0; r < world->size; r++)
        u->peer[r].ucx = u;
    for (uint32_t i = 0; i < u->config.outstanding; i++) {
        u->values[i].next = u->free_value;
        u->free_value = &u->values[i];
    }
    return EPA_OK;
}

static void set_base(struct ucx *u)
{
    for (uint32_t r = 0; r < u->base.size; r++) {
        if (u->peer[r].map != NULL)
            u->peer_heap[r] = u->peer[r].map + u->region.heap_at;
    }
    u->peer_heap[u->base.rank] = u->region.heap;
    u->base.flags = FLAGS | (u->all_mapped ? EPA_TRANSPORT_LOAD_STORE : 0);
    u->base.heap = u->region.heap;
    u->base.peer_heap = u->peer_heap;
}

/* Returns true if a peer may need progress of this rank at any time. */
static bool needs_helper(const struct ucx *u)
{
    bool emulated = false;

    for (uint32_t r = 0; r < u->base.size; r++) {
        const struct peer *peer = &u->peer[r];

        if (peer->map == NULL && !(peer->lanes.puts && peer->lanes.additions))
            emulated = true;
    }
    return u->config.progress == PROGRESS_THREAD ||
           (u->config.progress == PROGRESS_AUTO && emulated);
}

/* The barrier creates the connections, for which both ends must make progress. The helper thread
 * starts afterwards. */
static enum epa_status meet(struct ucx *u, struct epa_error *err)
{
    uint64_t timeout_ns = u->limit_ns > u->boot->set_up_ns ? u->limit_ns : u->boot->set_up_ns;
    enum epa_status status = wait_barrier(&u->base, timeout_ns);

    if (status != EPA_OK) {
        ucx_explain(&u->base, err);
        return status;
    }
    if (needs_helper(u))
        status = helper_start(u, err);
    if (status == EPA_OK)
        status = u->boot->barrier(u->boot);
    if (status != EPA_OK)
        u->boot->explain(u->boot, err);
    return status;
}

static enum epa_status open_all(const struct epa_transport_params *p, struct epa_transport **out,
                                struct epa_error *err)
{
    struct ucx *u = NULL;
    enum epa_status status = create(p, &u, err);

    log_to_stderr();
    if (status == EPA_OK)
        status = limits_check(u, err);
    if (status == EPA_OK)
        status = region_init(u, p, err);
    if (status == EPA_OK)
        status = links_init(u, err);
    if (status == EPA_OK) {
        set_base(u);
        status = meet(u, err);
    }
    if (status != EPA_OK) {
        if (u != NULL)
            ucx_ops.close(&u->base);
        return status;
    }
    *out = &u->base;
    return EPA_OK;
}

static const struct epa_choice progress_kinds[] = {
    {"auto", PROGRESS_AUTO, "a thread if UCX needs the peer for puts or additions"},
    {"thread", PROGRESS_THREAD, "always a thread"},
    {"calls", PROGRESS_CALLS, "only in calls of the transport"},
    {0},
};

static const struct config defaults = {.tls = "",
                                       .devices = "",
                                       .outstanding = 256,
                                       .default_timeout_ns = 0,
                                       .progress = PROGRESS_AUTO,
                                       .direct = true};

static const struct epa_option options[] = {
    {.name = "tls",
     EPA_STRING(struct config, tls),
     .help = "transports of UCX, as UCX_TLS: \"posix,self\", \"tcp\", \"rc\"; \"\": "
             "UCX_TLS, or shared memory alone on one host and else UCX's choice"},
    {.name = "devices",
     EPA_STRING(struct config, devices),
     .help = "network devices, as UCX_NET_DEVICES: \"eth0\", \"mlx5_0:1\"; \"\": "
             "UCX_NET_DEVICES, or RDMA and the interface that leads to rank 0. Who reaches them "
             "writes to ranks' memory: use it on trusted networks only"},
    {.name = "direct",
     EPA_BOOL(struct config, direct),
     .help = "store directly into the memory of ranks of this node, where UCX can map "
             "it",
     .tune = "*"},
    {.name = "outstanding",
     EPA_U32(struct config, outstanding),
     .min = 2,
     .max = 65536,
     .help = "maximum number of puts and signals in flight; another one is retried",
     .tune = "16 64 256 1024"},
    {.name = "progress",
     EPA_CHOICE(struct config, progress),
     .choices = progress_kinds,
     .help = "progress of UCX while this rank computes",
     .tune = "*"},
    {.name = "default_timeout",
     EPA_DURATION(struct config, default_timeout_ns),
     .help = "longest wait of calls without a time limit: connections, quiet, reset; 0: timeout"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin), .name = "ucx",
               .summary = "UCX: shared memory, TCP or RDMA, as available",
               .options = {options, sizeof(struct config), &defaults}},
    .flags = FLAGS | EPA_TRANSPORT_LOAD_STORE,
    .memory = EPA_MEMORY_HOST,
    .takes = region_takes,
    .open = open_all,
};
