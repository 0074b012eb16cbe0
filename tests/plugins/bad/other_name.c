/* Calls itself something else than its file. */
#include "bad.h"

EPA_PLUGIN_EXPORT const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "someone_else", .summary = "in disguise"},
    .memory = EPA_MEMORY_HOST,
    .open = refuse_open,
};
