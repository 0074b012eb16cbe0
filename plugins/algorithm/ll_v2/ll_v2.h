/* ll_v2: options, messages and the layout of the heap, the same for host and CUDA code.
 *
 * Source: "Low-Latency All-to-All V2", message format and phases; token saving (`once`,
 * layout rank) and rows stored where the expert reads them are additions to it.
 *
 * A message is what crosses for a row. Hosts: META | token | scales | choices, rounded up
 * to lines of 64 bytes. GPUs: token | scales | META | choices, in lines of 128, so that
 * what a warp stores are whole packets. Scales are there with wire fp8; choices on hosts
 * where a token is sent once for each rank, on GPUs in layout rank. Rows that GPUs send
 * once in layout expert travel as strings (struct ll_payload) instead, and become messages
 * where they arrive. */
#ifndef LL_V2_H
#define LL_V2_H

#include <epa2a/algorithm.h>

#include <epa2a/both.h>

#include "../../common/algo_options.h"

enum ll_recv_layout { LL_RECV_PACKED, LL_RECV_PADDED };
enum ll_combine_mode { LL_COMBINE_AUTO, LL_COMBINE_PULL, LL_COMBINE_PUSH };

struct ll_config {
    int dispatch_dtype, combine_dtype; /* enum algo_dtype */
    int layout;                        /* enum epa_layout */
    bool dedup;                        /* layout expert: a token crosses once for each rank */
    int recv_layout;                   /* enum ll_recv_layout: where an expert's entries start */
    bool fuse_expert;                  /* CUDA code: combine does the experts' work */
    uint32_t buffers;
    double capacity;  /* rows a rank has room for, times its even share; 0: the worst case */
    int nontemporal;  /* host code: enum algo_nontemporal */
    bool split_phase; /* CUDA code: sending and receiving are two kernels */
    int combine_mode; /* CUDA code: enum ll_combine_mode */
    bool pdl;         /* CUDA code: programmatic dependent launch */
    uint32_t blocks;  /* CUDA code: of a kernel, at most; 0: as many as keep links busy */
};

struct ll_meta {
    struct epa_origin origin;
    uint32_t epoch;   /* low half, for people who look at memory */
    uint32_t choices; /* once, on hosts: how many follow the scales */
};

/* Once, on hosts: one expert of the receiver that wants this row. */
struct ll_choice {
    uint32_t entry; /* of the receiver's list of entries */
    float weight;
};

enum { LL_LINE = 64, LL_META_BYTES = 16 };

/* Hosts: what a rank publishes of a dispatch, in as few lines as it takes; all ranks load it. */
struct ll_routes {
    uint64_t epoch; /* stored last; it vouches for the rest */
    uint32_t tokens;
    uint32_t
        counted; /* 0: [tokens][topk] experts follow; 1: at the next line counts, of count_words */
    uint16_t expert[]; /* LL_NO_EXPERT: a choice that was dropped */
};

enum { LL_NO_EXPERT = UINT16_MAX };

/* A token's ranks are the bits of a word; its expert outputs stand in arrays of this size. */
enum { LL_RANKS = 64, LL_TOPK = 32 };

/* Offsets from the first byte of the algorithm's heap, which is at the start of a page.
 * Each region stands `buffers` times, one after the other. */
