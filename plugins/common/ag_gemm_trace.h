/* AllGather and GEMM on GPUs: the intervals of tiles and of copies, in the trace. */
#ifndef AG_GEMM_TRACE_H
#define AG_GEMM_TRACE_H

#include <epa2a/backend.h>
#include <epa2a/trace.h>

#include "ag_gemm_device.h"

/* Number of intervals that a kernel of `blocks` blocks may record. */
uint64_t ag_gemm_trace_notes(const struct ag_gemm_args *, uint32_t blocks);

/* Adds the intervals of the last call to the trace, in host time. `name` begins the message of a
 * failure on stderr: the run itself has succeeded. */
void ag_gemm_trace_write(const char *name, struct epa_backend *, struct epa_trace *,
                         const struct ag_gemm_args *, uint32_t blocks);

#endif
