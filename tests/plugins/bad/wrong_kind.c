/* A launcher in a file whose name announces a transport. */
#include "bad.h"

static enum epa_status launch(const void *config, const struct epa_launch *what,
                              struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "this launcher exists to be refused");
}

EPA_PLUGIN_EXPORT const struct epa_launcher_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin),
               .name = "wrong_kind", .summary = "a launcher"},
    .launch = launch,
};
