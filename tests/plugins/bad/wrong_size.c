/* Built with another struct epa_transport_plugin under the same ABI number. */
#include "bad.h"

EPA_PLUGIN_EXPORT const struct epa_transport_plugin epa_plugin = {
    .plugin = {.abi = EPA_ABI,
               .size = sizeof(struct epa_transport_plugin) - 8,
               .kind = EPA_PLUGIN_TRANSPORT,
               .name = "wrong_size",
               .summary = "of a developer's afternoon"},
    .memory = EPA_MEMORY_HOST,
    .open = refuse_open,
};
