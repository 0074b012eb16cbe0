/* Shared declarations of the transport: calls (nvlink.c), device_peak() (peak.c), opening and
 * closing (open.c), copies of the proxy (copies.c), and ranks of other nodes (far.c). */
#ifndef NVLINK_H
#define NVLINK_H

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

void copies_init(struct copies *, const struct driver *, const struct epa_backend *);
/* Returns true if leave() has returned true or enter() was never called. */
bool copies_left(const struct copies *);

/* ---- far.c: ranks of other nodes: the rings that kernels and the host write, their proxy, and its
 * copies with CUDA ---- */

/* Selects whether the network accesses GPU memory directly or data is staged. */
enum direct_kind { DIRECT_AUTO, DIRECT_ON, DIRECT_OFF };

struct far_params {
    struct epa_bootstrap *boot; /* bootstrap of all ranks */
    struct epa_backend *backend;
    const struct driver *driver;
    const struct epa_transport_plugin *net;
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

/* Collective. */
enum epa_status far_open(const struct far_params *, struct far **out, struct epa_error *);
/* Returns false if copies to or from the memory may still be in flight. Accepts NULL. */
bool far_close(struct far *);
/* The ring for kernels; valid until far_close(). */
const struct epa_device_ring *far_ring(const struct far *);

/* Returns true if EPA_SIGNAL_ADD works, which requires the staged way. */
bool far_adds(const struct far *);

/* Functions of the transport for ranks of other nodes. */
enum epa_status far_ask(struct far *, struct epa_descriptor);
void far_fence(struct far *, uint32_t peer);
/* f: the failure, unless the proxy failed. */
enum epa_status far_quiet(struct far *, uint64_t timeout_ns, struct failure *f);
/* Waits for the arrival of all ranks of other nodes. Every rank signals its own arrival first. */
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

extern const struct epa_transport_ops nvlink_ops;

/* Records a failed call of CUDA. */
enum epa_status nvlink_cuda(struct nvlink *, cudaError_t, const char *what);
/* Waits until the stream is empty or, with heeds_abort, until a rank has failed. */
enum epa_status nvlink_drain(struct nvlink *, cudaStream_t, uint64_t timeout_ns, bool heeds_abort);

/* Functions of struct epa_transport_ops. */
enum epa_status nvlink_device_peak(struct epa_transport *, const struct epa_peak_run *, double *ns);
void nvlink_close(struct epa_transport *);

#endif
