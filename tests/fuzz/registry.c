/* Replaces the registry for fuzzed experiments: plugins with options of every type, some for
 * machines with GPUs, and a transport that cannot be loaded. registry_find() opens no file. */
#include <string.h>

#include <epa2a/algorithm.h>

#include "registry/registry.h"

struct fake_transport {
    int wait;
    bool prefault;
    uint64_t ring_bytes, linger_ns;
    double share;
    const char *device;
    struct epa_u32_list lanes;
};
struct fake_algorithm {
    int dispatch_dtype;
    uint32_t buffers;
    bool fused;
};

static const struct epa_choice fake_waits[] = {
    {"auto", 0, "as the cores allow"},
    {"spin", 1, "never sleep"},
    {"yield", 2, "let others run"},
    {0},
};
static const struct fake_transport fake_transport_defaults = {.ring_bytes = 65536, .share = 0.25};
#define OPTION(of, key, type, field, ...) \
    { \
        .name = key, EPA_##type(struct of, field), .help = "said", __VA_ARGS__ \
    }

static const struct epa_option fake_transport_options[] = {
    OPTION(fake_transport, "wait", CHOICE, wait, .choices = fake_waits),
    OPTION(fake_transport, "prefault", BOOL, prefault, .min = 0),
    OPTION(fake_transport, "ring", BYTES, ring_bytes, .min = 4096, .max = 1 << 30),
    OPTION(fake_transport, "linger", DURATION, linger_ns, .min = 0),
    OPTION(fake_transport, "share", REAL, share, .least = 0.0, .most = 1.0),
    OPTION(fake_transport, "device", STRING, device, .min = 0),
    OPTION(fake_transport, "lanes", U32_LIST, lanes, .min = 1, .max = 8),
    {0},
};

static const struct epa_choice fake_dtypes[] = {
    {"fp8", 0, "a byte a channel"},
    {"native", 1, "two"},
    {0},
};
static const struct fake_algorithm fake_algorithm_defaults = {.buffers = 2};
static const struct epa_option fake_algorithm_options[] = {
    OPTION(fake_algorithm, "dispatch_dtype", CHOICE, dispatch_dtype, .choices = fake_dtypes),
    OPTION(fake_algorithm, "buffers", U32, buffers, .min = 1, .max = 2),
    OPTION(fake_algorithm, "fused", BOOL, fused, .min = 0),
    {0},
};

static enum epa_status fake_plan(const struct epa_problem *problem, const struct epa_world *world,
                                 uint32_t transport_flags, const void *config,
                                 struct epa_footprint *out, struct epa_error *err)
{
    const struct epa_moe *m = &problem->u.moe;
    const struct fake_algorithm *c = config;

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

#define PLUGIN(kind, of, its_name) \
    .plugin = {EPA_PLUGIN_HEADER(kind, struct of), .name = its_name, .summary = "made up"}

static const struct epa_launcher_plugin fake_fork = {
    PLUGIN(EPA_PLUGIN_LAUNCHER, epa_launcher_plugin, "fork")};
static const struct epa_backend_plugin fake_host = {
    PLUGIN(EPA_PLUGIN_BACKEND, epa_backend_plugin, "host"), .memory = EPA_MEMORY_HOST};
static const struct epa_backend_plugin fake_gpu = {
    PLUGIN(EPA_PLUGIN_BACKEND, epa_backend_plugin, "cuda"), .memory = EPA_MEMORY_CUDA};
static const struct epa_transport_plugin fake_link = {
    PLUGIN(EPA_PLUGIN_TRANSPORT, epa_transport_plugin, "nvlink"), .flags = EPA_TRANSPORT_DEVICE,
    .memory = EPA_MEMORY_CUDA};
static const struct epa_transport_plugin fake_shm = {
    PLUGIN(EPA_PLUGIN_TRANSPORT, epa_transport_plugin, "shm"),
    .plugin.options = {fake_transport_options, sizeof(struct fake_transport),
                       &fake_transport_defaults},
    .flags = EPA_TRANSPORT_HOST, .memory = EPA_MEMORY_HOST};
static const struct epa_algorithm_plugin fake_ll_v2 = {
    PLUGIN(EPA_PLUGIN_ALGORITHM, epa_algorithm_plugin, "ll_v2"),
    .plugin.options = {fake_algorithm_options, sizeof(struct fake_algorithm),
                       &fake_algorithm_defaults},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST | EPA_MEMORY_CUDA,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE,
    .plan = fake_plan,
};
static const struct epa_plugin *const fake_plugins[] = {
    &fake_fork.plugin,  &fake_host.plugin, &fake_shm.plugin,
    &fake_ll_v2.plugin, &fake_gpu.plugin,  &fake_link.plugin,
};

enum epa_status registry_find(struct registry *registry, enum epa_plugin_kind kind,
                              const char *name, const struct epa_plugin **out,
                              struct epa_error *err)
{
    for (size_t i = 0; i < sizeof(fake_plugins) / sizeof(fake_plugins[0]); i++) {
        if (fake_plugins[i]->kind != kind || strcmp(fake_plugins[i]->name, name) != 0)
            continue;
        *out = fake_plugins[i];
        return EPA_OK;
    }
    if (kind == EPA_PLUGIN_TRANSPORT && strcmp(name, "ucx") == 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "transport plugin 'ucx' cannot be loaded: libucp.so.0 is missing");
    return epa_fail(err, EPA_ERR_CONFIG, "there is no '%.64s'", name);
}
