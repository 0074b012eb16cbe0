/* What the CUDA code of ll_v2 gives its kernels, and the calls that launch them. */
#ifndef LL_V2_CUDA_H
#define LL_V2_CUDA_H

#include <cuda_runtime_api.h>

#include "../../common/algo_cuda.h"
#include "ll_v2.h"

/* Choices that a thread of the block which counts them holds at a time, and the whole
 * block. */
enum { LL_OWN = 8, LL_WINDOW = LL_OWN * DEVICE_THREADS };

enum { LL_SEND = 1, LL_RECEIVE = 2 };
enum ll_cuda_stage { LL_DISPATCH, LL_COMBINE };

/* What a kernel gave up for, beside signals (enum ll_signal): more rows arrive than there is
 * room for; the row of an entry has not; the ring to other nodes has no room. */
enum ll_fault { LL_WAIT_ROOM = LL_SIGNALS, LL_WAIT_ENTRY, LL_WAIT_RING };

/* Phases of a dispatch, and of a combine, by the names of the source. */
enum { LL_QUANT_AND_PUT, LL_COUNT_PUT, LL_WAIT, LL_POSTPROCESS };
enum { LL_COPY_AND_PUT, LL_RECV_WAIT, LL_TOPK_REDUCE };

/* A received row's entry for one expert of this rank. */
struct ll_share {
    uint32_t entry;
    float weight;
};

/* Offsets are from the start of any rank's heap, of the buffer set at hand. */
struct ll_args {
    struct device_args c; /* its stage: enum ll_cuda_stage; y: fused: the rows that came */
    uint32_t places, units, unit_channels, shares, share_channels;
    uint32_t halves; /* LL_SEND | LL_RECEIVE */
    uint32_t padded, windows;
    uint32_t far;                     /* ranks of other nodes, as bits */
    uint32_t unit_bytes, share_bytes; /* of a part, as lines */
    uint64_t entries;                 /* that there is room for */
    uint64_t counts, routes, arrival, recv, y_space, outputs;
    uint32_t message_bytes, scales_at, meta_at, choices_at;
    uint32_t output_bytes, sent_bytes; /* output_bytes: from one y to the next */
    uint32_t row_signals;              /* of a row: one for each part, or 1 for all */
    uint32_t receivers_from;           /* blocks from here on only receive; 0: all do both */
    uint32_t publishers;               /* dispatch: blocks that count choices */
    uint32_t publish_parts;            /* into which the experts of a rank are divided for that */
    uint32_t counts_early;             /* the kernel before does not count calls of this kind */
    uint32_t words;             /* windows that the block which counts choices takes at a time */
    uint32_t payloads, payload; /* dispatch, in shared memory: where, bytes of a warp's */

    /* This rank's alone. */
    uint32_t *wanted;       /* [slots]: which choices of the row are for experts here, as bits */
    struct ll_share *share; /* [slots][topk] */
    /* Fused, NULL where it is not asked for: the local expert of a share, or of the i-th
     * entry in use. */
    uint16_t *chosen;
    uint32_t *place;    /* [max_tokens][topk]: where a row is at its receiver; ~0: none */
    uint32_t *recv_row; /* rows sent straight to their place: the entries in use, in order */
    float *recv_weight;
};

enum ll_mode { LL_BY_RANK, LL_DEDUP, LL_DIRECT, LL_MODES };

/* What combine makes an expert output of: what experts gave; with fuse_expert: true the row that
 * came, of 16 bits or in FP8. */
enum ll_from { LL_FROM_Y, LL_FROM_ROWS, LL_FROM_CODES };

struct ll_combine_kind {
    enum ll_mode mode;
    enum ll_from from;
    bool f16, fp8, pushed, profile;
};

/* Between the kernels of the two halves of a call. `a`: as they have it, with mirrors of the heaps
 * of ranks of other nodes in its view; v: the transport's, where these have none. */
struct ll_far_args {
    struct ll_args a;
    struct epa_device_view v;
    struct epa_device_ring ring;
    bool arrives; /* rows are copied from where they arrive; else they stay there (layout rank) */
};

/* The kernels; all take a struct ll_args. */
#ifdef __cplusplus
extern "C" {
#endif
/* NULL: there is none. */
const void *ll_dispatch_kernel(enum device_input, enum ll_mode, bool profile);
const void *ll_dispatch_dedup_kernel(enum device_input, bool profile);
const void *ll_combine_kernel(struct ll_combine_kind);
/* Sends what the kernel before has stored for other nodes, waits for what comes from there, or
 * both. */
struct device_far ll_far(void);
#ifdef __cplusplus
}
#endif

#endif
