/* Exports epa_plugin, but as a function. */
#include "bad.h"

EPA_PLUGIN_EXPORT enum epa_status epa_plugin(const struct epa_transport_params *,
                                             struct epa_transport **, struct epa_error *);

enum epa_status epa_plugin(const struct epa_transport_params *params, struct epa_transport **out,
                           struct epa_error *err)
{
    return refuse_open(params, out, err);
}
