/* Arguments of the kernels of ll_v2. */
#ifndef LL_V2_DEVICE_H
#define LL_V2_DEVICE_H

#include <cuda_runtime_api.h>

#include "../../common/algo_cuda.h"
#include "ll_v2_layout.h"

/* Number of choices that a thread of a counting block holds at a time, and that the block holds. */
enum { LL_OWN = 8, LL_WINDOW = LL_OWN * DEVICE_THREADS };

enum { LL_SEND = 1, LL_RECEIVE = 2 };
enum ll_cuda_stage { LL_DISPATCH, LL_COMBINE };

/* Waits that a kernel gave up, beside signals (enum ll_signal): more rows arrive than fit; the row
 * of an entry is missing; the ring to other nodes has no room. */
enum ll_fault { LL_WAIT_ROOM = LL_SIGNALS, LL_WAIT_ENTRY, LL_WAIT_RING };

/* Phases of a dispatch and of a combine, for traces, with the names of the source. */
enum { LL_QUANT_AND_PUT, LL_COUNT_PUT, LL_WAIT, LL_POSTPROCESS };
enum { LL_COPY_AND_PUT, LL_RECV_WAIT, LL_TOPK_REDUCE };

/* Entry of a received row for a local expert. */
struct ll_share {
    uint32_t entry;
    float weight;
};

/* Tokens of a window that a source sends to a rank: bit mask, and number of such tokens before. */
struct ll_sent {
    uint32_t bits, before;
};

/* row_order: rows in the order of sources and tokens, in memory of this rank. */
struct ll_order {
    char *rows;                /* [rows][token_bytes] */
    float *scales;             /* [rows][groups] */
    struct epa_origin *origin; /* [rows] */
    int32_t *expert;           /* [rows][topk]: local expert, or -1 */
    float *weight;             /* [rows][topk]: weight, or 0 */
    int64_t *range;            /* [size]: first row of a source << 32 | number of its rows */
    uint32_t *row;             /* [slots]: row of a slot */
    /* Pulled expert outputs of this rank's tokens; else NULL. */
    struct ll_sent *sent; /* [size][windows] */
    uint32_t *base;       /* [size]: row at each rank of the first token */
};

/* dedup: copies of the choices, for the caller. NULL: none. */
struct ll_kept {
    int32_t *expert[2];
    float *weight[2];
};

/* dedup: arrays of the caller for rows and lists, instead of messages (struct
 * epa_delivery). x NULL: messages; other pointers may be NULL. */
struct ll_into {
    char *x;
    uint32_t *scales;
    uint32_t scale_rows; /* [L][words][scale_rows]; 0: the scales of a row are adjacent */
    uint32_t words;      /* of the scales of a row */
    bool exponents;
    uint32_t *count;
    uint64_t *start;
    int32_t *token, *seen;
    int64_t *range;
};

/* masks: state of a stage. All 0 at first. */
struct ll_loss {
    /* call << 32 | bit mask of the ranks that the call leaves out from the start */
    unsigned long long agreed;
    uint32_t lost;  /* bit mask of further ranks that threads left out in the call */
    uint32_t ended; /* number of blocks that have ended */
};

/* Offsets count from the start of a rank's heap. Offsets of regions belong to the set of the call. */
struct ll_args {
    /* c.stage: enum ll_cuda_stage; c.y: the received rows if fuse_expert is set */
    struct device_args c;
    uint32_t places, units, unit_channels, shares, share_channels;
    uint32_t halves; /* LL_SEND | LL_RECEIVE */
    uint32_t padded, windows;
    uint32_t far;                     /* bit mask of ranks of other nodes */
    uint32_t unit_bytes, share_bytes; /* bytes of a part, as lines */
    uint64_t entries;                 /* capacity of a rank */
    uint64_t counts, routes, arrival, recv, y_space, outputs;
    uint64_t totals; /* packets [source][rank]: number of rows that a source sends to a rank */
    bool gaps;       /* row_order: padded */
    struct ll_order order;
    uint32_t message_bytes, scales_at, meta_at, choices_at;
    uint32_t output_bytes, sent_bytes; /* output_bytes: distance between rows of y */
    uint32_t row_signals;              /* signals per row: one per part, or 1 for the whole row */
    /* index of the first block that only receives; 0: all blocks send and receive */
    uint32_t receivers_from;
    uint32_t publishers; /* dispatch: number of blocks that count choices */
    /* number of parts of a rank's experts; one block counts a part */
    uint32_t publish_parts;
    uint32_t counts_early;      /* the previous kernel does not count calls of this kind */
    uint32_t words;             /* number of windows that a counting block takes at a time */
    uint32_t list_packets;      /* few tokens: packets of a list of experts */
    uint32_t tries;             /* number of loads of a whole payload before a wait for its end */
    uint32_t payloads, payload; /* dispatch: offset of payloads in shared memory; bytes per warp */

    /* Memory of this rank. */
    uint32_t *wanted;       /* [slots]: bit mask of the row's choices of local experts */
    struct ll_share *share; /* [slots][topk] */
    /* fuse_expert: local expert of a share, or of the i-th entry in use; else NULL. */
    uint16_t *chosen;
    uint32_t *place; /* [max_tokens][topk]: place of a row at its receiver; ~0: none */
    /* layout rank: row of each entry, which is its slot without row_order; LL_DIRECT: the entries in
     * use, in order */
    uint32_t *recv_row;
    float *recv_weight; /* layout rank: of each entry */
    uint8_t *recv_k;    /* layout rank: index of the choice of each entry */

    /* Only kernels of ll_dispatch_copies_kernel() and kernels with masks load the rest. */
    struct ll_kept kept;
    struct ll_into into;

    /* Only kernels with masks load the rest. */
    int32_t *masks; /* [size], of the caller: 1: a rank has a mask. NULL: no masks */
    struct ll_loss *loss;
    uint32_t alive; /* masks: first of the signals [size] of ranks that wait */
};

/* LL_ORDERED: by rank, and the receiver copies rows from their slots to the order of row_order.
 * LL_BY_CHOICE: a combine after a dispatch of LL_DEDUP that returns each expert output.
 * LL_MASKED: the same with masks. */
enum ll_mode { LL_BY_RANK, LL_ORDERED, LL_DEDUP, LL_DIRECT, LL_BY_CHOICE, LL_MASKED, LL_MODES };

#ifdef __cplusplus
/* true: a rank gets a token once, in a slot, with signals. */
template <int MODE> constexpr bool ll_uses_slots = MODE == LL_BY_RANK || MODE == LL_ORDERED;
/* true: combine adds up the outputs of choices, with their weights; else one output per rank. */
template <int MODE>
constexpr bool ll_sums_choices = MODE == LL_DIRECT || MODE == LL_BY_CHOICE || MODE == LL_MASKED;
#endif

/* Input of combine: outputs of experts; with fuse_expert the received rows, in 16 bits or in
 * FP8. */
enum ll_from { LL_FROM_Y, LL_FROM_ROWS, LL_FROM_CODES };

struct ll_combine_kind {
    enum ll_mode mode;
    enum ll_from from;
    bool f16, fp8, pushed, profile;
};

/* Arguments of the kernel between the two halves of a call. `a`: the arguments of the halves,
 * whose view contains mirrors of the heaps of other nodes; v: the view of the transport, without
 * mirrors. */
struct ll_far_args {
    struct ll_args a;
    struct epa_device_view v;
    struct epa_device_ring ring;
    bool arrives; /* the receiver copies rows; false: rows stay where they arrive (layout rank) */
};

#endif
