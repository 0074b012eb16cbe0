/* What the CUDA code of token_flag gives its kernels, one for each stage. */
#ifndef TOKEN_FLAG_CUDA_H
#define TOKEN_FLAG_CUDA_H

#include "token_flag.h"

enum { TF_THREADS = 256, TF_WARPS = TF_THREADS / 32 };

enum tf_stage {
    TF_DISPATCH_SEND,
    TF_DISPATCH_RECV,
    TF_COMBINE_SEND,
    TF_COMBINE_RECV,
    TF_STAGES
};

/* What a kernel gives up for. */
enum tf_what {
    TF_WAIT_COUNTS, /* of an expert, from a source */
    TF_WAIT_ROWS,   /* flag_granularity: rank: the flag of a source */
    TF_WAIT_ROW,
    TF_WAIT_OUTPUT,
    TF_BAD_ROW /* its META names what cannot be */
};

enum tf_phase { TF_COUNTING, TF_SENDING, TF_AWAITING, TF_RECEIVING, TF_PHASES };

/* Of one warp: when it began and ended each phase of each stage, by the device's nanosecond
 * clock; 0: it did not take part. */
struct tf_stamps {
    uint64_t at[TF_STAGES * TF_PHASES][2];
};

/* Units of a stage's work that have been taken. Calls use two of these in turn, by their
 * number; each clears the other for the one after it. */
struct tf_work_counters {
    uint32_t taken[2][TF_STAGES];
};

/* Rows that have been given a place so far, and what it takes to know that all have left:
 * what `reset` is about. */
struct tf_counters {
    uint32_t arrived; /* blocks that are done sending, flag_granularity: rank */
    uint32_t pad[15];
    uint32_t sent[EPA_DEVICE_RANKS]; /* to each rank */
    uint32_t
        chosen[TF_DEVICE_EXPERTS]; /* flag_granularity: rank: for each expert; [experts] are there */
};

/* By value. Offsets are from the start of any rank's heap, of the buffer set at hand. */
struct tf_args {
    struct epa_device_view v;
    uint32_t
        signal; /* of the first source; those of odd epochs follow on those of even ones */
    uint32_t stage; /* enum tf_stage */
    uint64_t timeout_ns;
    uint32_t tokens, max_tokens, hidden, group, experts, local, topk;
    uint32_t source_rows, chunks;
    uint32_t packets, output_packets;      /* of a message and an expert output on their way */
    uint32_t wire_bytes, slot_bytes;   /* these lines */
    uint32_t content_bytes, scales_at; /* token and scales; of a message where it ends */
    uint32_t message_bytes, meta_at, output_bytes;
    uint32_t by_token, flat, folded; /* the options */
    uint32_t publishers; /* dispatch_send: blocks that count first, flag_granularity: token */
    uint32_t senders;    /* dispatch_send: blocks that send; those after only receive */
    uint32_t payload;     /* where in shared memory what follows the tables begins */
    uint64_t counts, counts_bytes; /* counts: of even epochs, those of odd ones follow */
    uint64_t comm, grouped, outputs;

    const void *x;
    const float *x_scale;
    const int32_t *expert;
    const float *weight, *factor;
    const void *y;
    void *out;

    /* This rank's alone. */
    /* Dispatches, or combines, that have ended, in device memory, so that a graph which is
     * launched again goes on counting: the same number for each of as many blocks as a
     * kernel may have. A block reads its own alone, and so needs no other to have done so
     * before it writes it anew. */
    unsigned long long *calls;
    uint32_t most_blocks;
    struct tf_work_counters *work_counters;
    struct tf_counters *counters;
    uint32_t *recv_count;
    uint64_t *recv_start;
    uint32_t *rows;           /* in use */
    uint32_t *received;           /* of each source */
    uint32_t *entry;          /* of those, [source][row]: where by expert each stands */
    struct tf_stamps *stamps; /* of `stamped` warps */
    uint32_t stamped;
};

/* What dispatch_send makes of x, and combine_send of what its experts have. */
enum tf_input { TF_IN_DTYPE, TF_IN_QUANTISE, TF_IN_FP8, TF_INPUTS };
enum tf_output { TF_OUTPUT_GIVEN, TF_OUTPUT_DTYPE, TF_OUTPUT_FP8, TF_OUTPUTS };

/* The kernels; all take a struct tf_args and TF_THREADS threads a block. */
#ifdef __cplusplus
extern "C" {
#endif
const void *tf_dispatch_send_kernel(enum tf_input, bool f16, bool profile);
const void *tf_dispatch_recv_kernel(bool profile);
const void *tf_combine_send_kernel(enum tf_output, bool f16, bool profile);
const void *tf_combine_recv_kernel(bool f16, bool profile);
#ifdef __cplusplus
}
#endif

#endif
