/* fused on GPUs: plan and create the algorithm. Only builds with nvcc contain this code. */
#ifndef FUSED_CUDA_H
#define FUSED_CUDA_H

#include "fused_layout.h"

/* Computes the footprint for a shape; unsupported shapes fail with a message. */
enum epa_status fused_cuda_plan(const struct epa_moe *, const struct epa_world *,
                                const struct fused_config *, struct epa_footprint *out,
                                struct epa_error *);

enum epa_status fused_cuda_create(const struct epa_algorithm_params *, struct epa_algorithm **out,
                                  struct epa_error *);

#endif
