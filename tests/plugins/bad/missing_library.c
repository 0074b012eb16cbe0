/* Needs a library (gone/gone.c) that is on no path. */
#include "bad.h"

int epa2a_test_gone(void);

static enum epa_status open_gone(const struct epa_transport_params *params,
                                 struct epa_transport **out, struct epa_error *err)
{
    return epa2a_test_gone() == 0 ? EPA_ERR_UNSUPPORTED : refuse_open(params, out, err);
}

EPA_PLUGIN_EXPORT const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "missing_library", .summary = "needs what is not there"},
    .memory = EPA_MEMORY_HOST,
    .open = open_gone,
};
