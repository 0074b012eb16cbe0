/* ll_v2: options, messages and the layout of the heap, for host and CUDA code.
 *
 * Source: "Low-Latency All-to-All V2", its message format and phases. Additions to the source:
 * dedup and layout: rank send a token once per rank, and senders store rows at the place from which
 * experts read.
 *
 * A message is a row in flight. Hosts: META | token | scales | choices, rounded up to lines of 64
 * bytes. GPUs: token | scales | META | choices, in lines of 128 bytes, so that warps store whole
 * packets. Scales exist with dispatch_dtype: fp8. Choices exist on hosts with dedup or layout:
 * rank, on GPUs with layout: rank. With dedup, GPUs send rows as payloads (struct ll_payload), from
 * which the receiver makes messages. */
#ifndef LL_V2_LAYOUT_H
#define LL_V2_LAYOUT_H

#include <epa2a/algorithm.h>

#include <epa2a/both.h>

#include "../../common/algo_options.h"

enum ll_recv_layout { LL_RECV_PACKED, LL_RECV_PADDED };
enum ll_combine_mode { LL_COMBINE_AUTO, LL_COMBINE_PULL, LL_COMBINE_PUSH };

struct ll_config {
    int dispatch_dtype, combine_dtype; /* enum algo_dtype */
    int layout;                        /* enum epa_layout */
    bool dedup;                        /* layout expert: send a token once per rank */
    bool combine_dedup;                /* CUDA code, dedup: reduce outputs before they return */
    int recv_layout;                   /* enum ll_recv_layout: start of an expert's entries */
    int row_order;                     /* CUDA code, layout rank: enum epa_row_order */
    bool fuse_expert;                  /* CUDA code: combine computes the experts */
    uint32_t buffers;
    double capacity;  /* capacity in rows as a multiple of the even share; 0: the worst case */
    int nontemporal;  /* host code: enum algo_nontemporal */
    bool split_phase; /* CUDA code: separate kernels send and receive */
    int combine_mode; /* CUDA code: enum ll_combine_mode */
    bool pdl;         /* CUDA code: programmatic dependent launch */
    /* CUDA code: maximum of blocks of a kernel; 0: enough to saturate the links */
    uint32_t blocks;
    uint64_t masks; /* CUDA code: address of the masks; 0: none */
};

struct ll_meta {
    struct epa_origin origin;
    /* hosts, dedup: bit k is set if choice k of the token selects an expert of the receiver; GPUs:
     * low half of the epoch, for debugging */
    uint32_t which;
    uint32_t choices; /* hosts, dedup: number of choices after the scales */
};

/* Hosts, dedup: a local expert of the receiver that gets the row. */
struct ll_choice {
    uint32_t entry; /* index in the receiver's list of entries */
    float weight;
};

enum { LL_LINE = 64, LL_META_BYTES = 16 };

/* Hosts: routes of a rank for a dispatch, in few cache lines; all ranks load them. */
struct ll_routes {
    uint64_t epoch; /* stored last; validates the rest */
    uint32_t tokens;
    uint32_t
        /* 0: [tokens][topk] experts follow; 1: the next line begins with count_words counts */
        counted;
    uint16_t expert[]; /* LL_NO_EXPERT: dropped choice */
};

enum { LL_NO_EXPERT = UINT16_MAX };

/* Maximum of ranks, as a token's ranks are the bits of a word, and maximum of top-k, the size of
 * arrays of expert outputs. */
enum { LL_RANKS = 64, LL_TOPK = 32 };

/* Offsets from the start of the algorithm's part of the heap, which starts on a page. Each region
 * has `buffers` instances, which are contiguous. */
