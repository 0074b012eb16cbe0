/* ll_v1: options and the layout of the heap, equal for host code and CUDA code.
 *
 * Source: "Low Latency All-to-All Communication". A rank sorts its choices by expert, so that the
 * rows for one rank are a slice of the sorted rows. It sends each slice as one block: tokens,
 * scales, and splits (the number of rows per expert and the start of the slice). A receive buffer
 * has room for MAX_M rows of each source. There are two receive buffers, which calls use
 * alternately (act_pos in the source). */
#ifndef LL_V1_LAYOUT_H
#define LL_V1_LAYOUT_H

#include <epa2a/algorithm.h>

#include <epa2a/both.h>

#include "../../common/algo_options.h"

enum v1_exchange { V1_EXCHANGE_PULL, V1_EXCHANGE_PUSH, V1_EXCHANGE_AUTO };

struct v1_config {
    int dispatch_dtype; /* enum algo_dtype */
    int exchange;       /* enum v1_exchange, for ranks that loads and stores reach */
    uint32_t buffers;   /* maximum of open dispatches */
    double capacity;    /* MAX_M as a multiple of the even share; 0: the worst case */
    int nontemporal;    /* host code: enum algo_nontemporal */
    bool pdl;           /* CUDA code: programmatic dependent launch */
    uint32_t blocks;    /* CUDA code: maximum blocks of a kernel; 0: enough to saturate the links */
};

enum { V1_LINE = 64, V1_RANKS = 64, V1_TOPK = 32 };

/* Direction of a call. Each mode counts its calls; the counts are equal on all ranks. */
enum v1_mode { V1_DISPATCH, V1_COMBINE, V1_MODES };

/* Number of receive buffers, which the calls of a mode use alternately. */
enum { V1_POSITIONS = 2 };

/* A region of the heap at offset `at` of the algorithm's part, which starts on a page. A region may
 * have several instances, `bytes` apart. */
struct v1_region {
    uint64_t at, bytes;
};

struct v1_layout {
    uint32_t size, experts, local, max_tokens, topk, hidden, group, buffers;
    bool fp8, f16; /* f16: tokens and expert outputs are float16, else bfloat16 */
    bool device;   /* the layout of the CUDA code */
    bool pull;     /* receivers load data from ranks in reach; false: senders store it at the
                  receiver. On GPUs only expert outputs are pulled */
    bool puts;     /* loads and stores may not reach some ranks */
    uint64_t token_bytes, row_bytes; /* bytes of a row in dispatch; rounded up to lines */
    uint64_t scales_bytes;           /* bytes of a row's scales, rounded up to lines; 0: no FP8 */
    uint64_t output_bytes;
    uint32_t max_m; /* capacity for rows from one source to one rank */
    uint64_t rows;  /* capacity of a rank in rows */
    /* Splits of a source: counts [local], the start of its slice, the token of each row [max_m].
     * GPUs: a struct v1_packet per expert. */
    uint32_t split_words;
    /* GPUs: parts (units) of a row for warps, and the bytes of the lines of a part. */
    uint32_t units, unit_channels, unit_bytes;
    uint32_t shares, share_channels; /* parts of a sum */
    uint32_t pieces, sent_bytes;     /* parts of a pushed expert output */

    /* One instance per position. */
    struct v1_region token, token_scales; /* [max_tokens]: tokens of this rank, quantised once */
    struct v1_region slot, slot_scales;   /* [source][max_m]: received blocks */
    struct v1_region splits;              /* [source][split_words] */
    struct v1_region outputs; /* [max_tokens * topk]: received outputs, sorted; GPUs: as lines */
    struct v1_region arrival; /* GPUs: [source][max_m][units]: received blocks, as lines */
    /* A single instance: sources of puts, reusable after quiet. */
    struct v1_region out, out_scales; /* [max_tokens * topk]: sorted rows */
    struct v1_region out_splits;      /* [experts + size + max_tokens * topk] words */
    /* One instance per open dispatch. */
    struct v1_region recv, recv_scales; /* [rows] by expert, then source, then token */
    struct v1_region origin;            /* [rows] */
    struct v1_region y;                 /* [rows][hidden] */
    /* [source][local]: start of the source's rows. GPUs: [experts]: start of this rank's rows at
     * the expert's rank. */
    struct v1_region starts;
    uint64_t heap_bytes;
};

/* Index of the signal for a mode, position and source; its value is the count of the call. */
EPA_BOTH uint32_t v1_signal_of(uint32_t size, enum v1_mode mode, uint64_t call, uint32_t source)
{
    return ((uint32_t)mode * V1_POSITIONS + (uint32_t)(call % V1_POSITIONS)) * size + source;
}

/* Offset, in words, of the splits for rank r in out_splits. Splits follow in the order of ranks,
 * each with counts, start and tokens of its rows; `start` is the number of rows for ranks before
 * r. */
static inline uint32_t v1_splits_to(const struct v1_layout *l, uint32_t r, uint32_t start)
{
    return r * (l->local + 1) + start;
}

/* ---- messages between GPUs, shared with tests on hosts ---- */

enum { V1_DEVICE_EXPERTS = 4096 };

/* Maximum work of a warp at a time. In channels: of an FP8 row, of a 16-bit row (15 lines), of a
 * sum of pulled expert outputs, of a sum of pushed expert outputs (4 lines). In lines: of an expert
 * output that the warp pushes. */
enum {
    V1_UNIT_FP8 = 1024,
    V1_UNIT_DTYPE = 896,
    V1_SHARE_PULL = 256,
    V1_SHARE_TAKE = 240,
    V1_PIECE_PACKETS = 16
};

/* Splits of an expert: the number of rows that a source has for it, and their start in the source's
 * sorted order. A store and a load move all 16 bytes at once, so the count of the call validates
 * the rest. */
struct v1_packet {
    uint32_t rows, begin;
    uint64_t call;
};

/* Layout of a part of a row in flight: its channels, their scales, and the index of its token. */
struct v1_payload {
    uint32_t scales, token, bytes; /* offsets of scales and token; total length */
};

EPA_BOTH struct v1_payload v1_payload_of(uint32_t channel_bytes, uint32_t scales)
{
    struct v1_payload s;

    s.scales = channel_bytes;
    s.token = s.scales + scales * 4;
    s.bytes = s.token + 4;
    return s;
}

/* Makes the layout for a shape; the error names an unsupported value. */
enum epa_status v1_layout_make(const struct epa_moe *, const struct epa_world *,
                               uint32_t transport_flags, const struct v1_config *,
                               struct v1_layout *out, struct epa_error *);

/* Bytes of the lines that carry a part of a row with `channels` channels. */
static inline uint32_t part_bytes(const struct v1_layout *l, uint32_t channels)
{
    uint32_t scales = l->fp8 ? channels / l->group : 0;

    return EPA_PACKET * epa_packets_of(v1_payload_of(channels * (l->fp8 ? 1 : 2), scales).bytes);
}

#endif
