/* What the CUDA code of token_flag gives its kernels, one for each stage. */
#ifndef TOKEN_FLAG_CUDA_H
#define TOKEN_FLAG_CUDA_H

#include <cuda_runtime_api.h>

#include <epa2a/ring.h>

#include "../../common/algo_cuda.h"
#include "token_flag.h"

enum tf_stage { TF_DISPATCH_SEND, TF_DISPATCH_RECV, TF_COMBINE_SEND, TF_COMBINE_RECV, TF_STAGES };

/* What a kernel gives up for. */
enum tf_what {
    TF_WAIT_COUNTS, /* of an expert, from a source */
    TF_WAIT_ROWS,   /* flag_granularity: rank: the flag of a source */
    TF_WAIT_CHUNKS, /* all but the last, of a rank of another node */
    TF_WAIT_ROW,
    TF_WAIT_OUTPUT,
    TF_WAIT_OUTPUTS, /* all those of a rank of another node */
    TF_WAIT_RING,    /* room in the ring to other nodes */
    TF_BAD_ROW       /* its META names what cannot be */
};

/* Phases of each stage. */
enum { TF_COUNTING, TF_SENDING, TF_AWAITING, TF_RECEIVING };

enum { TF_THREADS = DEVICE_MOST_WARPS * 32 }; /* of a block, at most */

/* A part of a row or expert output: lines of it that one warp takes. */
enum {
    TF_FOURS = TF_UNIT_PACKETS / 4,
    TF_META_LANE = 6 /* of the eight that have the last line */
};

struct tf_part {
    uint32_t unit, packets;
};

EPA_BOTH struct tf_part tf_part_at(uint32_t packets, uint32_t unit)
{
    const uint32_t most = TF_UNIT_PACKETS, left = packets - unit * most;
    struct tf_part p = {unit, left < most ? left : most};

    return p;
}

/* Rows that have been given a place so far, and what it takes to know that all have left:
 * what `reset` is about. */
struct tf_counters {
    uint32_t arrived; /* blocks that are done sending, flag_granularity: rank */
    uint32_t pad[15];
    uint32_t sent[EPA_DEVICE_RANKS]; /* to each rank */
    uint32_t put[EPA_DEVICE_RANKS];  /* of these, to ranks of other nodes */
    uint32_t chosen
        [TF_DEVICE_EXPERTS]; /* flag_granularity: rank: for each expert; [experts] are there */
};

/* Offsets are from the start of any rank's heap, of the buffer set at hand. */
struct tf_args {
    /* Its stage: enum tf_stage; signal: of the first source; those of odd epochs follow on
     * those of even ones. Ranks of other nodes: then one for each, of outputs; with chunks two
     * more, of odd and even epochs, of all chunks but the last. */
    struct device_args c;
    uint64_t far; /* ranks of other nodes, as bits */
    /* dispatch_send: the tokens and the number of the launch at hand, and whether it is the last of
     * the call. Where there are other nodes each chunk has one. */
    uint32_t begin, end, chunk, last;
    uint32_t source_rows, chunks;
    uint32_t packets, output_packets;  /* of a message and an expert output on their way */
    uint32_t wire_bytes, slot_bytes;   /* these lines */
    uint32_t content_bytes, scales_at; /* token and scales; of a message where it ends */
    uint32_t message_bytes, meta_at, output_bytes;
    uint32_t by_token, flat, folded; /* the options */
    uint32_t publishers; /* dispatch_send: blocks that count first, flag_granularity: token */
    uint32_t senders;    /* dispatch_send: blocks that send; those after only receive */
    uint32_t payload;    /* where in shared memory what follows the tables begins */
    uint64_t counts, counts_bytes; /* counts: of even epochs, those of odd ones follow */
    uint64_t comm, grouped, outputs;

    /* This rank's alone. */
    struct tf_counters *counters;
    uint32_t *received; /* of each source */
    uint32_t *entry;    /* of those, [source][row]: where by expert each is */
    uint32_t *place; /* of each choice of a token the row at its rank; NULL: no peer is of another
                         * node, and slots are by token and choice */
};

/* Between the kernels of the two halves of a call. `a`: as they have it, with mirrors of the heaps
 * of ranks of other nodes in its view; v: the transport's, where these have none. */
struct tf_far_args {
    struct tf_args a;
    struct epa_device_view v;
    struct epa_device_ring ring;
};

/* What combine_send makes of what its experts have. */
enum tf_output { TF_OUTPUT_GIVEN, TF_OUTPUT_DTYPE, TF_OUTPUT_FP8, TF_OUTPUTS };

/* The kernels; all take a struct tf_args. */
#ifdef __cplusplus
extern "C" {
#endif
const void *tf_dispatch_send_kernel(enum device_input, bool profile);
const void *tf_dispatch_recv_kernel(bool profile);
const void *tf_combine_send_kernel(enum tf_output, bool f16, bool profile);
const void *tf_combine_recv_kernel(bool f16, bool profile);
/* Of a stage that sends: has what its kernel has stored put to other nodes. Of one that receives:
 * waits for what arrives from there. */
struct device_far tf_far(void);
#ifdef __cplusplus
}
#endif

#endif
