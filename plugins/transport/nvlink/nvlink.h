/* The calls of the nvlink transport. */
#ifndef NVLINK_H
#define NVLINK_H

#include <epa2a/transport.h>

extern const struct epa_transport_ops nvlink_ops;

#endif
