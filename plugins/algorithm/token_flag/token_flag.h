/* token_flag: options, messages and the layout of the heap, for host and CUDA code.
 *
 * Source: "My first Multi-GPU kernel: Writing All-to-all for AMD MI300X", its buffers, flags
 * and steps.
 *
 * A flat token is a choice of a token, (token, k). A message is what crosses for one on its
 * way out: token | scales (dispatch_dtype: fp8) | struct tf_meta, in lines of 64 bytes. An expert
 * output takes a slot: expert output | flag. Each flag is the last word of its message or slot, in
 * the line that ends what it vouches for.
 *
 * On GPUs both cross as strings of 64-bit words in lines of 128 bytes, the last word of each
 * line the epoch (device/packets.cuh); its content is as on hosts. */
#ifndef TOKEN_FLAG_H
#define TOKEN_FLAG_H

#include <epa2a/algorithm.h>

#include <epa2a/both.h>

#include "../../common/algo_options.h"

enum tf_flag_granularity { TF_FLAG_PER_RANK, TF_FLAG_PER_TOKEN };
enum tf_counter_reset { TF_COUNTER_RESET_MEMSET, TF_COUNTER_RESET_INLINE };
enum tf_work_partition { TF_PARTITION_BY_SOURCE, TF_PARTITION_FLAT };
enum tf_nontemporal { TF_NONTEMPORAL_OFF, TF_NONTEMPORAL_ON };

struct tf_config {
    int dispatch_dtype, flag_granularity, counter_reset, work_partition, nontemporal; /* enums */
    bool fuse_expert; /* combine_send does the experts' work */
    uint32_t chunks, buffers;
    uint32_t blocks; /* CUDA code: of a kernel, at most; 0: as many as keep links busy */
    struct epa_u32_list kernel_blocks; /* the same of each kernel, or empty */
    struct epa_u32_list kernel_warps;  /* of a block of each kernel, or empty */
};

struct tf_meta {
    struct epa_origin origin;
    uint16_t k;      /* which choice of that token */
    uint16_t expert; /* of the receiver's own */
    uint32_t row;    /* of the receiver's rows from that source */
    uint64_t flag;   /* the epoch, flag_granularity: token */
};

enum { TF_LINE = 64, TF_PAGE = 4096, TF_META_BYTES = 24, TF_FLAG_BYTES = 8 };

/* Arrays on the stack have these sizes. */
enum { TF_TOPK = 32, TF_RANKS = 64, TF_LOCAL = 1 << 16, TF_KERNELS = 4 };

/* What the words of a rank's counts are: how its rows arrive, then how many there are for each
 * expert of the receiver. */
enum tf_way { TF_STORED, TF_PUT };

/* Offsets from the first byte of the algorithm's heap, which is at the start of a page. What
 * stands [buffers] times does so one after the other. */
struct tf_layout {
    uint32_t size, experts, local, max_tokens, topk, hidden, group, buffers, chunks;
    bool fp8, by_token, fused, folded, flat;
    bool puts;                        /* hosts: some peers may have to be reached by puts */
    bool device;                      /* the layout of the CUDA code */
    bool far;                         /* GPUs: some peers are of other nodes */
    uint32_t packets, output_packets; /* GPUs: of a message and an expert output on their way */
    uint32_t source_rows;             /* that one rank can send to another */
    uint32_t count_words;             /* 1 + local */
    uint64_t rows;                    /* that a rank has room for */
    uint64_t token_bytes, scales_at, meta_at, message_bytes; /* in a message */
    uint64_t wire_bytes; /* of a message on its way; hosts: as it is */
    uint64_t output_bytes, slot_bytes;
    uint64_t reported_at, reported_bytes; /* [size] counts, on their way out */
    uint64_t counts_at, counts_bytes;     /* [2][source] counts, as they arrive */
    uint64_t comm_at, comm_bytes;         /* [buffers][source][source_rows] messages */
    uint64_t grouped_at, grouped_bytes;   /* [buffers][rows] messages, by expert */
    uint64_t y_at, y_bytes;               /* [buffers][rows] expert outputs */
    /* [buffers][max_tokens][topk] slots; far: [buffers][source][source_rows], so that those of a
     * source leave and arrive in one block */
    uint64_t outputs_at, outputs_bytes;
    uint64_t staging_at, staging_bytes; /* puts: [max_tokens][topk] messages */
    uint64_t heap_bytes;
    uint32_t row_signals, output_signals; /* [buffers] of each; 0: none are put */
    uint32_t signals;
};

/* Signals. Counts: two words for each source, of odd and of even epochs, epoch << TF_ROW_BITS |
 * rows + 1: as many epochs as nobody lives to see. GPUs of several nodes: then a word for each
 * source, behind its expert outputs, the epoch. Hosts: rows (flag_granularity: token) and expert
 * outputs that are put, a word each, the epoch. */
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

enum { TF_DEVICE_EXPERTS = 4096, TF_DEVICE_ROW = 96 << 10 }; /* a row in shared memory */

/* META ends the last line but for one word, which is left: so it is one lane's 16 bytes. */
enum { TF_META_WORDS = 3 };

/* Lines that a warp takes in one go, and the bytes in these. */
enum { TF_UNIT_PACKETS = 16, TF_UNIT_BYTES = TF_UNIT_PACKETS * EPA_PACKET_WORDS * 8 };

EPA_BOTH uint32_t tf_units_of(uint32_t packets)
{
    return (packets + TF_UNIT_PACKETS - 1) / TF_UNIT_PACKETS;
}

/* Rows of a source that dispatch_send takes in while it sends: those of all chunks but
 * the last. */
EPA_BOTH uint32_t tf_early_rows(uint32_t rows, uint32_t chunks)
{
    return rows - rows / chunks;
}

/* The i-th of all rows that arrive, n[s] from source s: one of each source in turn, from source
 * `first` on, for as long as it has some. i is less than their sum. */
EPA_BOTH void tf_row_at(uint32_t size, uint32_t first, const uint32_t *n, uint32_t i,
                        uint32_t *source, uint32_t *row)
{
    uint32_t done = 0, s = first;

    for (;;) {
        uint32_t having = 0, least = UINT32_MAX; /* more rows than `done` */

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

/* The layout for a shape; refuses what it cannot do in a sentence. */
enum epa_status tf_layout_make(const struct epa_moe *, const struct epa_world *,
                               uint32_t transport_flags, const struct tf_config *,
                               struct tf_layout *out, struct epa_error *);

enum epa_status tf_host_create(const struct epa_algorithm_params *, const struct tf_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* CUDA code, where it is built in. */
enum epa_status tf_cuda_create(const struct epa_algorithm_params *, const struct tf_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* Bytes of device memory that the CUDA code takes beside the heap and mirrors. */
uint64_t tf_cuda_bytes(const struct tf_layout *);

#endif
