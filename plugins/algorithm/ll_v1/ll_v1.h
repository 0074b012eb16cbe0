/* ll_v1: options and the layout of the heap, the same for host code and for CUDA code.
 *
 * Source: "Low Latency All-to-All Communication". A rank sorts its choices by expert, so that
 * what goes to one rank is a slice of the sorted rows, and sends each slice as one block:
 * tokens, scales, and splits, which say how many rows there are for each expert and where the
 * slice begins. Receive buffers have a place for MAX_M rows of each source and stand twice:
 * calls use them in turn (act_pos). */
#ifndef LL_V1_H
#define LL_V1_H

#include <epa2a/algorithm.h>

#include <epa2a/both.h>

#include "../../common/algo_options.h"

enum v1_exchange { V1_EXCHANGE_PULL, V1_EXCHANGE_PUSH, V1_EXCHANGE_AUTO };

struct v1_config {
    int dispatch_dtype; /* enum algo_dtype */
    int exchange;       /* enum v1_exchange, with ranks that loads and stores reach */
    uint32_t buffers;   /* dispatches that may be open */
    double capacity;    /* MAX_M, times the even share; 0: the worst case */
    int nontemporal;    /* host code: enum algo_nontemporal */
    bool pdl;           /* CUDA code: programmatic dependent launch */
    uint32_t blocks;    /* CUDA code: of a kernel, at most; 0: as many as keep links busy */
};

enum { V1_LINE = 64, V1_RANKS = 64, V1_TOPK = 32 };

/* Which way a call goes. Each mode counts its calls, on all ranks alike. */
enum v1_mode { V1_DISPATCH, V1_COMBINE, V1_MODES };

/* Buffers that calls of a mode use in turn. */
enum { V1_POSITIONS = 2 };

/* A part of the heap, at `at` from the first byte of the algorithm's, which is at the start of
 * a page; it stands several times, `bytes` apart. */
struct v1_region {
    uint64_t at, bytes;
};

struct v1_layout {
    uint32_t size, experts, local, max_tokens, topk, hidden, group, buffers;
    bool fp8, f16; /* f16: tokens and expert outputs are float16, else bfloat16 */
    bool device;   /* the layout of the CUDA code */
    bool pull;     /* ranks in reach load what is for them; else it is stored at theirs. GPUs:
                  expert outputs alone */
    bool puts;     /* some ranks may be out of reach of loads and stores */
    uint64_t token_bytes, row_bytes; /* of a row in dispatch; up to lines */
    uint64_t scales_bytes;           /* of a row, up to lines; 0 without FP8 */
    uint64_t output_bytes;
    uint32_t max_m; /* rows from one source to one rank */
    uint64_t rows;  /* that a rank has room for */
    /* Of a source: counts [local], the start of its slice, the token of each row [max_m].
     * GPUs: a struct v1_packet for each expert. */
    uint32_t split_words;
    /* GPUs: how rows and expert outputs are divided among warps, and what a part takes as lines. */
    uint32_t units, unit_channels, unit_bytes;
    uint32_t shares, share_channels; /* of a sum */
    uint32_t pieces, sent_bytes;     /* of an expert output that is pushed */

    /* For each position. */
    struct v1_region token, token_scales; /* [max_tokens] this rank's, quantised once */
    struct v1_region slot, slot_scales;   /* [source][max_m] blocks that come to me */
    struct v1_region splits;              /* [source][split_words] */
    struct v1_region outputs;             /* [max_tokens * topk] to me, as sorted; GPUs: lines */
    struct v1_region arrival; /* GPUs: [source][max_m][units] blocks that come, as lines */
    /* Once: what is put, until it is known to be in place. */
    struct v1_region out, out_scales; /* [max_tokens * topk] rows as sorted */
    struct v1_region out_splits;      /* [experts + size + max_tokens * topk] words */
    /* For each dispatch that may be open. */
    struct v1_region recv, recv_scales; /* [rows] by expert, then source, then token */
    struct v1_region origin;            /* [rows] */
    struct v1_region y;                 /* [rows][hidden] */
    /* [source][local] where the source's rows begin. GPUs: [experts] where mine begin at the
     * expert's rank. */
    struct v1_region starts;
    uint64_t heap_bytes;
};

/* Signals, each with the count of the call: a word for each mode, position and source. */
EPA_BOTH uint32_t v1_signal_of(uint32_t size, enum v1_mode mode, uint64_t call, uint32_t source)
{
    return ((uint32_t)mode * V1_POSITIONS + (uint32_t)(call % V1_POSITIONS)) * size + source;
}

/* Splits that leave: what is for rank r is after what is for those before, each with the
 * counts, the start and the tokens of its rows; `start`: rows for the ranks before r. */
static inline uint32_t v1_splits_to(const struct v1_layout *l, uint32_t r, uint32_t start)
{
    return r * (l->local + 1) + start;
}

/* ---- what GPUs tell each other, shared with tests on hosts ---- */

enum { V1_DEVICE_EXPERTS = 4096 };

/* What a warp takes at a time, at most. Channels: of a row in FP8, of one as it is (15 lines),
 * of a sum of expert outputs that it pulls, of one of expert outputs that come (4 lines). Lines:
 * of an expert output that it pushes. */
enum {
    V1_UNIT_FP8 = 1024,
    V1_UNIT_DTYPE = 896,
    V1_SHARE_PULL = 256,
    V1_SHARE_TAKE = 240,
    V1_PIECE_PACKETS = 16
};

/* Splits: 16 bytes that are stored and read as one, so that the count of the call vouches for
 * the rest. Of an expert: the rows that a source has for it, and where they begin as that
 * sorted. */
struct v1_packet {
    uint32_t rows, begin;
    uint64_t call;
};

/* A part of a row on its way: its channels, their scales, and which token it is. */
struct v1_payload {
    uint32_t scales, token, bytes; /* where they are, and the end */
};

EPA_BOTH struct v1_payload v1_payload_of(uint32_t channel_bytes, uint32_t scales)
{
    struct v1_payload s;

    s.scales = channel_bytes;
    s.token = s.scales + scales * 4;
    s.bytes = s.token + 4;
    return s;
}

/* The layout for a shape; refuses what it cannot do in a sentence. */
enum epa_status v1_layout_make(const struct epa_moe *, const struct epa_world *,
                               uint32_t transport_flags, const struct v1_config *,
                               struct v1_layout *out, struct epa_error *);

enum epa_status v1_host_create(const struct epa_algorithm_params *, const struct v1_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* CUDA code, where it is built in. */
enum epa_status v1_cuda_create(const struct epa_algorithm_params *, const struct v1_layout *,
                               struct epa_algorithm **out, struct epa_error *);

/* Bytes of device memory that the CUDA code takes beside the heap. */
uint64_t v1_cuda_bytes(const struct v1_layout *);

#endif
