/* When each warp of the last dispatch and combine did what, as a Chrome trace. */
#ifndef LL_V1_TRACE_H
#define LL_V1_TRACE_H

#include "ll_v1_cuda.h"

/* Reads [warps] stamps from the device into FILE.RANK.json; a failure is told on stderr, as
 * the run itself went well. */
void v1_trace_write(const char *file, uint32_t rank, struct epa_backend *,
                    const struct v1_stamps *stamps, uint32_t warps);

#endif
