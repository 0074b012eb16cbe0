/* What the CUDA code of ll_v2 gives its kernels, and the calls that launch them. */
#ifndef LL_V2_CUDA_H
#define LL_V2_CUDA_H

#include "ll_v2.h"

enum { LL_THREADS = 256, LL_WARPS = LL_THREADS / 32 };

/* Choices that a thread of the block which counts them holds at a time, and the whole
 * block. */
enum { LL_OWN = 8, LL_WINDOW = LL_OWN * LL_THREADS };

enum { LL_SEND = 1, LL_RECEIVE = 2 };
enum ll_cuda_stage { LL_DISPATCH, LL_COMBINE };

/* What a kernel gave up for, beside signals (enum ll_signal): more rows come than there is
 * room for; the row of an entry has not. */
enum ll_fault { LL_WAIT_ROOM = LL_SIGNALS, LL_WAIT_ENTRY };

/* Phases by the names of the source. */
enum { LL_STAGE_PHASES = 4 };
enum ll_phase {
    LL_QUANT_AND_PUT,
    LL_COUNT_PUT,
    LL_WAIT,
    LL_POSTPROCESS,
    LL_COPY_AND_PUT,
    LL_RECV_WAIT,
    LL_TOPK_REDUCE,
    LL_PHASES = 2 * LL_STAGE_PHASES
};

/* Of one warp: when it began and ended each phase, by the device's nanosecond clock; 0: it
 * did not take part. */
struct ll_stamps {
    uint64_t at[LL_PHASES][2];
};

enum ll_work_counter { LL_SENDING, LL_RECEIVING, LL_WORK_COUNTERS };

/* Units of a kernel's work that have been taken. Calls of a stage use two of these in turn,
 * by their number; each clears the other for the one after it. */
struct ll_work_counters {
    uint32_t taken[2][LL_WORK_COUNTERS];
};

/* A received row's entry for one expert of this rank. */
struct ll_share {
    uint32_t entry;
    float weight;
};

/* By value. Offsets are from the start of any rank's heap, of the buffer set at hand. */
struct ll_args {
    struct epa_device_view v;
    uint32_t signal, stage; /* stage: enum ll_cuda_stage */
    uint64_t timeout_ns;
    uint32_t tokens, max_tokens, hidden, group, experts, local, topk, places;
    uint32_t units, unit_channels, shares, share_channels;
    uint32_t halves; /* LL_SEND | LL_RECEIVE */
    uint32_t padded, windows;
    uint32_t unit_bytes, share_bytes; /* of a part, as lines */
    uint64_t entries;                 /* that there is room for */
    uint64_t counts, routes, arrival, recv, y_space, outputs;
    uint32_t message_bytes, scales_at, meta_at, choices_at;
    uint32_t output_bytes, sent_bytes;
    uint32_t row_signals;    /* of a row: one for each part, or 1 for all */
    uint32_t receivers_from; /* blocks from here on only receive; 0: all do both */
    uint32_t publishers;     /* dispatch: blocks that count choices */
    uint32_t publish_parts;  /* into which the experts of a rank are divided for that */
    uint32_t counts_early;   /* the kernel before does not count calls of this kind */
    uint32_t words; /* windows that the block which counts choices takes at a time */
    uint32_t payloads, payload; /* dispatch, in shared memory: where, bytes of a warp's */

    const void *x;
    const float *x_scale;
    const int32_t *expert;
    const float *weight;
    const void *y;       /* expert outputs, output_bytes apart; fused: the rows that came */
    const float *factor; /* fused: of all experts */
    void *out;

    /* This rank's alone. */
    /* Calls of this stage that have ended, in device memory, so that a graph which is
     * launched again goes on counting: the same number for each of as many blocks as a
     * kernel may have. A block reads its own alone, and so needs no other to have done so
     * before it writes it anew. */
    unsigned long long *calls;
    uint32_t most_blocks;
    struct ll_work_counters *work_counters; /* of this stage */
    uint32_t *wanted; /* [slots]: which choices of the row are for experts here, as bits */
    struct ll_share *share; /* [slots][topk] */
    /* Fused, NULL where it is not asked for: the local expert of a share, or of the i-th
     * entry in use. */
    uint16_t *chosen;
    uint32_t *place; /* [max_tokens][topk]: where a row stands at its receiver; ~0: none */
    uint32_t *recv_count;
    uint32_t *rows; /* entries in use */
    uint32_t
        *recv_row; /* rows sent straight to their place: the entries in use, in order */
    uint64_t *recv_start;
    float *recv_weight;
    struct ll_stamps *stamps; /* of `stamped` warps */
    uint32_t stamped;
};

/* How a token's row is sent: its 16 bits as they are; quantised from bf16 or f16; as it was
 * quantised before. */
enum ll_input { LL_IN_PLAIN, LL_IN_QUANTISE, LL_IN_QUANTISE_F16, LL_IN_FP8, LL_INPUTS };
enum ll_mode { LL_BY_RANK, LL_DEDUP, LL_DIRECT, LL_MODES };

/* What combine makes an expert output of: what experts gave; with fuse_expert: true the row that came,
 * of 16 bits or in FP8. */
enum ll_from { LL_FROM_Y, LL_FROM_ROWS, LL_FROM_CODES, LL_FROMS };

struct ll_combine_kind {
    enum ll_mode mode;
    enum ll_from from;
    bool f16, fp8, pushed, profile;
};

/* The kernels; all take a struct ll_args and LL_THREADS threads a block. */
#ifdef __cplusplus
extern "C" {
#endif
/* NULL: there is none; with `profile`, of bf16 and of experts' expert outputs alone. */
const void *ll_dispatch_kernel(enum ll_input, enum ll_mode, bool profile);
const void *ll_combine_kernel(struct ll_combine_kind);
const void *ll_fused_kernel(struct ll_combine_kind); /* those of rows that came */
#ifdef __cplusplus
}
#endif

#endif
