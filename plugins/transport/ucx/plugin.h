/* Descriptions, explanations and log messages of UCX. */
#ifndef UCX_PLUGIN_H
#define UCX_PLUGIN_H

#include "ucx.h"

/* plugin.c: functions of ucx_ops. */
void ucx_describe(struct epa_transport *,
                  void (*say)(void *arg, const char *key, const char *value), void *arg);
void ucx_explain(struct epa_transport *, struct epa_error *);

/* plugin.c: UCX logs to standard error. While muted, the handler drops messages, because the caller
 * reports the expected failure. */
void log_mute(bool mute);

#endif
