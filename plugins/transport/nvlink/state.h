/* Shared declarations of the transport: calls (nvlink.c), device_peak() (peak.c), opening and
 * closing (open.c), copies of the proxy (copies.c), and ranks of other nodes (far.c). */
#ifndef NVLINK_STATE_H
#define NVLINK_STATE_H

#include "memory.h"
#include "proxy.h"

/* ---- copies.c: copies of a proxy, with CUDA ---- */

enum { COPIES_BATCH = 64 }; /* maximum of words per call */

struct copies_lane {
    cudaStream_t stream;
    uint64_t *mark;  /* pinned: number of completed operations */
    CUdeviceptr at;  /* address of the mark for the GPU */
    uint64_t marked; /* value of the last queued mark */
    uint32_t polls;  /* polls since the mark last changed */
};

struct copies {
    struct proxy_copies base; /* first */
    const struct driver *driver;
    int device;
    struct epa_fault *device_fault, fault;
    struct copies_lane lane[PROXY_LANES];
    uint64_t *marks;
    CUstreamBatchMemOpParams batch[COPIES_BATCH]; /* writes of lane IN, not yet submitted */
    uint32_t batched;
    void *pinned[1 + EPA_DEVICE_RANKS]; /* staging of this rank and of others */
    uint32_t n_pinned;
    cudaError_t error; /* error of the last failed runtime call, */
    CUresult result;   /* or of the last failed driver call */
    const char *what;
};

/* ---- far.c: ranks of other nodes: the rings that kernels and the host write, their proxy, and its
 * copies with CUDA ---- */

/* Selects whether the network accesses GPU memory directly or data is staged. */
enum direct_kind { DIRECT_AUTO, DIRECT_ON, DIRECT_OFF };

struct far_params {
    struct epa_bootstrap *boot; /* bootstrap of all ranks */
    struct epa_backend *backend;
    const struct driver *driver;
    const struct epa_transport_plugin *net;
    const void *net_config;
    bool one_host; /* nodes are parts of one host: the transport between them sees one node */
    char *heap;
    uint64_t *signal;
    uint64_t heap_bytes;
    uint32_t signals;
    struct epa_trace *trace;     /* NULL: no profile */
    int direct;                  /* enum direct_kind */
    const struct region *region; /* signals and heap */
};

struct far;

enum nvlink_failed_at {
    FAILED_PEAK = FAILED_OTHER,
    FAILED_CUDA,
    FAILED_FAR,
};

enum { PINNED_WORDS = 16 };

struct nvlink {
    struct epa_transport base; /* first member: nvlink_of() casts the pointer back */
    struct epa_transport_ops ops;
    struct epa_bootstrap *boot;
    bool near[EPA_DEVICE_RANKS]; /* ranks whose memory this rank maps */
    struct far *far;             /* NULL: all ranks are near */
    struct epa_backend *backend;
    struct driver driver;
    struct gpu gpu[EPA_DEVICE_RANKS];
    struct memory memory;
    struct epa_device_view view;
    cudaStream_t stream, reads; /* stream: puts and signals; reads: copies of words to the host */
    cudaEvent_t event[2];
    uint64_t *pinned; /* [PINNED_WORDS]: target of copies of words */
    /* Counters of device_peak(), which only increase: runs of stores; turns with each rank. */
    uint64_t meets, turns[EPA_DEVICE_RANKS];
    struct failure failure;
};

static inline struct nvlink *nvlink_of(struct epa_transport *t)
{
    return (struct nvlink *)t;
}

#endif