struct ll_layout {
    uint32_t size, experts, local, max_tokens, topk, hidden, group, buffers;
    uint32_t places;      /* rows that a token can become: topk, or ranks it can reach */
    enum epa_dtype dtype; /* of tokens and expert outputs: EPA_BF16 or EPA_F16 */
    bool by_rank, fp8, dedup, padded;
    bool output_fp8;
    bool fused;     /* GPUs: combine computes expert outputs of received rows; nobody needs y */
    bool pushes;    /* GPUs: expert outputs are stored at the token's rank, not loaded by it */
    bool puts;      /* some peers may be out of reach of loads and stores */
    bool published; /* hosts: ranks load each other's routes */
    bool device;    /* the layout of the CUDA code */
    uint64_t token_at, scales_at, choices_at, meta_at, message_bytes; /* in a message */
    uint64_t token_bytes;                                             /* of a row in dispatch */
    uint64_t output_bytes;                                            /* of a row of y */
    uint64_t sent_bytes,
        sent_scales_at;               /* of an expert output on its way; hosts: its scales in it */
    uint64_t rows, entries;           /* that a rank has room for */
    uint32_t count_words;             /* of a source: rows for each expert, then (once) each rank */
    uint64_t counts_at, counts_bytes; /* [source][count_words]; hosts: where counts are put */
    /* GPUs: packets: [source][windows][local + 1]. Hosts that publish: this rank's struct
     * ll_routes, of odd and even epochs */
    uint64_t routes_at, routes_bytes;
    uint64_t recv_at, recv_bytes;       /* [rows] messages */
    uint64_t y_at, y_bytes;             /* [rows][hidden] expert outputs of my experts */
    uint64_t staging_at, staging_bytes; /* puts: messages on their way out */
    uint64_t outputs_at, outputs_bytes; /* puts: [max_tokens * places] for my tokens */
    /* once in layout expert: messages as they come, before they are copied to their
     * experts; hosts: by source in order of tokens; GPUs: [source][max_tokens][units],
     * lines */
    uint64_t arrival_at, arrival_bytes;
    /* Hosts, once in layout expert or combine_dtype fp8: what peers get in place of rows of
     * y, an expert output for each row that came */
    uint64_t outbox_at, outbox_bytes;
    /* GPUs only */
    uint32_t units, unit_channels;    /* a warp moves that many channels of a row */
    uint32_t row_signals;             /* of a row: one for each part, or 1 for all */
    uint32_t shares, share_channels;  /* the same of an expert output */
    uint32_t windows;                 /* of 32 tokens, that max_tokens has */
    uint64_t unit_bytes, share_bytes; /* of a part, as lines */
    uint64_t heap_bytes;
    uint32_t signals;
};

/* Signals, one of each kind for each source; all carry the epoch. On GPUs OUTPUT is one:
 * counts and rows come there as packets and lines, or with signals of their own. */
enum ll_signal { LL_COUNT, LL_DATA, LL_OUTPUT, LL_SIGNALS };

/* ---- what GPUs tell each other, shared with tests on hosts ---- */

enum {
    LL_DEVICE_EXPERTS = 4096,
    LL_DEVICE_TOKENS = 1 << 20,
    LL_DEVICE_RANKS = 32 /* a lane or a bit for each */
};

/* Of a row, at most, that one warp takes. Expert outputs pushed in bf16 fill whole lines. */
enum {
    LL_UNIT_CHANNELS = 2048,
    LL_SHARE_CHANNELS = 512, /* of expert outputs that are pulled */
    LL_PUSH_CHANNELS = 960,  /* pushed in bf16: 16 lines */
    LL_CODE_PACKETS = 8      /* pushed in FP8: lines, of which a warp receives four */
};

/* With more parts than this a warp sends whole rows: a signal costs as much as a packet. */
enum { LL_MANY_UNITS = 1024, LL_MANY_TOKENS = 1024 };

/* 16 bytes that are stored and read as one, so that the epoch vouches for the rest. Of an
 * expert and a rank: how many of the rank's tokens choose it, and how many tokens it has.
 * Of these and a window of 32 tokens: which of them do, as bits, and how many before them
 * did. Of a rank and a window: which tokens it sends here. */
struct ll_packet {
    uint32_t first, second;
    uint64_t epoch;
};

enum { LL_WINDOW_TOKENS = 32 };

/* A row's choices at the rank that it is sent to, layout rank: packets of expert (with how
 * many there are) and weight, those alone that are for this rank, in order. */
enum { LL_CHOICE_BITS = 16 };

EPA_BOTH uint32_t ll_choice_of(uint32_t expert, uint32_t n)
{
    return n << LL_CHOICE_BITS | expert;
}

