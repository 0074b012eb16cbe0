/* When each warp of the last iteration did what, as a Chrome trace. */
#ifndef TOKEN_FLAG_TRACE_H
#define TOKEN_FLAG_TRACE_H

#include "token_flag_cuda.h"

/* Reads [warps] stamps from the device into FILE.RANK.json; a failure is told on stderr, as
 * the run itself went well. */
void tf_trace_write(const char *file, uint32_t rank, struct epa_backend *,
                    const struct tf_stamps *stamps, uint32_t warps);

#endif
