/* The CUDA code of fused, where it is built in. */
#ifndef FUSED_CUDA_H
#define FUSED_CUDA_H

#include "fused.h"

/* What it needs for a shape; refuses what it cannot do in a sentence. */
enum epa_status fused_cuda_plan(const struct epa_moe *, const struct epa_world *,
                                const struct fused_config *, struct epa_footprint *out,
                                struct epa_error *);

enum epa_status fused_cuda_create(const struct epa_algorithm_params *, struct epa_algorithm **out,
                                  struct epa_error *);

#endif
