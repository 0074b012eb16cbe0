/* What the CUDA code of ll_v1 gives its kernels, and the calls that launch them. */
#ifndef LL_V1_CUDA_H
#define LL_V1_CUDA_H

#include "ll_v1.h"

enum { V1_THREADS = 256, V1_WARPS = V1_THREADS / 32 };

/* Tokens that a block which sends sorts in at a time, at most. */
enum { V1_MOST_CHUNK = 8 };

/* What a kernel gave up waiting for; or a slice that is longer than MAX_M. */
enum v1_fault { V1_WAIT_SPLITS, V1_WAIT_ROW, V1_WAIT_BEGUN, V1_WAIT_OUTPUT, V1_NO_ROOM };

enum { V1_STAGE_PHASES = 4 };
enum v1_phase {
    V1_SORT,
    V1_QUANTISE_AND_SEND,
    V1_WAIT,
    V1_POSTPROCESS,
    V1_SEND_OUTPUTS,
    V1_WAIT_OUTPUTS,
    V1_REDUCE,
    V1_PHASES = 2 * V1_STAGE_PHASES
};

/* Of one warp: when it began and ended each phase, by the device's nanosecond clock; 0: it
 * did not take part. */
struct v1_stamps {
    uint64_t at[V1_PHASES][2];
};

enum v1_work_counter { V1_SENDING, V1_RECEIVING, V1_WORK_COUNTERS };

/* Units of a kernel's work that have been taken. Calls of a mode use two of these in turn;
 * each clears the other for the one after it. */
struct v1_work_counters {
    uint32_t taken[2][V1_WORK_COUNTERS];
};

/* Whose a received row is, and where that stands as its source sorted it. */
struct v1_back {
    uint32_t source, place;
};

/* By value. Offsets are from the start of any rank's heap; those of [V1_POSITIONS] are of
 * the call's position, the others of the set at hand. */
struct v1_args {
    struct epa_device_view v;
    uint32_t signal, mode; /* mode: enum v1_mode */
    uint64_t timeout_ns;
    uint32_t tokens, max_tokens, hidden, group, experts, local, topk, max_m;
    uint32_t units, unit_channels, unit_bytes;
    uint32_t shares, share_channels, pieces, sent_bytes, output_bytes;
    uint32_t row_bytes, scales_bytes;
    uint32_t pull;
    uint32_t senders;         /* blocks from here on only receive */
    uint32_t chunk;           /* dispatch: tokens that a block sorts in at a time */
    uint32_t payloads, payload; /* dispatch, in shared memory: where, bytes of a warp's */
    uint64_t splits[V1_POSITIONS], arrival[V1_POSITIONS], outputs[V1_POSITIONS];
    uint64_t recv, recv_scales, origin, y_space, starts;

    const void *x;
    const float *x_scale;
    const int32_t *expert;
    const float *weight;
    const void *y;
    void *out;

    /* This rank's alone. */
    /* Calls of this mode that have ended, in device memory, so that a graph which is
     * launched again goes on counting: the same number for each of as many blocks as a
     * kernel may have. A block reads its own alone, and so needs no other to have done so
     * before it writes it anew. */
    unsigned long long *calls;
    uint32_t most_blocks;
    struct v1_work_counters *work_counters; /* of this mode */
    /* [max_tokens][topk] Where a choice stands, ~0: nowhere. Expert outputs are pushed: as sorted;
     * pulled: among the choices of its expert. */
    uint32_t *place;
    struct v1_back *back; /* [rows] expert outputs are pushed: where they go */
    uint32_t *rows;       /* that came */
    uint32_t *recv_count;
    uint64_t *recv_start;
    struct v1_stamps *stamps; /* of `stamped` warps */
    uint32_t stamped;
};

enum v1_input { V1_IN_DTYPE, V1_IN_QUANTISE, V1_IN_FP8, V1_INPUTS };

/* The kernels; all take a struct v1_args and V1_THREADS threads a block. */
#ifdef __cplusplus
extern "C" {
#endif
const void *v1_dispatch_kernel(enum v1_input, bool f16, bool profile);
const void *v1_combine_kernel(bool f16, bool pull, bool profile);
#ifdef __cplusplus
}
#endif

#endif