struct ll_layout {
    uint32_t size, experts, local, max_tokens, topk, hidden, group, buffers;
    uint32_t places; /* maximum of outputs of a token that return: topk, or the number of ranks */
    enum epa_dtype dtype; /* type of tokens and expert outputs: EPA_BF16 or EPA_F16 */
    bool by_rank, fp8, dedup, padded;
    bool by_choice; /* GPUs, dedup: outputs return one by one, not reduced */
    /* GPUs, dedup or layout rank, few tokens: ranks publish lists of experts, and rows are packets */
    bool few;
    bool masked;              /* GPUs: ranks may have masks */
    uint32_t alive_at;        /* masked: first signal of ranks that wait */
    enum epa_row_order order; /* GPUs, layout rank */
    bool output_fp8;
    bool fused; /* GPUs: combine computes expert outputs from received rows; y is unused */
    /* GPUs: the experts' rank stores expert outputs at the token's rank, which else loads them */
    bool pushes;
    bool puts;      /* loads and stores may not reach some peers */
    bool published; /* hosts: ranks load each other's routes */
    bool device;    /* layout of the CUDA code */
    uint64_t token_at, scales_at, choices_at, meta_at, message_bytes; /* of a message */
    /* bytes of a row in dispatch */
    uint64_t token_bytes;
    uint64_t output_bytes; /* bytes of a row of y */
    uint64_t sent_bytes,
        sent_scales_at;     /* an expert output in flight; hosts: offset of its scales */
    uint64_t rows, entries; /* capacity of a rank */
    /* per source: rows for each expert, then (dedup) for each rank */
    uint32_t count_words;
    uint64_t counts_at, counts_bytes; /* [source][count_words]; hosts: target of puts of counts */
    /* GPUs: packets [source][windows][local + 1]; few tokens: lists of experts, of list_packets each.
     * Hosts with published routes: this rank's struct ll_routes, for odd and even epochs. */
    uint64_t routes_at, routes_bytes;
    /* GPUs, rows packed in order, and pulled expert outputs: packets [source][rank] with the number of
     * rows that a source sends to a rank */
    uint64_t totals_at, totals_bytes;
    uint64_t recv_at, recv_bytes;       /* [rows] messages */
    uint64_t y_at, y_bytes;             /* [rows][hidden]: outputs of local experts */
    uint64_t staging_at, staging_bytes; /* puts: messages to send */
    /* puts: [max_tokens * places] outputs for this rank's tokens */
    uint64_t outputs_at, outputs_bytes;
    /* dedup in layout expert: received messages, before the copies to their experts. Hosts: by
     * source, in the order of tokens. GPUs: [source][max_tokens][units], as lines. */
    uint64_t arrival_at, arrival_bytes;
    /* Hosts, dedup in layout expert or combine_dtype: fp8: expert outputs for peers, one per
     * received row, which peers get instead of rows of y. */
    uint64_t outbox_at, outbox_bytes;
    /* GPUs only */
    /* number of parts of a row, one per warp, and their channels */
    uint32_t units, unit_channels;
    uint32_t row_signals;             /* signals per row: one per part, or 1 for the whole row */
    uint32_t shares, share_channels;  /* the same for an expert output */
    uint32_t windows;                 /* number of windows of 32 tokens in max_tokens */
    uint32_t list_packets;            /* few tokens: packets of a rank's list of experts */
    uint64_t unit_bytes, share_bytes; /* bytes of a part, as lines */
    uint64_t heap_bytes;
    uint32_t signals;
};

/* Signals: one of each kind per source, with the epoch. GPUs of one node use only OUTPUT: counts
 * and rows arrive as packets and lines, or with row signals. */
enum ll_signal { LL_COUNT, LL_DATA, LL_OUTPUT, LL_SIGNALS };

/* ---- messages between GPUs, shared with tests on hosts ---- */

enum {
    LL_DEVICE_EXPERTS = 4096,
    LL_DEVICE_TOKENS = 1 << 20,
    LL_DEVICE_RANKS = 32 /* one lane or bit per rank */
};

/* Maximum of channels of a part, which one warp takes. Expert outputs pushed in bf16 fill whole
 * lines. */
enum {
    LL_UNIT_CHANNELS = 2048,
    LL_FEW_CHANNELS = 512,   /* few tokens */
    LL_SHARE_CHANNELS = 512, /* pulled expert outputs */
    LL_PUSH_CHANNELS = 960,  /* expert outputs pushed in bf16: 16 lines */
    /* expert outputs pushed in FP8: lines, of which a receiving warp takes four */
    LL_CODE_PACKETS = 8
};

/* With more parts than LL_MANY_UNITS a warp sends whole rows, since a signal costs as much as a
 * packet. With LL_MANY_TOKENS tokens, layout rank pushes expert outputs. */
enum { LL_MANY_UNITS = 1024, LL_MANY_TOKENS = 1024 };

/* 16 bytes that a single store writes and a single load reads, so that the epoch validates the
 * rest. Counts, per expert and source: number of the source's tokens that choose the expert, and
 * number of its tokens. Routes, per expert, source and window of 32 tokens: bit mask of the tokens
 * that choose the expert, and number of earlier tokens that do. Routes, per rank, source and
 * window: bit mask of the tokens that the source sends to the rank, and with row_order the number of
 * earlier tokens. */
struct ll_packet {
    uint32_t first, second;
    uint64_t epoch;
};

enum { LL_WINDOW_TOKENS = 32 };

/* Layout rank: the choices of a row at its receiver are packets, in the order of choices: expert
 * (together with the index of the choice and the number of choices) and weight. Only choices of the
 * receiver's experts are there. */
enum { LL_CHOICE_BITS = 16, LL_CHOICE_K_BITS = 8 };

