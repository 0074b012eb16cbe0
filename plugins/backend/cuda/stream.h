/* The stream of the CUDA backend: failures, waits, and its clock. */
#ifndef CUDA_STREAM_H
#define CUDA_STREAM_H

#include "state.h"

/* Returns the backend after clearing its last failure. */
struct cuda *cuda_fresh(struct epa_backend *);

/* Records the failed call and its error. Device errors are sticky: an earlier call may be the
 * cause. */
enum epa_status cuda_fail(struct cuda *, cudaError_t why, const char *call);
enum epa_status cuda_check(struct cuda *, cudaError_t why, const char *call);

/* First call of each function that uses the runtime: makes the rank's device current. The eager
 * variant is for functions that a graph cannot record: it fails between capture_begin and
 * capture_end. */
enum epa_status cuda_enter(struct cuda *);
enum epa_status cuda_enter_eager(struct cuda *, const char *what);

/* Waits until the stream is done. After the failure of a rank, or at once with `stop`, asks kernels
 * to end and allows a few seconds; a device that takes longer is `lost`. */
enum epa_status cuda_drain(struct cuda *, bool stop);

enum epa_status cuda_sync(struct epa_backend *);

/* See struct epa_backend_ops. */
/* Another thread may capture a graph in the global mode, which forbids this thread to query streams
 * and to allocate. The thread ignores such captures until cudaThreadExchangeStreamCaptureMode()
 * restores *before. */
void cuda_ignore_captures(enum cudaStreamCaptureMode *before);
enum epa_status cuda_begin(struct epa_backend *, void *stream);
void cuda_end(struct epa_backend *);
bool cuda_captures(struct epa_backend *);
enum epa_status cuda_finish(struct epa_backend *);
enum epa_status cuda_check_fault(struct epa_backend *, struct epa_fault *out);

/* Asks kernels that wait for a peer to end. Any thread may call the function. */
void cuda_raise_stop(struct cuda *);

enum epa_status cuda_clock(struct epa_backend *, int64_t *low_ns, int64_t *high_ns);

#endif
