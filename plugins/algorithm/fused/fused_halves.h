/* fused on GPUs: the GEMMs of a layer alone, which bench times. */
#ifndef FUSED_HALVES_H
#define FUSED_HALVES_H

#include "fused_cuda_layout.h"
#include "fused_last_rows.h"

/* Queues both products of the rows that the last call has received, by kernels that only multiply
 * (gemm_experts.h). `received`: first row. The products overwrite the intermediate and the
 * outputs. */
cudaError_t fused_queue_products(const struct fused_cuda_layout *, const struct fused_args *,
                                 const char *received, uint32_t blocks,
                                 const struct fused_count_args *, cudaStream_t);

#endif
