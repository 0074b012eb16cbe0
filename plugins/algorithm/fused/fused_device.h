/* Arguments of the kernels of fused, and constants that host and kernels share. */
#ifndef FUSED_DEVICE_H
#define FUSED_DEVICE_H

#include <cuda.h>

#include <epa2a/both.h>

#include "../../common/algo_cuda.h"
#include "../../common/gemm_cuda.h"

/* Shape of tiles, as in gemm_cuda.cuh: a block of up to GEMM_ROWS rows times two boxes of
 * weights. */
enum {
    FUSED_THREADS = 384, /* four warps that load, send and combine; two warpgroups that multiply */
    FUSED_RING = 4,      /* tiles that a block knows before it multiplies them */
    FUSED_COLUMNS = 2 * GEMM_BOX,
    FUSED_GROUP = 128, /* channels per scale in FP8; some kernels have two scales for them */
    FUSED_TOKEN_WARPS = 2,
    FUSED_MATH_WARPS = 8,
    FUSED_FIRST_MATH = 128, /* first thread that multiplies */
    FUSED_MOST_UNITS = 1024,
    /* Shared memory of a warp that sends and adds up: stages hold parts of the rows of a sum; slots
     * hold pieces of rows to be sent, with their scales. */
    FUSED_STAGE_ROWS = 8,
    FUSED_STAGE_BYTES = FUSED_STAGE_ROWS * 512,
    FUSED_STAGES = 3,
    FUSED_MOVER_BYTES = FUSED_STAGES * FUSED_STAGE_BYTES, /* maximum */
    FUSED_PIECE = 2048,
    FUSED_SLOTS = 4,
    FUSED_FEW = 32, /* maximum number of tokens of all ranks for which each expert multiplies all
                     * tokens; up to 64 */
    FUSED_FEW_CHANNELS = 256, /* channels that a warp adds up at a time: parts of few tokens have
                               * a multiple */
    FUSED_PICKED = 2048,      /* maximum number of tokens of all ranks with fixed places and
                               * picked rows */
    FUSED_SHARED_BYTES = 227 << 10,
    FUSED_MOST_GROUPS = 128 /* limits hidden and ffn to 16,384 */
};

/* Wait of a kernel that has timed out; `peer` and `index` are fields of struct epa_fault. */
enum fused_wait {
    FUSED_WAIT_COUNTS,  /* counts of rank `peer` */
    FUSED_WAIT_ROOM,    /* no wait: rank `peer` has not enough room for its rows */
    FUSED_WAIT_ROWS,    /* rows of block `index`, expert `peer` */
    FUSED_WAIT_ACTS,    /* intermediate rows of block `index`, expert `peer` */
    FUSED_WAIT_OUTPUTS, /* `index` is the next token without complete outputs here */
    FUSED_WAIT_BLOCK,   /* all outputs of block `index` */
    FUSED_WAIT_PARTIAL, /* sum of rank `peer` for token `index` */
    FUSED_WAIT_EXPERT,  /* all rows of expert `peer`, for block `index` */
    FUSED_WAIT_COPIES,  /* copies of rows of block `index`, expert `peer`, by the tail or as
                         * picks */
    FUSED_WAIT_CHOICES, /* few tokens: choices of rank `peer` */
    FUSED_WAIT_TOKEN    /* few tokens: row of token `index` of rank `peer` */
};

/* Metadata of a received row, after its channels and scales; 16 bytes. */
struct fused_meta {
    uint32_t slot;   /* source * max_tokens + token */
    uint32_t choice; /* index among the token's choices here, ascending | count << 16 */
    float weight;
    uint32_t from; /* once: row with the token, this one or another one here; else 0 */
};

/* An expert output of a token: its row of y, and its weight. */
struct fused_place {
    uint32_t row;
    float weight;
};

/* Counters in device memory of this rank; each call begins with 0. Arrays follow: one counter per
 * expert (rows sent to it), one per block of rows (tiles of the intermediate), one per block
 * (output tiles), and, with a tail, one per block (rows that the tail has processed). */
enum {
    FUSED_TICKET,      /* tiles taken */
    FUSED_COMPLETE,    /* tokens whose outputs on this rank are all ready */
    FUSED_SENDING,     /* parts of their sums taken */
    FUSED_SUMMING,     /* parts of own tokens taken */
    FUSED_TICKET_DOWN, /* tiles taken by the second of two launches */
    FUSED_COUNTERS = 32
};

/* Stamped phases of a warp (struct device_stamps); the roles of a block have the first five. */
enum fused_phase {
    FUSED_PHASE_LAYOUT, /* counts or choices of all ranks, and the places of rows */
    FUSED_PHASE_DISPATCH,
    FUSED_PHASE_TILES,
    FUSED_PHASE_SEND,
    FUSED_PHASE_SUM,
    FUSED_PHASE_TAIL
};

/* Intervals of a tile, for the profile. */
enum fused_interval {
    FUSED_NOTE_WAIT, /* wait of the warp that loads rows: for received rows, or for the intermediate */
    FUSED_NOTE_TILE, /* products of the first multiplying warpgroup, and stores of their sums */
    FUSED_INTERVALS
};

/* An interval, 32 bytes, which one thread stores. */
struct fused_note {
    uint64_t begin, end; /* by the device's nanosecond clock; end 0: the interval has not ended */
    uint32_t call, warp; /* warp: block * warps of a block + warp of the block */
    uint32_t row;        /* first row of the tile among the rows of the expert */
    uint16_t expert, rows;
};

/* Part of a call that a launch executes. */
enum fused_part { FUSED_PART_ALL, FUSED_PART_UP, FUSED_PART_DOWN };

