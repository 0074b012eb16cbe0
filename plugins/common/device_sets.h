/* Choice of the buffer set of a dispatch by the algorithm. */
#ifndef DEVICE_SETS_H
#define DEVICE_SETS_H

#include "algo_cuda.h"

/* Opens `set` for the next dispatch, like device_open_set(), which takes the sets in turn. */
enum epa_status device_open_set_at(struct device *, uint32_t set, const char *call,
                                   struct epa_moe *);

#endif
