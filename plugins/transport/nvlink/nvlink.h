/* What the chapters of the transport share: calls (nvlink.c), device_peak() (peak.c), opening and
 * closing (open.c). */
#ifndef NVLINK_H
#define NVLINK_H

#include "memory.h"
#include "proxy.h"

/* A proxy's copies, by CUDA. */

enum { COPIES_BATCH = 64 }; /* words that are written by one call, at most */

struct copies_lane {
    cudaStream_t stream;
    uint64_t *mark;  /* pinned: operations that are done */
    CUdeviceptr at;  /* that, to the GPU */
    uint64_t marked; /* the last that was queued, */
    uint32_t polls;  /* without a new one */
};

struct copies {
    struct proxy_copies base; /* first */
    const struct driver *driver;
    int device;
    struct epa_fault *device_fault, fault;
    struct copies_lane lane[PROXY_LANES];
    uint64_t *marks;
    CUstreamBatchMemOpParams batch[COPIES_BATCH]; /* of lane IN: not given to the driver yet */
    uint32_t batched;
    void *pinned[1 + EPA_DEVICE_RANKS]; /* own staging and others' */
    uint32_t n_pinned;
    cudaError_t error; /* of the last call that failed, */
    CUresult result;   /* or of the driver's */
    const char *what;
};

void copies_init(struct copies *, const struct driver *, const struct epa_backend *);
/* Left: leave() has returned true, or enter() was never called. */
bool copies_left(const struct copies *);

/* Ranks of other nodes, for the transport over NVLink: the rings that kernels and the host write,
 * their proxy, and copies by CUDA for it. */

/* Whether data go straight between the network and GPU memory, or are staged. */
enum direct_kind { DIRECT_AUTO, DIRECT_ON, DIRECT_OFF };

struct far_params {
    struct epa_bootstrap *boot; /* of all ranks */
    struct epa_backend *backend;
    const struct driver *driver;
    const struct epa_transport_plugin *net;
    bool one_host; /* nodes are parts of one host: to the transport between them there is one */
    char *heap;
    uint64_t *signal;
    uint64_t heap_bytes;
    uint32_t signals;
    struct epa_trace *trace;     /* NULL: no profile */
    int direct;                  /* enum direct_kind */
    const struct region *region; /* of signals and heap */
};

struct far;

/* Collective. */
enum epa_status far_open(const struct far_params *, struct far **out, struct epa_error *);
/* False: copies may still be under way, to and from the memory that it was given. Takes NULL. */
bool far_close(struct far *);
/* For kernels; as long as it is open. */
const struct epa_device_ring *far_ring(const struct far *);

/* EPA_SIGNAL_ADD: by copies alone. */
bool far_adds(const struct far *);

/* As the transport's functions, for ranks of other nodes. */
enum epa_status far_ask(struct far *, struct epa_descriptor);
void far_fence(struct far *, uint32_t peer);
/* f: of a failure that is not the proxy's. */
enum epa_status far_quiet(struct far *, uint64_t timeout_ns, struct failure *f);
/* Until all of them have come; arrive before, on all ranks. */
enum epa_status far_arrive(struct far *, uint64_t timeout_ns, struct failure *f);
enum epa_status far_await(struct far *, uint64_t timeout_ns, struct failure *f);

enum epa_status far_status(const struct far *);
void far_explain(const struct far *, struct epa_error *);
void far_describe(const struct far *, void (*say)(void *arg, const char *key, const char *value),
                  void *arg);

enum nvlink_failed_at {
    FAILED_PEAK = FAILED_OTHER,
    FAILED_CUDA,
    FAILED_FAR,
};

enum { PINNED_WORDS = 16 };

struct nvlink {
    struct epa_transport base; /* first: a pointer to it is one to all of this */
    struct epa_transport_ops ops;
    struct epa_bootstrap *boot;
    bool near[EPA_DEVICE_RANKS]; /* ranks that memory is mapped of */
    struct far *far;             /* NULL: all are near */
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
