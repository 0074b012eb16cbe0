/* ll_v2 on GPUs: create the algorithm. Only builds with nvcc contain this code. */
#ifndef LL_V2_CUDA_H
#define LL_V2_CUDA_H

#include "ll_v2_layout.h"

enum epa_status ll_cuda_create(const struct epa_algorithm_params *, const struct ll_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* Bytes of device memory that the CUDA code allocates outside the heap and the mirrors. */
uint64_t ll_cuda_bytes(const struct ll_layout *);

#endif
