/* The barrier of all ranks. */
#ifndef UCX_BARRIER_H
#define UCX_BARRIER_H

#include "state.h"

/* Functions of ucx_ops. */
enum epa_status wait_barrier(struct epa_transport *, uint64_t timeout_ns);

#endif
