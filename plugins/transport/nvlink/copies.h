/* Copies of a proxy, with CUDA. */
#ifndef NVLINK_COPIES_H
#define NVLINK_COPIES_H

#include "state.h"

void copies_init(struct copies *, const struct driver *, const struct epa_backend *);
/* Returns true if leave() has returned true or enter() was never called. */
bool copies_left(const struct copies *);

#endif
