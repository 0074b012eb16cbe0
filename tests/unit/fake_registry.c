/* See fake_registry.h. */
#include <string.h>

#include <epa2a/algorithm.h>

#include "plugin/registry.h"
#include "base/text.h"
#include "fake_registry.h"

static const struct epa_choice fake_waits[] = {
    {"auto", 0, "as the cores allow"},
    {"spin", 1, "never sleep"},
    {"yield", 2, "let others run"},
    {0},
};
const struct fake_transport fake_transport_defaults = {.ring_bytes = 65536, .share = 0.25};
const struct epa_option fake_transport_options[] = {
    {.name = "wait",
     EPA_CHOICE(struct fake_transport, wait),
     .choices = fake_waits,
     .help = "what a rank does while it waits"},
    {.name = "prefault", EPA_BOOL(struct fake_transport, prefault), .help = "touch it all"},
    {.name = "ring",
     EPA_BYTES(struct fake_transport, ring_bytes),
     .min = 4096,
     .max = 1 << 30,
     .help = "room for messages"},
    {.name = "linger", EPA_DURATION(struct fake_transport, linger_ns), .help = "at the end"},
    {.name = "share",
     EPA_REAL(struct fake_transport, share),
     .least = 0.0,
     .most = 1.0,
     .help = "of a core"},
    {.name = "device", EPA_STRING(struct fake_transport, device), .help = "by name"},
    {.name = "lanes",
     EPA_U32_LIST(struct fake_transport, lanes),
     .min = 1,
     .max = 8,
     .help = "in order of use"},
    {0},
};

static const struct epa_choice fake_dtypes[] = {
    {"fp8", 0, "a byte a channel"},
    {"native", 1, "two"},
    {0},
};
static const struct fake_algorithm fake_algorithm_defaults = {.buffers = 2};
static const struct epa_option fake_algorithm_options[] = {
    {.name = "dispatch_dtype",
     EPA_CHOICE(struct fake_algorithm, dispatch_dtype),
     .choices = fake_dtypes,
     .help = "what dispatch sends"},
    {.name = "buffers",
     EPA_U32(struct fake_algorithm, buffers),
     .min = 1,
     .max = 2,
     .help = "buffer sets"},
    {.name = "fused",
     EPA_BOOL(struct fake_algorithm, fused),
     .help = "whether it does the experts' work"},
    {0},
};

static enum epa_status fake_plan(const struct epa_problem *problem, const struct epa_world *world,
                                 uint32_t transport_flags, const void *config,
                                 struct epa_footprint *out, struct epa_error *err)
{
    const struct epa_moe *m = &problem->u.moe;
    const struct fake_algorithm *c = config;

    (void)world;
    (void)transport_flags;
    if (c->dispatch_dtype == 0 && m->hidden % m->fp8_group_size != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2 with dispatch_dtype: fp8 needs moe.hidden (%u) to be a multiple of "
                        "moe.fp8_group_size (%u)",
                        m->hidden, m->fp8_group_size);
    out->heap_bytes = m->hidden;
    out->u.moe.recv_dtype = c->dispatch_dtype == 0 ? EPA_FP8_E4M3 : (enum epa_dtype)m->dtype;
    out->u.moe.output_dtype = (enum epa_dtype)m->dtype;
    out->u.moe.fused = c->fused;
    return EPA_OK;
}

static const struct epa_launcher_plugin fake_fork = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "fork",
               .summary = "processes"},
};
static const struct epa_backend_plugin fake_host = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_BACKEND, struct epa_backend_plugin), .name = "host",
               .summary = "this machine"},
    .memory = EPA_MEMORY_HOST,
};
static const struct epa_backend_plugin fake_gpu = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_BACKEND, struct epa_backend_plugin), .name = "cuda",
               .summary = "another machine"},
    .memory = EPA_MEMORY_CUDA,
};
static const struct epa_transport_plugin fake_link = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "nvlink", .summary = "its memory"},
    .flags = EPA_TRANSPORT_DEVICE,
    .memory = EPA_MEMORY_CUDA,
};
static const struct epa_transport_plugin fake_shm = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin), .name = "shm",
               .summary = "shared memory",
               .options = {fake_transport_options, sizeof(struct fake_transport),
                           &fake_transport_defaults}},
    .flags = EPA_TRANSPORT_HOST,
    .memory = EPA_MEMORY_HOST,
};
static const struct epa_algorithm_plugin fake_ll_v2 = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "ll_v2", .summary = "low latency",
               .options = {fake_algorithm_options, sizeof(struct fake_algorithm),
                           &fake_algorithm_defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST | EPA_MEMORY_CUDA,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE,
    .plan = fake_plan,
};
static const struct epa_algorithm_plugin fake_nodes = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "nodes", .summary = "wants more of a transport than there is"},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST,
    .needs_host = EPA_TRANSPORT_HOST | EPA_TRANSPORT_NODES,
    .plan = fake_plan,
};

static const struct epa_plugin *const fake_plugins[] = {
    &fake_fork.plugin,  &fake_host.plugin, &fake_shm.plugin,  &fake_ll_v2.plugin,
    &fake_nodes.plugin, &fake_gpu.plugin,  &fake_link.plugin,
};

enum epa_status registry_find(struct registry *registry, enum epa_plugin_kind kind,
                              const char *name, const struct epa_plugin **out,
                              struct epa_error *err)
{
    static const char *const kinds[] = {"backend", "launcher", "transport", "algorithm"};
    const char *names[8], *near;
    uint32_t n = 0;

    (void)registry;
    for (size_t i = 0; i < sizeof(fake_plugins) / sizeof(fake_plugins[0]); i++) {
        if (fake_plugins[i]->kind != kind)
            continue;
        if (strcmp(fake_plugins[i]->name, name) == 0) {
            *out = fake_plugins[i];
            return EPA_OK;
        }
        names[n++] = fake_plugins[i]->name;
    }
    if (kind == EPA_PLUGIN_TRANSPORT && strcmp(name, "ucx") == 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "transport plugin 'ucx' cannot be loaded: libucp.so.0 is missing");
    near = text_nearest(name, names, n);
    return epa_fail(err, EPA_ERR_CONFIG, "there is no %s '%.64s'; %s '%s'%s", kinds[kind], name,
                    near != NULL ? "is it" : "there is", near != NULL ? near : names[0],
                    near != NULL ? "?" : "");
}
