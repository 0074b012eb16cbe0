/* Descriptions of the transport, and explanations of failures. */
#ifndef UCX_DESCRIBE_H
#define UCX_DESCRIBE_H

#include "state.h"

/* Functions of ucx_ops. */
void ucx_describe(struct epa_transport *,
                  void (*say)(void *arg, const char *key, const char *value), void *arg);
void ucx_explain(struct epa_transport *, struct epa_error *);

#endif
