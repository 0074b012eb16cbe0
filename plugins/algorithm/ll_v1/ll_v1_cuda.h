/* ll_v1 on GPUs: create the algorithm. Only builds with nvcc contain this code. */
#ifndef LL_V1_CUDA_H
#define LL_V1_CUDA_H

#include "ll_v1_layout.h"

/* CUDA code; only in builds with nvcc. */
enum epa_status v1_cuda_create(const struct epa_algorithm_params *, const struct v1_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* Bytes of device memory that the CUDA code allocates outside the heap. */
uint64_t v1_cuda_bytes(const struct v1_layout *);

#endif
