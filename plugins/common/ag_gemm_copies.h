/* AllGather and GEMM on GPUs: the times of copies by copy engines, in the trace. */
#ifndef AG_GEMM_COPIES_H
#define AG_GEMM_COPIES_H

#include <cuda_runtime_api.h>

#include <epa2a/backend.h>
#include <epa2a/trace.h>

/* Copies of the last call, in the order of their stream. */
struct ag_gemm_copies;

/* Allocates events for `n` copies and waits of a call. Returns NULL after a failure. */
struct ag_gemm_copies *ag_gemm_copies_create(uint32_t n);
void ag_gemm_copies_destroy(struct ag_gemm_copies *);

/* Queues a time stamp before the first copy of a call. NULL: does nothing, here and below. */
cudaError_t ag_gemm_copies_begin(struct ag_gemm_copies *, cudaStream_t);
/* Queues a time stamp after a wait of the stream, which is not part of the next copies. */
cudaError_t ag_gemm_copies_waited(struct ag_gemm_copies *, cudaStream_t);
/* Queues a time stamp after the copies to a rank. */
cudaError_t ag_gemm_copies_end(struct ag_gemm_copies *, cudaStream_t, uint32_t to);

/* Adds the copies to the trace, in host time, with block `block`. `lane`: a lane of kernels without
 * other slices. The stream must be idle. */
void ag_gemm_copies_write(const struct ag_gemm_copies *, cudaStream_t, struct epa_trace *,
                          uint32_t block, uint32_t lane);

#endif
