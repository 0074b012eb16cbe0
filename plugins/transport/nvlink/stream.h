/* Failures of CUDA, and waits for streams. */
#ifndef NVLINK_STREAM_H
#define NVLINK_STREAM_H

#include "state.h"

/* Returns the status of a failed call in set-up: EPA_ERR_NOMEM or EPA_ERR_SYSTEM. In data calls each
 * failure is EPA_ERR_SYSTEM, since the other ranks already wait for the call. */
enum epa_status nvlink_status(cudaError_t);
/* Records a failed call of CUDA. */
enum epa_status nvlink_cuda(struct nvlink *, cudaError_t, const char *what);
/* Waits until the stream is empty or, with heeds_abort, until a rank has failed. */
enum epa_status nvlink_drain(struct nvlink *, cudaStream_t, struct epa_wait *, bool heeds_abort);

#endif
