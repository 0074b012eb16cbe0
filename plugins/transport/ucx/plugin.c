/* Opening, the options, and the plugin. */
#include "ucx.h"

#include <stdlib.h>

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
    u->base = (struct epa_transport){.ops = &ucx_ops,
                                     .rank = world->rank,
                                     .size = world->size,
                                     .heap_bytes = p->heap_bytes};
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
    u->base.flags = FLAGS | (u->all_mapped ? EPA_TRANSPORT_LOAD_STORE : 0);
    u->base.heap = u->region.base + u->region.heap_at;
    u->base.peer_heap = u->peer_heap;
}

/* Whether somebody else must be able to have something done here at any time. */
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

/* The barrier makes connections, which both ends must be awake for; from then on the helper
 * is. */
static enum epa_status meet(struct ucx *u, struct epa_error *err)
{
    enum epa_status status = wait_barrier(u, u->config.default_timeout_ns);

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

static enum epa_status open_all(const struct epa_transport_params *p,
                                struct epa_transport **out, struct epa_error *err)
{
    struct ucx *u = NULL;
    enum epa_status status = create(p, &u, err);

    log_to_stderr();
    if (status == EPA_OK)
        status = region_init(u, p->heap_bytes, err);
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
    {"auto", PROGRESS_AUTO,
     "a thread where UCX needs the peer's help for puts or additions"},
    {"thread", PROGRESS_THREAD, "a thread, always"},
    {"calls", PROGRESS_CALLS, "only while this rank is in the transport"},
    {0},
};

static const struct config defaults = {.tls = "",
                                       .devices = "",
                                       .outstanding = 256,
                                       .default_timeout_ns = 30000000000u,
                                       .progress = PROGRESS_AUTO,
                                       .direct = true};

static const struct epa_option options[] = {
    {.name = "tls",
     EPA_STRING(struct config, tls),
     .help = "transports that UCX may use, as UCX_TLS: \"posix,self\", \"tcp\", \"rc\"; "
             "\"\": UCX_TLS, or UCX chooses"},
    {.name = "devices",
     EPA_STRING(struct config, devices),
     .help = "network devices, as UCX_NET_DEVICES: \"eth0\", \"mlx5_0:1\"; \"\": "
             "UCX_NET_DEVICES, or all"},
    {.name = "direct",
     EPA_BOOL(struct config, direct),
     .help = "store straight into the memory of ranks of this node, where UCX can map it"},
    {.name = "outstanding",
     EPA_U32(struct config, outstanding),
     .min = 2,
     .max = 65536,
     .help = "puts and signals under way at most; one more must try again"},
    {.name = "progress",
     EPA_CHOICE(struct config, progress),
     .choices = progress_kinds,
     .help = "who takes in what peers send while this rank is elsewhere"},
    {.name = "default_timeout",
     EPA_DURATION(struct config, default_timeout_ns),
     .min = 1,
     .help = "longest wait where the caller gives no limit: connections, quiet, reset"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "ucx",
               .summary = "UCX: shared memory, TCP or RDMA, whatever it finds",
               .options = {options, sizeof(struct config), &defaults}},
    .flags = FLAGS | EPA_TRANSPORT_LOAD_STORE,
    .memory = EPA_MEMORY_HOST,
    .open = open_all,
};
