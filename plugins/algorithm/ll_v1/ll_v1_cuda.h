/* What the CUDA code of ll_v1 gives its kernels, and the calls that launch them. */
#ifndef LL_V1_CUDA_H
#define LL_V1_CUDA_H

#include <cuda_runtime_api.h>

#include "../../common/algo_cuda.h"
#include "ll_v1.h"

/* Tokens that a block which sends sorts in at a time, at most. */
enum { V1_MOST_CHUNK = 8 };

/* What a kernel gave up waiting for; or a slice that is longer than MAX_M. */
enum v1_fault {
    V1_WAIT_SPLITS,
    V1_WAIT_ROW,
    V1_WAIT_BEGUN,
    V1_WAIT_OUTPUT,
    V1_NO_ROOM,
    V1_WAIT_RING, /* room in the ring to other nodes; */
    V1_WAIT_FAR   /* what comes from there */
};

enum { V1_SEND = 1, V1_RECEIVE = 2 };

/* Phases of a dispatch, and of a combine. */
enum { V1_SORT, V1_QUANTISE_AND_SEND, V1_WAIT, V1_POSTPROCESS };
enum { V1_SEND_OUTPUTS, V1_WAIT_OUTPUTS, V1_REDUCE };

/* Whose a received row is, and where that is as its source sorted it. */
struct v1_back {
    uint32_t source, place;
};

/* Offsets are from the start of any rank's heap; those of [V1_POSITIONS] are of the call's
 * position, the others of the set at hand. */
struct v1_args {
    struct device_args c; /* its stage: enum v1_mode */
    uint32_t max_m, units, unit_channels, unit_bytes;
    uint32_t shares, share_channels, pieces, sent_bytes, output_bytes;
    uint32_t row_bytes, scales_bytes;
    uint32_t pull;
    uint32_t halves;            /* V1_SEND | V1_RECEIVE */
    uint32_t senders;           /* blocks from here on only receive */
    uint32_t chunk;             /* dispatch: tokens that a block sorts in at a time */
    uint32_t payloads, payload; /* dispatch, in shared memory: where, bytes of a warp's */
    uint64_t splits[V1_POSITIONS], arrival[V1_POSITIONS], outputs[V1_POSITIONS];
    uint64_t recv, recv_scales, origin, y_space, starts;
    /* [max_tokens][topk] Where a choice stands, ~0: nowhere. Expert outputs are pushed: as sorted;
     * pulled: among the choices of its expert. */
    uint32_t *place;
    struct v1_back *back; /* [rows] expert outputs are pushed: where they go */
    uint32_t
        *far_slice; /* [size][2] of a rank of another node: where its rows begin as sorted, rows */
};

/* Between the kernels of the two halves of a call. `a`: as they have it, with mirrors of the heaps
 * of ranks of other nodes in its view; v: the transport's, where these have none. */
struct v1_far_args {
    struct v1_args a;
    struct epa_device_view v;
    struct epa_device_ring ring;
};

/* The kernels; all take a struct v1_args. */
#ifdef __cplusplus
extern "C" {
#endif
const void *v1_dispatch_kernel(enum device_input, bool profile);
const void *v1_combine_kernel(bool f16, bool pull, bool profile);
/* Sends what the kernel before has stored for other nodes, and waits for what comes from there. */
struct device_far v1_far(void);
#ifdef __cplusplus
}
#endif

#endif
