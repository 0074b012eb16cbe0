/* What the CUDA code of fused gives its kernel, and what both must agree on. */
#ifndef FUSED_DEVICE_H
#define FUSED_DEVICE_H

#include <cuda.h>

#include <epa2a/both.h>

#include "../../common/algo_cuda.h"
#include "../../common/gemm_cuda.h"

/* Tiles are those of gemm_cuda.cuh: up to GEMM_ROWS rows, a block, times two boxes of weights. */
enum {
    FUSED_THREADS = 384, /* four warps that load, send and combine; two warpgroups that multiply */
    FUSED_RING = 4,      /* tiles that are known to a block before they are multiplied */
    FUSED_COLUMNS = 2 * GEMM_BOX,
    FUSED_GROUP = 128, /* channels that share a scale: hidden and ffn are multiples in FP8 */
    FUSED_TOKEN_WARPS = 2,
    FUSED_MATH_WARPS = 8,
    FUSED_MOST_UNITS = 1024,
    /* Shared memory of a warp that sends and adds up: stages of parts of rows of a sum; slots of
     * pieces of rows that leave, with their scales. */
    FUSED_STAGE_ROWS = 8,
    FUSED_STAGE_BYTES = FUSED_STAGE_ROWS * 512,
    FUSED_STAGES = 3,
    FUSED_MOVER_BYTES = FUSED_STAGES * FUSED_STAGE_BYTES, /* at most */
    FUSED_PIECE = 2048,
    FUSED_SLOT_BYTES = FUSED_PIECE + FUSED_PIECE / 128 * 4,
    FUSED_SLOTS = 4,
    FUSED_FEW = 32, /* tokens of all ranks, at most, where each expert multiplies all; up to 64 */
    FUSED_FEW_CHANNELS = 256, /* that a warp adds up at a time: parts of few tokens have some */
    FUSED_PICKED = 2048,      /* of all ranks, at most, whose rows have places but are picked */
    FUSED_SHARED_BYTES = 227 << 10,
    FUSED_MOST_GROUPS = 128 /* so hidden and ffn are at most 16,384 */
};

/* What a kernel gave up for. */
enum fused_wait {
    FUSED_WAIT_COUNTS,  /* of rank `peer` */
    FUSED_WAIT_ROOM,    /* more rows come to rank `peer` than there is room for */
    FUSED_WAIT_ROWS,    /* of block `index`, expert `peer` */
    FUSED_WAIT_ACTS,    /* the intermediate rows of block `index`, expert `peer` */
    FUSED_WAIT_OUTPUTS, /* expert outputs: the `index`-th token that is complete here */
    FUSED_WAIT_BLOCK,   /* all outputs of block `index` */
    FUSED_WAIT_PARTIAL, /* from rank `peer`, of token `index` */
    FUSED_WAIT_EXPERT,  /* all rows of expert `peer`, for block `index` */
    FUSED_WAIT_COPIES,  /* of rows of block `index`, expert `peer`, by tail warps */
    FUSED_WAIT_CHOICES, /* few tokens: of rank `peer` */
    FUSED_WAIT_TOKEN    /* few tokens: the row of token `index` of rank `peer` */
};

/* Of a received row, behind its channels and scales; 16 bytes. */
struct fused_meta {
    uint32_t slot;   /* source * max_tokens + token */
    uint32_t choice; /* which of the token's choices here, ascending | how many << 16 */
    float weight;
    uint32_t from; /* once: the row that has the token, this one or another here; else 0 */
};

/* An expert output of a token: its row of y. */
struct fused_place {
    uint32_t row;
    float weight;
};

/* Counters that a call begins with at 0, in device memory of this rank: then one for each expert
 * (rows sent to it), each block of rows (tiles of the intermediate), each block (of outputs), and,
 * with a tail, each block (rows that the tail has seen). */
enum {
    FUSED_TICKET,      /* tiles that were taken */
    FUSED_COMPLETE,    /* tokens all of whose outputs here are ready */
    FUSED_SENDING,     /* parts of their sums that were taken */
    FUSED_SUMMING,     /* parts of own tokens that were taken */
    FUSED_TICKET_DOWN, /* tiles that were taken by the second of two launches */
    FUSED_COUNTERS = 32
};

/* What is stamped of a warp (struct device_stamps): the first five roles of a block. */
enum fused_phase {
    FUSED_PHASE_LAYOUT, /* counts or choices of all ranks, and where rows go */
    FUSED_PHASE_DISPATCH,
    FUSED_PHASE_TILES,
    FUSED_PHASE_SEND,
    FUSED_PHASE_SUM,
    FUSED_PHASE_TAIL
};

/* Which part of a call a launch is. */
enum fused_part { FUSED_PART_ALL, FUSED_PART_UP, FUSED_PART_DOWN };

