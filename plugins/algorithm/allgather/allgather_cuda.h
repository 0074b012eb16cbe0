/* allgather on GPUs: create the algorithm. */
#ifndef ALLGATHER_CUDA_H
#define ALLGATHER_CUDA_H

#include "allgather_layout.h"

/* CUDA code; EPA_ERR_UNSUPPORTED in builds without it. */
enum epa_status ag_cuda_create(const struct epa_algorithm_params *, const struct ag_layout *,
                               struct epa_algorithm **out, struct epa_error *);

#endif