EPA_BOTH uint32_t ll_choice_of(uint32_t expert, uint32_t k, uint32_t n)
{
    return (n << LL_CHOICE_K_BITS | k) << LL_CHOICE_BITS | expert;
}

EPA_BOTH uint32_t ll_choice_expert(uint32_t word)
{
    return word & ((1u << LL_CHOICE_BITS) - 1);
}

EPA_BOTH uint32_t ll_choice_k(uint32_t word)
{
    return word >> LL_CHOICE_BITS & ((1u << LL_CHOICE_K_BITS) - 1);
}

EPA_BOTH uint32_t ll_choice_n(uint32_t word)
{
    return word >> (LL_CHOICE_BITS + LL_CHOICE_K_BITS);
}

/* Returns the slot of a token of `source` at each rank that gets the token once. */
EPA_BOTH uint32_t ll_slot(uint32_t max_tokens, uint32_t source, uint32_t token)
{
    return source * max_tokens + token;
}

/* Few tokens: a list has the experts of all choices of a rank, in the order of tokens, four in a
 * word. LL_NO_EXPERT: a dropped choice, or a choice of a missing token. */
enum { LL_LIST_WORD = 4, LL_LIST_BITS = 16 };

EPA_BOTH uint32_t ll_list_packets(uint32_t choices)
{
    return epa_packets_of((choices + LL_LIST_WORD - 1) / LL_LIST_WORD * 8);
}

/* Finds the i-th slot to receive. Sources take turns, so that no link idles. */
EPA_BOTH void ll_slot_at(uint32_t size, uint32_t rank, uint32_t i, uint32_t *source,
                         uint32_t *token)
{
    *token = i / size;
    *source = (i % size + rank) % size;
}

/* Returns the index of the signal for a part of a received row. `row`: its slot, or its entry. */
EPA_BOTH uint32_t ll_row_signal(uint32_t size, uint32_t units, uint32_t row, uint32_t unit)
{
    return LL_SIGNALS * size + row * units + unit;
}

/* Payload of a part of a token: the token's choices (experts, 2 bytes each; weights), scales,
 * channels. Channels begin at a multiple of 16. */
struct ll_payload {
    uint32_t weights, scales, token, bytes; /* offsets, and the total length */
};

EPA_BOTH struct ll_payload ll_payload_of(uint32_t topk, uint32_t scales, uint32_t token_bytes)
{
    struct ll_payload s;

    s.weights = (topk * 2 + 7) / 8 * 8;
    s.scales = s.weights + (topk * 4 + 7) / 8 * 8;
    s.token = (s.scales + scales * 4 + 15) / 16 * 16;
    s.bytes = s.token + token_bytes;
    return s;
}

/* Expert outputs pushed in FP8: each line contains chunks of 16 codes and, in the remaining words,
 * their scales. Seven chunks leave room for two scales, which suffice for groups longer than seven
 * chunks. Shorter groups use six chunks with a scale each. */
enum { LL_CHUNK = 16, LL_MOST_CHUNKS = 7 };

EPA_BOTH uint32_t ll_chunks_of(uint32_t group)
{
    return group > LL_MOST_CHUNKS * LL_CHUNK ? LL_MOST_CHUNKS : LL_MOST_CHUNKS - 1;
}

EPA_BOTH uint32_t ll_code_packets(uint32_t channels, uint32_t group)
{
    return (channels / LL_CHUNK + ll_chunks_of(group) - 1) / ll_chunks_of(group);
}

/* Returns the chunk whose scale is the i-th scale of a line; `n`: number of chunks. */
EPA_BOTH uint32_t ll_scale_chunk(uint32_t group, uint32_t line, uint32_t i, uint32_t n)
{
    uint32_t chunks = ll_chunks_of(group);
    uint32_t at = line * chunks + (chunks == LL_MOST_CHUNKS && i == 1 ? chunks - 1 : i);

    return at < n ? at : n - 1;
}

/* Returns the index of the scale of chunk `slot` in its line. Lengths of groups are powers of 2. */
EPA_BOTH uint32_t ll_scale_of(uint32_t group, uint32_t line, uint32_t slot)
{
    uint32_t first = line * ll_chunks_of(group);

    if (ll_chunks_of(group) < LL_MOST_CHUNKS)
        return slot;
    return (first ^ (first + slot)) >= group / LL_CHUNK;
}

/* Makes the layout for a shape; the error names an unsupported value. */
enum epa_status ll_layout_make(const struct epa_moe *, const struct epa_world *,
                               uint32_t transport_flags, const struct ll_config *,
                               struct ll_layout *out, struct epa_error *);

/* Hosts with published routes: returns true if counts are smaller than the experts of `tokens`
 * tokens. */
bool ll_publishes_counts(const struct ll_layout *, uint32_t tokens);

#endif
