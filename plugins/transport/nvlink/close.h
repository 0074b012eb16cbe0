/* Closes the nvlink transport. */
#ifndef NVLINK_CLOSE_H
#define NVLINK_CLOSE_H

#include "state.h"

void nvlink_close(struct epa_transport *);

/* Also frees a partly opened transport. `lost`: the GPU hangs; its resources leak until the process
 * ends, since freeing them would block. */
void nvlink_destroy(struct nvlink *, bool lost);

#endif
