/* Arguments of the kernels of ll_v1. */
#ifndef LL_V1_DEVICE_H
#define LL_V1_DEVICE_H

#include <cuda_runtime_api.h>

#include "../../common/algo_cuda.h"
#include "ll_v1_layout.h"

/* Maximum of tokens that a sending block sorts at a time. */
enum { V1_MOST_CHUNK = 8 };

/* The wait that a kernel gave up, or a slice that is longer than MAX_M. */
enum v1_fault {
    V1_WAIT_SPLITS,
    V1_WAIT_ROW,
    V1_WAIT_BEGUN,
    V1_WAIT_OUTPUT,
    V1_NO_ROOM,
    V1_WAIT_RING, /* room in the ring to other nodes */
    V1_WAIT_FAR   /* data of other nodes */
};

enum { V1_SEND = 1, V1_RECEIVE = 2 };

/* Phases of a dispatch and of a combine, for traces. */
enum { V1_SORT, V1_QUANTISE_AND_SEND, V1_WAIT, V1_POSTPROCESS };
enum { V1_SEND_OUTPUTS, V1_WAIT_OUTPUTS, V1_REDUCE };

/* Source of a received row, and the row's index in the source's sorted order. */
struct v1_back {
    uint32_t source, place;
};

/* Offsets count from the start of a rank's heap. Arrays [V1_POSITIONS] have an entry per position;
 * other offsets belong to the set of the call. */
struct v1_args {
    struct device_args c; /* c.stage: enum v1_mode */
    uint32_t max_m, units, unit_channels, unit_bytes;
    uint32_t shares, share_channels, pieces, sent_bytes, output_bytes;
    uint32_t row_bytes, scales_bytes;
    uint32_t pull;
    uint32_t halves;            /* V1_SEND | V1_RECEIVE */
    uint32_t senders;           /* number of sending blocks; later blocks only receive */
    uint32_t chunk;             /* dispatch: tokens that a block sorts at a time */
    uint32_t payloads, payload; /* dispatch: offset of payloads in shared memory; bytes per warp */
    uint64_t splits[V1_POSITIONS], arrival[V1_POSITIONS], outputs[V1_POSITIONS];
    uint64_t recv, recv_scales, origin, y_space, starts;
    /* [max_tokens][topk]: index of a choice; ~0: dropped. With pushed expert outputs the index in
     * the sorted order, with pulled ones the index among the choices of its expert. */
    uint32_t *place;
    struct v1_back *back; /* [rows]: destinations of pushed expert outputs */
    uint32_t *far_slice;  /* [size][2], for ranks of other nodes: start of the slice, rows */
};

/* Arguments of the kernel between the two halves of a call. `a`: the arguments of the halves, whose
 * view contains mirrors of the heaps of other nodes; v: the view of the transport, without
 * mirrors. */
struct v1_far_args {
    struct v1_args a;
    struct epa_device_view v;
    struct epa_device_ring ring;
};

#endif
