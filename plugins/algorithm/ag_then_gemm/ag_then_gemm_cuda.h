/* ag_then_gemm on GPUs, where it is built in. As epa_algorithm_plugin has them. */
#ifndef AG_THEN_GEMM_CUDA_H
#define AG_THEN_GEMM_CUDA_H

#include <epa2a/algorithm.h>

enum epa_status then_cuda_plan(const struct epa_ag_gemm *, const struct epa_world *,
                               struct epa_footprint *out, struct epa_error *);
enum epa_status then_cuda_create(const struct epa_algorithm_params *, struct epa_algorithm **out,
                                 struct epa_error *);

#endif
