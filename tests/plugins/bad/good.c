/* Nothing is wrong with this one: the control of tests that expect a refusal. */
#include "bad.h"

EPA_PLUGIN_EXPORT const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "good", .summary = "can be loaded and not opened"},
    .flags = EPA_TRANSPORT_HOST,
    .memory = EPA_MEMORY_HOST,
    .open = refuse_open,
};
