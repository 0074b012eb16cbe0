/* ll_v2: options, messages and the layout of the heap, the same for host and CUDA code.
 *
 * Source: "Low-Latency All-to-All V2", message format and phases; token saving (layout
 * rank) and rows stored where the expert reads them are additions to it.
 *
 * A message is what crosses for a row: META | token | scales | choices, rounded up to lines
 * of 64 bytes. Scales are there with wire fp8, choices in layout rank. */
#ifndef LL_V2_H
#define LL_V2_H

#include <epa2a/algorithm.h>

enum ll_wire { LL_WIRE_FP8, LL_WIRE_BF16 };
enum ll_stores { LL_STORES_AUTO, LL_STORES_CACHED, LL_STORES_STREAM };

struct ll_config {
    int wire, layout; /* enum ll_wire, enum epa_layout */
    uint32_t buffers;
    int stores;      /* enum ll_stores */
    double capacity; /* rows a rank has room for, times its even share; 0: the worst case */
};

struct ll_meta {
    struct epa_origin origin;
    uint32_t epoch;   /* low half, for people who look at memory */
    uint32_t choices; /* layout rank: how many follow the scales */
};

/* Layout rank: one expert of the receiver that wants this row. */
struct ll_choice {
    uint32_t entry; /* of the receiver's list of entries */
    float weight;
};

enum { LL_LINE = 64, LL_META_BYTES = 16 };

/* A token's ranks are the bits of a word; its answers stand in arrays of this size. */
enum { LL_RANKS = 64, LL_TOPK = 32 };

/* Offsets from the first byte of the algorithm's heap, which is at the start of a page. Each
 * region stands `buffers` times, one after the other. */
struct ll_layout {
    uint32_t size, experts, local, max_tokens, topk, hidden, group, buffers;
    uint32_t places;         /* rows that a token can become: topk, or ranks it can reach */
    bool by_rank, fp8, puts; /* puts: some peers may be out of reach of loads and stores */
    uint64_t scales_at, choices_at, message_bytes; /* in a message */
    uint64_t token_bytes, answer_bytes;            /* of a row in dispatch, in combine */
    uint64_t rows, entries;                        /* that a rank has room for */
    uint32_t count_words; /* of a source: rows for each expert, then (by_rank) each rank */
    uint64_t counts_at, counts_bytes;   /* [source][count_words] */
    uint64_t recv_at, recv_bytes;       /* [rows] messages */
    uint64_t y_at, y_bytes;             /* [rows][hidden] answers of my experts */
    uint64_t staging_at, staging_bytes; /* puts: messages on their way out */
    uint64_t answers_at, answers_bytes; /* puts: [max_tokens * places] answers to me */
    uint64_t heap_bytes;
};

/* Signals, one of each kind for each source; all carry the epoch. */
enum ll_signal { LL_COUNT, LL_DATA, LL_ANSWER, LL_SIGNALS };

/* The layout for a shape; refuses what it cannot do in a sentence. */
enum epa_status ll_layout_make(const struct epa_moe *, const struct epa_world *,
                               uint32_t transport_flags, const struct ll_config *,
                               struct ll_layout *out, struct epa_error *);

/* Host code: the stage list, and the state behind it. */
extern const struct epa_stage ll_host_stages[2];
enum epa_status ll_host_create(const struct epa_algorithm_params *,
                               const struct ll_layout *, struct epa_algorithm **out,
                               struct epa_error *);

#endif
