/* What the CUDA code of fused gives its kernel, and what both must agree on. */
#ifndef FUSED_DEVICE_H
#define FUSED_DEVICE_H

#include <cuda.h>

#include <epa2a/both.h>

#include "../../common/algo_cuda.h"

enum {
    FUSED_THREADS = 384, /* four warps that load, send and combine; two warpgroups that multiply */
    FUSED_RING = 4,      /* tiles that are known to a block before they are multiplied */
    FUSED_COLUMNS = 256, /* of a tile: two halves of 128 rows of weights */
    FUSED_HALF = 128,
    FUSED_K_BYTES = 128, /* of a row that a stage holds */
    FUSED_WEIGHT_BYTES = FUSED_COLUMNS * FUSED_K_BYTES,
    FUSED_HEIGHTS = 4, /* of boxes: 16 << i rows */
    FUSED_TOKEN_WARPS = 2,
    FUSED_MATH_WARPS = 8,
    FUSED_MOST_EXPERTS = 1024,
    FUSED_MOST_UNITS = 1024,
    FUSED_MOST_GROUPS = 128 /* of 128 channels: hidden and ffn are at most 16,384 */
};

/* What a kernel gave up for. */
enum fused_wait {
    FUSED_WAIT_COUNTS,  /* of rank `peer` */
    FUSED_WAIT_ROOM,    /* more rows come to rank `peer` than there is room for */
    FUSED_WAIT_LIST,    /* the choices of this rank, by expert */
    FUSED_WAIT_ROWS,    /* of block `index`, expert `peer` */
    FUSED_WAIT_ACTS,    /* the intermediate rows of block `index`, expert `peer` */
    FUSED_WAIT_OUTPUTS, /* expert outputs: the `index`-th token that is complete here */
    FUSED_WAIT_PARTIAL  /* from rank `peer`, of token `index` */
};

/* Rows of a tile: one warpgroup each, or both share the 64 rows and halve the columns. */
enum fused_rows { FUSED_ROWS_64, FUSED_ROWS_128, FUSED_ROWS_KINDS };

/* Of a received row, behind its channels and scales; 16 bytes. */
struct fused_meta {
    uint32_t slot;   /* source * max_tokens + token */
    uint32_t choice; /* which of the token's choices here, ascending | how many << 16 */
    float weight;
    uint32_t unused;
};

/* An expert output of a token: its row of y. */
struct fused_place {
    uint32_t row;
    float weight;
};

/* Counters that a call begins with at 0, in device memory of this rank: then one for each expert
 * (rows sent to it), each block of rows (tiles of the intermediate), each block (of outputs). */
enum {
    FUSED_TICKET,   /* tiles that were taken */
    FUSED_LISTED,   /* choices */
    FUSED_COMPLETE, /* tokens all of whose outputs here are ready */
    FUSED_SENDING,  /* parts of their sums that were taken */
    FUSED_SUMMING,  /* parts of own tokens that were taken */
    FUSED_COUNTERS = 32
};

/* What is stamped of a warp (struct device_stamps): the first five roles of a block. */
enum fused_phase { FUSED_PHASE_DISPATCH, FUSED_PHASE_TILES, FUSED_PHASE_SEND, FUSED_PHASE_SUM };

/* Offsets are from the start of any rank's heap. */
struct fused_args {
    /* Boxes of 128 bytes of 16, 32, 64 and 128 rows. */
    CUtensorMap rows[FUSED_HEIGHTS], act[FUSED_HEIGHTS];
    struct device_args c;
    uint64_t counts[2]; /* [source][experts + size] packets: rows, or tokens; call */
    uint64_t recv, arrived, partial, flags;
    uint32_t message_bytes, scales_at, meta_at, scales; /* scales: of a row, rounded up to 4 */
    uint32_t capacity, blocks;                          /* rows, blocks of them */
    uint32_t up_tiles, down_tiles;                      /* of FUSED_COLUMNS */
    uint32_t up_steps, down_steps;                      /* of FUSED_K_BYTES */
    uint32_t up_rows, ffn, swiglu;
    uint32_t unit_blocks, lag_tiles;
    uint32_t sorted, dynamic;
    uint32_t spread; /* all warps that multiply send a token together, and each counts its rows */
    uint32_t parts, part_channels; /* of a sum, that warps take */
    /* Weights as they are given, and packed: [expert][tile][step] what a stage holds. */
    const char *up_from, *down_from;
    char *up, *down;
    const float *up_scale, *down_scale;

    /* This rank's alone. */
    char *act_rows;        /* [capacity][ffn] */
    float *act_row_scales; /* [capacity][act_groups], rounded up to 4 */
    uint32_t act_groups;
    char *y; /* [capacity][hidden] */
    uint32_t *state;
    uint32_t *list;            /* [max_tokens][topk] choices, by expert */
    char *quantised;           /* [max_tokens] rows as they are sent, but for META */
    uint32_t *done;            /* [slots] outputs of a token that are ready */
    struct fused_place *place; /* [slots][topk] */
    uint64_t *queue;           /* [slots] call << 32 | choices << 26 | slot */
};

struct fused_kernel_kind {
    bool fp8, f16;
    enum fused_rows rows;
    enum device_input input;
};

#ifdef __cplusplus
extern "C" {
#endif
/* NULL: there is none. All take a struct fused_args. */
const void *fused_kernel(struct fused_kernel_kind);
const void *fused_pack_kernel(void);
uint32_t fused_shared_bytes(struct fused_kernel_kind, uint32_t experts, uint32_t local);
#ifdef __cplusplus
}
#endif

#endif
