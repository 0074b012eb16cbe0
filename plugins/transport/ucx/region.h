/* UCX's configuration, and the memory of a rank. */
#ifndef UCX_REGION_H
#define UCX_REGION_H

#include "state.h"

/* After a failure the caller calls region_finish(). */
enum epa_status region_init(struct ucx *, const struct epa_transport_params *, struct epa_error *);
void region_finish(struct ucx *);

/* `takes` of the plugin. */
enum epa_status region_takes(struct epa_bootstrap *, const void *config, enum epa_memory,
                             struct epa_error *);

/* TCP segment sizes, from the environment or from region.c; NULL: UCX's defaults. */
void region_segments(const char **send, const char **receive);
/* Returns true if a segment holds a whole message of ucx.c. UCX would split longer messages. */
bool region_segments_are_long(void);

#endif