/* Switches that only the kernels of fused_ways.cu have. */
struct fused_ways {
    uint32_t part;      /* enum fused_part */
    uint32_t tail;      /* rows pass through warps of the tail before tiles read them */
    uint32_t once;      /* tail: a token crosses once to a rank, where it is copied */
    uint32_t by_expert; /* arrivals are counted for an expert, not for a block */
    uint32_t apart;     /* each output returns by itself, not in the sum of its rank */
    uint32_t gathers;   /* sums stay in the heap of their rank; the token's loads them */
    uint32_t serial;    /* no sum before all tiles */
    /* Thread blocks with that role: the first, the last, the last. */
    uint32_t dispatchers, tails, combiners;
    uint32_t *row_of; /* [max_tokens][topk] row of a choice at its rank; sorted and once */
    char *widened;    /* FP8 rows for weights of 16 bits: [capacity][hidden], or NULL */
};

/* Picks: packets of a token, of four experts each, then of two weights each. All tokens' packets of
 * experts come first. */
EPA_BOTH uint32_t fused_picks_experts(uint32_t topk)
{
    return (topk + 3) / 4;
}

EPA_BOTH uint32_t fused_picks_packets(uint32_t topk)
{
    return fused_picks_experts(topk) + (topk + 1) / 2;
}

/* Words of a bit for each of `few` tokens: an odd number, so that lanes that look at the same word of
 * one expert each do so in different banks. */
EPA_BOTH uint32_t fused_picks_words(uint32_t few)
{
    return (few + 31) / 32 | 1;
}

/* Offsets are from the start of any rank's heap. */
struct fused_args {
    struct gemm_rows_map rows, act; /* that are multiplied: received rows, the intermediate */
    struct device_args c;
    /* [source][waves * experts + size] packets: rows of a wave, or tokens; call. Few tokens:
     * [source][max_tokens][topk] expert, weight; call. Picks: fused_picks_packets(). */
    uint64_t counts[2];
    uint64_t recv, arrived, partial, flags;
    uint32_t message_bytes, scales_at, meta_at, scales; /* scales: of a row, rounded up to 4 */
    uint32_t capacity, blocks;                          /* rows, blocks of them */
    uint32_t up_tiles, down_tiles;                      /* of FUSED_COLUMNS */
    uint32_t up_steps, down_steps;                      /* blocks of K */
    uint32_t up_row_bytes, down_row_bytes;              /* of a row of the given weights */
    uint32_t up_rows, ffn, swiglu;
    uint32_t unit_blocks, units, lag_tiles; /* units: at most */
    uint32_t sorted, dynamic;
    uint32_t waves;  /* that tokens are sent in; more than one only if sorted */
    uint32_t direct; /* one rank: sums are outputs */
    uint32_t few;    /* tokens of all ranks together (fused_few.cuh); 0: an expert has its rows */
    uint32_t spread; /* all warps that multiply send a token together */
    uint32_t parts, part_channels; /* of a sum, that warps take */
    uint32_t batch, sums;          /* listed choices, or sums, that a warp takes together */
    uint32_t stages;               /* of a warp that sends and adds up; 1 to FUSED_STAGES */
    uint32_t mover_bytes;          /* of its shared memory: stages, or slots */
    /* Weights as they are given, and packed (gemm_pack_pieces()). */
    const char *up_from, *down_from;
    char *up, *down;
    const float *up_scale, *down_scale;

    /* This rank's alone. */
    char *act_rows;        /* [capacity][ffn] */
    float *act_row_scales; /* [capacity][act_groups], rounded up to 4 */
    uint32_t act_groups;
    char *y; /* [capacity][hidden] */
    uint32_t *state;
    /* Sorted, of this call and of the next: thread blocks that have counted, then what `counts` has
     * of this rank. */
    uint32_t *sum[2];
    uint4 *list;               /* [max_tokens][topk] choices: fused_list() */
    char *quantised;           /* [max_tokens] rows as they are sent, but for META */
    uint32_t *done;            /* [slots] outputs of a token that are ready */
    struct fused_place *place; /* [slots][topk] */
    /* call << 32 | choices << 26 | slot, [slots]; or apart: call << 32 | slot << 5 | choice,
     * [capacity] */
    uint64_t *queue;
    struct fused_ways ways;
};

struct fused_kernel_kind {
    bool fp8, f16, ways;
    bool picks;    /* fused_picks.cuh */
    bool more;     /* fused_more.cu */
    bool groups64; /* an FP8 intermediate has a scale for each 64 channels */
    enum device_input input;
};

#ifdef __cplusplus
extern "C" {
#endif
/* NULL: there is none. All take a struct fused_args. */
const void *fused_kernel(struct fused_kernel_kind);
const void *fused_ways_kernel(struct fused_kernel_kind);
const void *fused_groups_kernel(struct fused_kernel_kind);
const void *fused_picks_kernel(struct fused_kernel_kind);
const void *fused_more_kernel(struct fused_kernel_kind);
const void *fused_pack_kernel(void);
uint32_t fused_shared_bytes(struct fused_kernel_kind, struct fused_args *);
#ifdef __cplusplus
}
#endif

#endif
