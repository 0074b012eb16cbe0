/* A transport that cannot be used. Depending on the macros of the build it cannot be loaded,
 * either: one variant per row of bad_plugins in meson.build. */
#include "bad.h"

#ifndef BAD_CALL
#define BAD_CALL() 0
#else /* a function that is undefined when the plugin is loaded */
int BAD_CALL(void);
#endif

__attribute__((unused)) static enum epa_status
call_and_refuse(const struct epa_transport_params *params, struct epa_transport **out,
                struct epa_error *err)
{
    return BAD_CALL() != 0 ? EPA_ERR_UNSUPPORTED : refuse_open(params, out, err);
}

EPA_PLUGIN_EXPORT const struct epa_transport_plugin BAD_SYMBOL = {
    .plugin = {.abi = BAD_ABI,
               .size = BAD_SIZE,
               .kind = EPA_PLUGIN_TRANSPORT,
               .name = BAD_NAME,
               .summary = "can be loaded and not opened"},
    .flags = EPA_TRANSPORT_HOST,
    .memory = EPA_MEMORY_HOST,
    .open = BAD_OPEN,
};
