/* AllGather and GEMM on GPUs: create the algorithm. */
#ifndef AG_GEMM_CUDA_H
#define AG_GEMM_CUDA_H

#include "ag_gemm.h"

/* Implements epa_algorithm_plugin.create for the algorithm `name`. It rejects settings that need
 * other options, with messages that suit both plugins, before any work begins. */
enum epa_status ag_gemm_cuda_create(const char *name, const struct epa_algorithm_params *,
                                    const struct ag_gemm_config *, struct epa_algorithm **out,
                                    struct epa_error *);

#endif
