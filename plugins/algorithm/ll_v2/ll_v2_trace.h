/* When each warp of the last dispatch and combine did what, as a Chrome trace. */
#ifndef LL_V2_TRACE_H
#define LL_V2_TRACE_H

#include "ll_v2_cuda.h"

/* Reads [warps] stamps from the device into FILE.RANK.json; a failure is told on stderr, as
 * the run itself went well. */
void ll_trace_write(const char *file, uint32_t rank, struct epa_backend *,
                    const struct ll_stamps *stamps, uint32_t warps);

#endif
