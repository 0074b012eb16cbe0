/* The calls of the data path. */
#ifndef UCX_H
#define UCX_H

#include <epa2a/transport.h>

extern const struct epa_transport_ops ucx_ops;

#endif
