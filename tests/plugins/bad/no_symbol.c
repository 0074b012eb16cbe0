/* A library like any other: it exports something, but no plugin. */
#include "bad.h"

EPA_PLUGIN_EXPORT const struct epa_transport_plugin other_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "no_symbol", .summary = "under another name"},
    .memory = EPA_MEMORY_HOST,
    .open = refuse_open,
};
