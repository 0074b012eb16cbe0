/* fused on GPUs: the intervals of tiles in the trace. */
#ifndef FUSED_TRACE_H
#define FUSED_TRACE_H

#include <cuda_runtime_api.h>

#include <epa2a/backend.h>
#include <epa2a/trace.h>

#include "fused_device.h"

/* Adds the intervals of the last call to the trace, in host time. `block_warps`: warps of a thread
 * block. */
enum epa_status fused_trace_tiles(struct epa_backend *, struct epa_trace *,
                                  const struct fused_args *, uint32_t block_warps);

#endif