/* Switches of the kernels of fused_ways.cu; other kernels have no code for them. */
struct fused_ways {
    uint32_t part;      /* enum fused_part */
    uint32_t tail;      /* rows pass through warps of the tail before tiles read them */
    uint32_t once;      /* tail: a token crosses once to each rank, where the tail copies it */
    uint32_t by_expert; /* arrivals are counted per expert instead of per block */
    uint32_t apart;     /* each output returns separately, instead of in the sum of its rank */
    uint32_t gathers;   /* sums stay in the heap of the experts' rank; the token's rank loads
                         * them */
    uint32_t serial;    /* sums begin after all tiles */
    /* Number of thread blocks per role: the first blocks dispatch, the last blocks have the tail,
     * the last blocks add up own tokens (reducers), and the blocks before these return sums
     * (combiners). No reducers: combiners also add up own tokens. */
    uint32_t dispatchers, tails, combiners, reducers;
    uint32_t *row_of; /* [max_tokens][topk]: row of a choice at its rank; sorted and once */
    char *widened;    /* [capacity][hidden]: FP8 rows converted for weights of 16 bits, or NULL */
};

/* Picks: each token has packets of four experts, then packets of two weights. The packets of
 * experts of all tokens come first. */
EPA_BOTH uint32_t fused_picks_experts(uint32_t topk)
{
    return (topk + 3) / 4;
}

EPA_BOTH uint32_t fused_picks_packets(uint32_t topk)
{
    return fused_picks_experts(topk) + (topk + 1) / 2;
}

/* Returns the words of a bit mask of `few` tokens. The number is odd, so that lanes that read the
 * same word of different experts access different banks. */
EPA_BOTH uint32_t fused_picks_words(uint32_t few)
{
    return (few + 31) / 32 | 1;
}

/* Kernel argument, passed by value. Offsets count from the start of any rank's heap. */
struct fused_args {
    struct gemm_rows_map rows, act; /* tensor maps of the multiplied rows: received rows, and the
                                     * intermediate */
    struct device_args c;
    /* Packets of value and call. [source][waves * experts + size]: number of rows of a wave, or of
     * tokens. Few tokens: [source][max_tokens][topk]: expert and weight. Picks:
     * fused_picks_packets(). */
    uint64_t counts[2];
    uint64_t recv, arrived, partial, flags;
    uint32_t message_bytes, scales_at, meta_at, scales; /* scales: per row, rounded up to 4 */
    uint32_t capacity, blocks;                          /* number of rows, and of blocks of rows */
    uint32_t up_tiles, down_tiles;                      /* tiles of FUSED_COLUMNS columns */
    uint32_t up_steps, down_steps;                      /* blocks of K */
    uint32_t up_row_bytes, down_row_bytes;              /* bytes of a row of the unpacked weights */
    uint32_t up_rows, ffn, swiglu;
    uint32_t unit_blocks, units, lag_tiles; /* units: maximum number */
    uint32_t sorted, dynamic;
    uint32_t waves;  /* number of waves in which tokens are sent; more than one only if sorted */
    uint32_t direct; /* one rank: sums are the final outputs */
    uint32_t few;    /* number of tokens of all ranks (fused_few.cuh); 0: each expert multiplies
                      * its own rows */
    uint32_t spread; /* all multiplying warps send a token together */
    uint32_t parts, part_channels; /* parts of a sum, each taken by a warp */
    uint32_t batch, sums;          /* listed choices, or sums, that a warp takes together */
    uint32_t stages;               /* stages of a warp that sends and adds up; 1 to FUSED_STAGES */
    uint32_t mover_bytes;          /* shared memory of such a warp: stages, or slots */
    /* Weights in the problem's layout, and packed (gemm_pack_pieces()). */
    const char *up_from, *down_from;
    char *up, *down;
    const float *up_scale, *down_scale;

    /* Private memory of this rank. */
    char *act_rows;        /* [capacity][ffn] */
    float *act_row_scales; /* [capacity][act_groups], a multiple of 4 */
    uint32_t act_groups;
    char *y; /* [capacity][hidden] */
    uint32_t *state;
    /* Sorted, for this call and the next: number of thread blocks that have counted, then this
     * rank's part of `counts`. */
    uint32_t *sum[2];
    uint4 *list;               /* [max_tokens][topk]: choices, see fused_list() */
    char *quantised;           /* [max_tokens]: rows as sent, without metadata */
    uint32_t *done;            /* [slots]: number of ready outputs of a token */
    struct fused_place *place; /* [slots][topk] */
    /* [slots]: call << 32 | choices << 26 | slot; or apart, [capacity]: call << 32 | slot << 5 |
     * choice */
    uint64_t *queue;
    /* [blocks][up_tiles + down_tiles][FUSED_INTERVALS] for the profile; else NULL */
    struct fused_note *notes;
    struct fused_ways ways;
};

/* Returns the number of intervals of a call. */
EPA_BOTH uint64_t fused_intervals(uint32_t blocks, uint32_t up_tiles, uint32_t down_tiles)
{
    return (uint64_t)blocks * (up_tiles + down_tiles) * FUSED_INTERVALS;
}

struct fused_kernel_kind {
    bool fp8, f16, ways;
    bool profile;  /* records intervals of tiles: fused_profile.cu, or kernels with switches */
    bool picks;    /* fused_picks.cuh */
    bool more;     /* fused_more.cu */
    bool groups64; /* an FP8 intermediate has one scale per 64 channels */
    bool rows64;   /* rows sent in FP8 have one scale per 64 channels */
    enum device_input input;
};

#endif