EPA_BOTH uint32_t ll_choice_expert(uint32_t word)
{
    return word & ((1u << LL_CHOICE_BITS) - 1);
}

EPA_BOTH uint32_t ll_choice_n(uint32_t word)
{
    return word >> LL_CHOICE_BITS;
}

/* Where a token of `source` arrives at any rank that is sent it once. */
EPA_BOTH uint32_t ll_slot(uint32_t max_tokens, uint32_t source, uint32_t token)
{
    return source * max_tokens + token;
}

/* Rows are taken up source by source in turn, so that no link idles: the i-th of them. */
EPA_BOTH void ll_slot_at(uint32_t size, uint32_t rank, uint32_t i, uint32_t *source,
                         uint32_t *token)
{
    *token = i / size;
    *source = (i % size + rank) % size;
}

/* The signal of one part of a row that came; row: its slot, or the entry it is in. */
EPA_BOTH uint32_t ll_row_signal(uint32_t size, uint32_t units, uint32_t row, uint32_t unit)
{
    return LL_SIGNALS * size + row * units + unit;
}

/* The string of a part of a token: its token's choices (experts, 2 bytes each; weights),
 * scales, channels; these begin at a multiple of 16. */
struct ll_payload {
    uint32_t weights, scales, token, bytes; /* where they are, and the end */
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

/* Expert outputs that are pushed in FP8: each line has chunks of 16 codes, and their scales in the
 * words that are left, so that it needs no other. Seven chunks leave room for two scales,
 * which do for groups as long as a line; six for one each. */
enum { LL_CHUNK = 16, LL_MOST_CHUNKS = 7 };

EPA_BOTH uint32_t ll_chunks_of(uint32_t group)
{
    return group > LL_MOST_CHUNKS * LL_CHUNK ? LL_MOST_CHUNKS : LL_MOST_CHUNKS - 1;
}

EPA_BOTH uint32_t ll_code_packets(uint32_t channels, uint32_t group)
{
    return (channels / LL_CHUNK + ll_chunks_of(group) - 1) / ll_chunks_of(group);
}

/* Of which chunk the i-th scale of a line is; `n`: chunks in all. */
EPA_BOTH uint32_t ll_scale_chunk(uint32_t group, uint32_t line, uint32_t i, uint32_t n)
{
    uint32_t chunks = ll_chunks_of(group);
    uint32_t at = line * chunks + (chunks == LL_MOST_CHUNKS && i == 1 ? chunks - 1 : i);

    return at < n ? at : n - 1;
}

/* Which scale of its line chunk `slot` of that line has. A group's length is a power of
 * 2. */
EPA_BOTH uint32_t ll_scale_of(uint32_t group, uint32_t line, uint32_t slot)
{
    uint32_t first = line * ll_chunks_of(group);

    if (ll_chunks_of(group) < LL_MOST_CHUNKS)
        return slot;
    return (first ^ (first + slot)) >= group / LL_CHUNK;
}

/* The layout for a shape; refuses what it cannot do in a sentence. */
enum epa_status ll_layout_make(const struct epa_moe *, const struct epa_world *,
                               uint32_t transport_flags, const struct ll_config *,
                               struct ll_layout *out, struct epa_error *);

/* Hosts that publish: whether so many tokens are published as counts, which are less then. */
bool ll_publishes_counts(const struct ll_layout *, uint32_t tokens);

enum epa_status ll_host_create(const struct epa_algorithm_params *, const struct ll_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* CUDA code, where it is built in. */
#ifdef __cplusplus
extern "C"
#endif
    enum epa_status
    ll_cuda_create(const struct epa_algorithm_params *, const struct ll_layout *,
                   struct epa_algorithm **out, struct epa_error *);

/* Bytes of device memory that the CUDA code takes beside the heap and mirrors. */
uint64_t ll_cuda_bytes(const struct ll_layout *);

#endif
