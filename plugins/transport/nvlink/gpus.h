/* The CUDA driver, and the GPUs of all ranks. */
#ifndef NVLINK_GPUS_H
#define NVLINK_GPUS_H

#include "memory.h"

enum epa_status driver_init(struct driver *out, struct epa_error *);

/* Collective: gathers the GPUs of all ranks in out[size]. Fails on all ranks with the same error if a
 * rank does not reach a near rank. */
enum epa_status gpus_meet(struct epa_bootstrap *, const bool *near, const struct driver *,
                          int device, struct gpu *out, struct epa_error *);

#endif
