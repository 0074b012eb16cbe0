/* Built for another plugin ABI. */
#include "bad.h"

EPA_PLUGIN_EXPORT const struct epa_transport_plugin epa_plugin = {
    .plugin = {.abi = EPA_ABI - 1,
               .size = sizeof(struct epa_transport_plugin),
               .kind = EPA_PLUGIN_TRANSPORT,
               .name = "old_abi",
               .summary = "of yesterday"},
    .memory = EPA_MEMORY_HOST,
    .open = refuse_open,
};
