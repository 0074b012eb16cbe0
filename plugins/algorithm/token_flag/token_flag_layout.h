/* token_flag: options, messages and the layout of the heap, for host and CUDA code.
 *
 * Source: "My first Multi-GPU kernel: Writing All-to-all for AMD MI300X", its buffers, flags and
 * steps.
 *
 * A flat token is a choice of a token, (token, k). Dispatch sends a message per flat token: token |
 * scales (dispatch_dtype: fp8) | struct tf_meta, in lines of 64 bytes. Combine returns an expert
 * output in a slot: expert output | flag. A flag is the last word of its message or slot, in the
 * last line of the data that it covers.
 *
 * On GPUs, messages and slots are sequences of 64-bit words in lines of 128 bytes, with the epoch
 * in the last word of each line (epa2a/packets.cuh). Their contents are the same as on hosts. */
#ifndef TOKEN_FLAG_LAYOUT_H
#define TOKEN_FLAG_LAYOUT_H

#include <epa2a/algorithm.h>

#include <epa2a/both.h>

#include "../../common/algo_options.h"

enum tf_flag_granularity { TF_FLAG_PER_RANK, TF_FLAG_PER_TOKEN };
enum tf_counter_reset { TF_COUNTER_RESET_MEMSET, TF_COUNTER_RESET_INLINE };
enum tf_work_partition { TF_PARTITION_BY_SOURCE, TF_PARTITION_FLAT };
enum tf_nontemporal { TF_NONTEMPORAL_OFF, TF_NONTEMPORAL_ON };

struct tf_config {
    /* values of enum algo_dtype and of the enums above */
    int dispatch_dtype, flag_granularity, counter_reset, work_partition, nontemporal;
    bool fuse_expert; /* combine_send computes the experts */
    uint32_t chunks, buffers;
    uint32_t parts;  /* 0: the caller runs the experts between dispatch and combine */
    uint32_t blocks; /* CUDA code: maximum of blocks of a kernel; 0: enough to saturate the links */
    struct epa_u32_list kernel_blocks; /* the same per kernel, or empty */
    struct epa_u32_list kernel_warps;  /* warps per block of each kernel, or empty */
};

struct tf_meta {
    struct epa_origin origin;
    uint16_t k;      /* index of the choice */
    uint16_t expert; /* index among the receiver's experts */
    uint32_t row;    /* index among the rows of this source at the receiver */
    uint64_t flag;   /* epoch; with flag_granularity: token */
};

enum { TF_LINE = 64, TF_PAGE = 4096, TF_META_BYTES = 24, TF_FLAG_BYTES = 8 };

/* Sizes of arrays on the stack. */
enum { TF_TOPK = 32, TF_RANKS = 64, TF_LOCAL = 1 << 16, TF_KERNELS = 4 };

/* Buffer sets of a layer. Hosts: the rows of a part arrive and the outputs of another part return
 * while the experts compute a third part. GPUs: combine precedes the next dispatch. */
enum { TF_HOST_SETS = 3, TF_DEVICE_SETS = 2 };

/* First word of a rank's counts: the way of its rows. The other words are the numbers of rows for
 * each expert of the receiver. */
enum tf_way { TF_STORED, TF_PUT };

/* Offsets from the start of the algorithm's part of the heap, which starts on a page. Instances of
 * a region [buffers] are contiguous. */
struct tf_layout {
    uint32_t size, experts, local, topk, hidden, group, chunks;
    uint32_t parts;      /* parts of a layer; 0: no layer */
    uint32_t max_tokens; /* of a dispatch: of a part of a layer */
    uint32_t buffers;    /* buffer sets: the maximum number of open dispatches */
    bool fp8, by_token, fused, folded, flat;
    bool puts;   /* hosts: puts may be required to reach some peers */
    bool device; /* layout of the CUDA code */
    bool far;    /* GPUs: some peers are on other nodes */
    /* GPUs: lines of a message and of an expert output in flight */
    uint32_t packets, output_packets;
    uint32_t source_rows; /* maximum of rows from one rank to another */
    uint32_t count_words; /* hosts: 1 + local; GPUs: 2 * local */
    uint64_t rows;        /* capacity of a rank in rows */
    uint64_t token_bytes, scales_at, meta_at, message_bytes; /* of a message */
    uint64_t wire_bytes; /* bytes of a message in flight; hosts: message_bytes */
    uint64_t output_bytes, slot_bytes;
    uint64_t reported_at, reported_bytes; /* [size]: counts to send */
    uint64_t counts_at, counts_bytes;     /* [2][source]: received counts */
    uint64_t comm_at, comm_bytes;         /* [buffers][source][source_rows]: received messages */
    uint64_t grouped_at, grouped_bytes;   /* [buffers][rows]: messages by expert */
    uint64_t y_at, y_bytes;               /* [buffers][rows]: expert outputs */
    /* [buffers][max_tokens][topk] slots; far: [buffers][source][source_rows], so that the slots of
     * a source are one block */
    uint64_t outputs_at, outputs_bytes;
    uint64_t staging_at, staging_bytes; /* puts: [max_tokens][topk] messages */
    uint64_t heap_bytes;
    uint32_t row_signals, output_signals; /* number of signals per buffer; 0: no puts */
    uint32_t signals;
};

