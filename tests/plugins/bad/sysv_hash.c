/* Good, and linked with the older kind of hash table alone. */
#include "bad.h"

EPA_PLUGIN_EXPORT const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "sysv_hash", .summary = "found through DT_HASH"},
    .flags = EPA_TRANSPORT_HOST,
    .memory = EPA_MEMORY_HOST,
    .open = refuse_open,
};
