/* Plugins that stand in for those of the registry where configuration is tested: with options of
 * every type, some of a machine with GPUs, a transport that cannot be loaded. fake_registry.c has
 * registry_find(), which opens no file. */
#ifndef FAKE_REGISTRY_H
#define FAKE_REGISTRY_H

#include <epa2a/plugin.h>

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
extern const struct fake_transport fake_transport_defaults;
extern const struct epa_option fake_transport_options[];

#endif
