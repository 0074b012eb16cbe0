/* Has no open(). */
#include "bad.h"

EPA_PLUGIN_EXPORT const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "null_function", .summary = "cannot be opened"},
    .memory = EPA_MEMORY_HOST,
};
