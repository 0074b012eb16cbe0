/* token_flag on GPUs: create the algorithm. Only builds with nvcc contain this code. */
#ifndef TOKEN_FLAG_CUDA_H
#define TOKEN_FLAG_CUDA_H

#include "token_flag_layout.h"

/* CUDA code; only in builds with nvcc. */
enum epa_status tf_cuda_create(const struct epa_algorithm_params *, const struct tf_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* Bytes of device memory that the CUDA code allocates outside the heap and the mirrors. */
uint64_t tf_cuda_bytes(const struct epa_moe *, const struct tf_layout *);

#endif
