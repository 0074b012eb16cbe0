/* shm, or the transport that between_nodes names, with the memory of fakegpu and a made-up link peak.
 * Like a real measurement, device_peak() leaves data in the heap and in a signal. */
#include <epa2a/transport.h>

#include <stdlib.h>
#include <string.h>

extern const struct epa_transport_plugin shm_plugin;

/* The functions of the other transport and one more. They are called with its struct. */
struct more {
    struct epa_transport_ops ops; /* first member */
    const struct epa_transport_ops *real;
    struct epa_device_view view; /* never read */
};

struct config {
    bool peak;
    const char *between_nodes;
};

/* The slowest rank has 500 GB/s and 25 ns, which no stage on a fake GPU exceeds on any machine. */
static enum epa_status device_peak(struct epa_transport *t, const struct epa_peak_run *run,
                                   double *ns)
{
    double bytes = (double)run->bytes * run->passes * (t->size - 1);

    memset(t->heap, 0xa5, t->heap_bytes);
    *ns = run->bytes > 0 ? bytes / (500 + t->rank) : 2 * run->turns * (25.0 - t->rank);
    return t->ops->signal(t, 0, 1u << 30, EPA_SIGNAL_SET, t->rank);
}

static void close_all(struct epa_transport *t)
{
    struct more *more = (struct more *)(uintptr_t)t->ops;

    more->real->close(t);
    free(more);
}

static enum epa_status open_all(const struct epa_transport_params *p, struct epa_transport **out,
                                struct epa_error *err)
{
    const struct config *config = p->config;
    struct epa_transport_params inner = *p;
    struct more *more = calloc(1, sizeof(*more));
    enum epa_status status;

    if (more == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "fakelink: no memory");
    inner.config = p->between != NULL ? p->between_config : shm_plugin.plugin.options.defaults;
    status = (p->between != NULL ? p->between : &shm_plugin)->open(&inner, out, err);
    if (status != EPA_OK) {
        free(more);
        return status;
    }
    more->real = (*out)->ops;
    more->ops = *more->real;
    more->ops.device_peak = config->peak && p->between == NULL ? device_peak : NULL;
    more->ops.close = close_all;
    (*out)->ops = &more->ops;
    (*out)->view = &more->view;
    return EPA_OK;
}

static const char *between_nodes(const void *config)
{
    return ((const struct config *)config)->between_nodes;
}

static const struct config defaults = {.peak = true};

static const struct epa_option options[] = {
    {.name = "peak", EPA_BOOL(struct config, peak), .help = "provide a link peak"},
    {.name = "between_nodes",
     EPA_STRING(struct config, between_nodes),
     .help = "transport that replaces shm"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "fakelink", .summary = "shm with a made-up link peak",
               .options = {options, sizeof(struct config), &defaults}},
    .flags = EPA_TRANSPORT_HOST | EPA_TRANSPORT_LOAD_STORE,
    .memory = EPA_MEMORY_HOST | EPA_MEMORY_CUDA,
    .between_nodes = between_nodes,
    .open = open_all,
};
