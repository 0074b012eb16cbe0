/* One rank of the nvlink transport: what nvlink.c and host.c share. */
#ifndef NVLINK_H
#define NVLINK_H

#include "memory.h"

enum nvlink_failed_at {
    FAILED_QUIET = FAILED_OTHER,
    FAILED_PEAK,
    FAILED_CUDA,
};

enum { PINNED_WORDS = 16 };

struct nvlink {
    struct epa_transport base; /* first: a pointer to it is one to all of this */
    struct epa_bootstrap *boot;
    struct epa_backend *backend;
    struct driver driver;
    struct gpu gpu[EPA_DEVICE_RANKS];
    struct memory memory;
    struct epa_device_view view;
    cudaStream_t stream, reads; /* puts and signals, in order; copies of words back */
    cudaEvent_t event[2];
    uint64_t *pinned; /* [PINNED_WORDS]: where words are copied to */
    /* Of device_peak(), whose words count up, too: runs of stores; turns with each rank. */
    uint64_t meets, turns[EPA_DEVICE_RANKS];
    struct failure failure;
};

/* Records a failed call of CUDA. */
enum epa_status nvlink_cuda(struct nvlink *, cudaError_t, const char *what);
/* Until the stream is empty; or, where that is to be heeded, a rank has failed. */
enum epa_status nvlink_drain(struct nvlink *, cudaStream_t, uint64_t timeout_ns,
                             bool heeds_abort);

extern const struct epa_transport_ops nvlink_ops;
void nvlink_close(struct epa_transport *);

#endif
