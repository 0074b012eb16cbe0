/* A proxy's copies, by CUDA. */
#ifndef COPIES_H
#define COPIES_H

#include "memory.h"
#include "proxy.h"

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

#endif
