/* Limits of this system on the resources of UCX. */
#ifndef UCX_RESOURCES_H
#define UCX_RESOURCES_H

#include "state.h"

/* Collective. Checks that all ranks get the threads, file descriptors and ports of UCX. */
enum epa_status limits_check(struct ucx *, struct epa_error *);

#endif
