/* The data path of the verbs transport. */
#ifndef VERBS_H
#define VERBS_H

#include <epa2a/transport.h>

extern const struct epa_transport_ops verbs_ops;

#endif