/* Signals, in this order. Counts: two words per source, for odd and even epochs, epoch <<
 * TF_ROW_BITS | rows + 1; the 40 bits hold 10^12 epochs. GPUs of several nodes: a word per
 * source that follows its expert outputs, with the epoch. Hosts: a word with the epoch per row
 * (flag_granularity: token) and per expert output that arrives by a put. */
enum { TF_ROW_BITS = 24 };

EPA_BOTH uint64_t tf_count_flag(uint64_t epoch, uint32_t rows)
{
    return epoch << TF_ROW_BITS | (rows + 1u);
}

EPA_BOTH uint32_t tf_rows_of_flag(uint64_t flag)
{
    return (uint32_t)(flag & ((1u << TF_ROW_BITS) - 1)) - 1;
}

static inline uint32_t tf_count_signal(const struct tf_layout *l, uint64_t epoch, uint32_t source)
{
    return (uint32_t)(epoch % 2) * l->size + source;
}

static inline uint32_t tf_row_signal(const struct tf_layout *l, uint32_t set, uint32_t source,
                                     uint32_t row)
{
    return 2 * l->size + set * l->row_signals + source * l->source_rows + row;
}

static inline uint32_t tf_output_signal(const struct tf_layout *l, uint32_t set, uint32_t token,
                                        uint32_t k)
{
    return 2 * l->size + l->buffers * l->row_signals + set * l->output_signals + token * l->topk +
           k;
}

/* ---- GPUs ---- */

enum { TF_DEVICE_EXPERTS = 4096, TF_DEVICE_ROW = 96 << 10 }; /* maximum of a row in shared memory */

/* META precedes the last word of the last line, which is unused, so META is in the 16 bytes of one
 * lane. */
enum { TF_META_WORDS = 3 };

/* Number of lines that a warp takes at a time, and their bytes of data. */
enum { TF_UNIT_PACKETS = 16, TF_UNIT_BYTES = TF_UNIT_PACKETS * EPA_PACKET_WORDS * 8 };

EPA_BOTH uint32_t tf_units_of(uint32_t packets)
{
    return (packets + TF_UNIT_PACKETS - 1) / TF_UNIT_PACKETS;
}

/* Number of rows of a source that dispatch_send takes in between its chunks: the rows of all chunks
 * except the last. */
EPA_BOTH uint32_t tf_early_rows(uint32_t rows, uint32_t chunks)
{
    return rows - rows / chunks;
}

/* Finds the i-th of all arriving rows, where source s has n[s] rows. Sources take turns, beginning
 * with `first`, as long as they have rows. i is less than the sum of n. */
EPA_BOTH void tf_row_at(uint32_t size, uint32_t first, const uint32_t *n, uint32_t i,
                        uint32_t *source, uint32_t *row)
{
    uint32_t done = 0, s = first;

    for (;;) {
        uint32_t having = 0, least = UINT32_MAX; /* of the sources with more than `done` rows */

        for (uint32_t j = 0; j < size; j++) {
            having += n[j] > done;
            least = n[j] > done && n[j] < least ? n[j] : least;
        }
        if (having == 0 || i / having < least - done) {
            *row = done + (having == 0 ? 0 : i / having);
            i = having == 0 ? 0 : i % having;
            break;
        }
        i -= (least - done) * having;
        done = least;
    }
    for (uint32_t j = 0; j < size; j++) {
        s = first + j < size ? first + j : first + j - size;
        if (n[s] > done && i-- == 0)
            break;
    }
    *source = s;
}

/* Makes the layout for a shape; the error names an unsupported value. */
enum epa_status tf_layout_make(const struct epa_moe *, const struct epa_world *,
                               uint32_t transport_flags, const struct tf_config *,
                               struct tf_layout *out, struct epa_error *);

/* Describes part n of the tokens of a call as a problem of its own. */
void tf_set_part(const struct tf_layout *, const struct epa_problem *whole, uint32_t n,
                 struct epa_problem *out);

#endif
