/* What the chapters of the transport share: calls (nvlink.c), device_peak() (peak.c), opening and
 * closing (open.c). */
#ifndef NVLINK_H
#define NVLINK_H

#include "far.h"

enum nvlink_failed_at {
    FAILED_QUIET = FAILED_OTHER,
    FAILED_PEAK,
    FAILED_CUDA,
    FAILED_FAR,
};

enum { PINNED_WORDS = 16 };

#define FAR UINT32_MAX

struct nvlink {
    struct epa_transport base; /* first: a pointer to it is one to all of this */
    struct epa_transport_ops ops;
    struct epa_bootstrap *boot, *node; /* node: of the ranks that memory is mapped of */
    struct far_boot node_boot;
    struct far *far;                 /* NULL: all ranks are of this node */
    uint32_t near[EPA_DEVICE_RANKS]; /* of each rank: its number in `node`, or FAR */
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

static inline struct nvlink *nvlink_of(struct epa_transport *t)
{
    return (struct nvlink *)t;
}

extern const struct epa_transport_ops nvlink_ops;

/* Records a failed call of CUDA. */
enum epa_status nvlink_cuda(struct nvlink *, cudaError_t, const char *what);
/* Until the stream is empty; or, where that is to be heeded, a rank has failed. */
enum epa_status nvlink_drain(struct nvlink *, cudaStream_t, uint64_t timeout_ns, bool heeds_abort);

/* As of struct epa_transport_ops. */
enum epa_status nvlink_device_peak(struct epa_transport *, const struct epa_peak_run *, double *ns);
void nvlink_close(struct epa_transport *);

#endif
