/* Arguments of the kernels of token_flag, one for each stage. */
#ifndef TOKEN_FLAG_DEVICE_H
#define TOKEN_FLAG_DEVICE_H

#include <cuda_runtime_api.h>

#include <epa2a/ring.h>

#include "../../common/algo_cuda.h"
#include "token_flag_layout.h"

enum tf_stage { TF_DISPATCH_SEND, TF_DISPATCH_RECV, TF_COMBINE_SEND, TF_COMBINE_RECV, TF_STAGES };

/* The wait that a kernel gave up, or an invalid row. */
enum tf_what {
    TF_WAIT_COUNTS, /* counts of a source for an expert */
    TF_WAIT_ROWS,   /* flag_granularity: rank: flag of a source */
    TF_WAIT_CHUNKS, /* all chunks but the last, of a rank of another node */
    TF_WAIT_ROW,
    TF_WAIT_OUTPUT,
    TF_WAIT_OUTPUTS, /* all outputs of a rank of another node */
    TF_WAIT_RING,    /* room in the ring to other nodes */
    TF_BAD_ROW       /* META of the row is invalid */
};

/* Phases of each stage, for traces. */
enum { TF_COUNTING, TF_SENDING, TF_AWAITING, TF_RECEIVING };

enum { TF_THREADS = DEVICE_MOST_WARPS * 32 }; /* maximum of threads of a block */

/* A part of a row or expert output: the lines that one warp takes. */
enum {
    TF_FOURS = TF_UNIT_PACKETS / 4,
    TF_META_LANE = 6 /* among the eight lanes with the last line */
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

/* Counters that counter_reset clears. */
struct tf_counters {
    uint32_t arrived; /* flag_granularity: rank: number of blocks that have ended their sends */
    uint32_t pad[15];
    uint32_t sent[EPA_DEVICE_RANKS]; /* number of rows that have a place, per rank */
    /* number of these rows that have been put to ranks of other nodes */
    uint32_t put[EPA_DEVICE_RANKS];
    uint32_t chosen
        [TF_DEVICE_EXPERTS]; /* [experts], flag_granularity: rank: number of rows per expert */
};

/* Offsets count from the start of a rank's heap. Offsets of regions belong to the set of the call. */
struct tf_args {
    /* c.stage: enum tf_stage. c.signal: flags of sources, first [size] of even epochs, then [size]
     * of odd epochs. With ranks of other nodes, [size] signals of outputs follow; with chunks then
     * [2][size] signals of all chunks but the last, of even and of odd epochs. */
    struct device_args c;
    uint64_t far; /* bit mask of ranks of other nodes */
    /* dispatch_send: range of tokens and index of the launch; last: 1 in the last launch. With
     * other nodes, each chunk has a launch. */
    uint32_t begin, end, chunk, last;
    uint32_t source_rows, chunks;
    uint32_t packets, output_packets; /* lines of a message and of an expert output in flight */
    uint32_t wire_bytes, slot_bytes;  /* bytes of these lines */
    /* bytes of token and scales; offset of scales in a message */
    uint32_t content_bytes, scales_at;
    uint32_t message_bytes, meta_at, output_bytes;
    /* options flag_granularity: token, work_partition: flat, counter_reset: inline */
    uint32_t by_token, flat, folded;
    /* dispatch_send, flag_granularity: token: number of blocks that count first */
    uint32_t publishers;
    uint32_t senders; /* dispatch_send: number of sending blocks; later blocks only receive */
    uint32_t payload; /* offset of the payload in shared memory, after the tables */
    uint64_t counts, counts_bytes; /* counts: offset for even epochs; counts of odd epochs follow */
    uint64_t comm, grouped, outputs;

    /* Memory of this rank. */
    struct tf_counters *counters;
    uint32_t *received; /* number of rows of each source */
    uint32_t *entry;    /* [source][row]: index of a received row among the rows by expert */
    /* row of each choice at its rank; NULL: all peers are on this node, and slots are ordered by
     * token and choice */
    uint32_t *place;
};

/* Arguments of the kernel between the two halves of a call. `a`: the arguments of the halves,
 * whose view contains mirrors of the heaps of other nodes; v: the view of the transport, without
 * mirrors. */
struct tf_far_args {
    struct tf_args a;
    struct epa_device_view v;
    struct epa_device_ring ring;
};

/* Input of combine_send: outputs of experts; with fuse_expert the received rows, in 16 bits or in
 * FP8. */
enum tf_output { TF_OUTPUT_GIVEN, TF_OUTPUT_DTYPE, TF_OUTPUT_FP8, TF_OUTPUTS };

#endif
