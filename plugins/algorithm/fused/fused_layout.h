/* fused: options, and the layout of the heap of the host code.
 *
 * Source: "Expert Parallelism All-to-All Fused Megakernel". The options are the switches of this
 * text. */
#ifndef FUSED_LAYOUT_H
#define FUSED_LAYOUT_H

#include <epa2a/algorithm.h>

#include "../../common/algo_options.h"

enum fused_launches { FUSED_ONE, FUSED_TWO };
enum fused_queue { FUSED_DYNAMIC, FUSED_STATIC };
enum fused_ready { FUSED_READY_BLOCK, FUSED_READY_EXPERT };
enum fused_combine { FUSED_SCATTER, FUSED_GATHER, FUSED_SERIAL };
enum fused_recv_layout { FUSED_PADDED, FUSED_PACKED };

struct fused_config {
    int launches;                                             /* enum fused_launches */
    int queue;                                                /* enum fused_queue */
    uint32_t dispatch_workers, tail_workers, combine_workers; /* workers with this role only; 0:
                                                               * all workers have it */
    uint32_t reduce_workers; /* CUDA code: the same for sums of own tokens; 0: workers that
                              * combine */
    bool dedup, sort, tail;
    int ready;              /* enum fused_ready */
    uint32_t block_rows;    /* maximum rows of an expert per GEMM task; 0: FUSED_BLOCK_ROWS */
    uint32_t column_splits; /* GEMM tasks per block, side by side; 0: automatic */
    /* Columns of C and elements of k of a tile; 0: FUSED_TILE columns; k by the instruction set. */
    uint32_t tile_cols, tile_k;
    uint32_t group_blocks; /* blocks of an expert that the tasks of a part of its columns take one
                            * after the other */
    int combine_mode;      /* enum fused_combine */
    uint32_t combine_cols; /* columns of a returning row that have a flag of their own; 0: all */
    int dispatch_dtype;    /* enum algo_dtype */
    int recv_layout;       /* enum fused_recv_layout */
    uint32_t lag;          /* CUDA code: up-projection tiles per block before down-projection */
    uint32_t waves;        /* CUDA code: waves of many tokens; 0: by rows of an expert */
    uint32_t blocks;       /* CUDA code: maximum blocks; 0: one per multiprocessor */
    double capacity;       /* room for entries as a multiple of the even share; 0: the worst case */
};

enum { FUSED_RANKS = 64, FUSED_TOPK = 32, FUSED_LINE = 64 };
enum { FUSED_DEVICE_RANKS = 16, FUSED_DEVICE_EXPERTS = 1024 };
enum { FUSED_BLOCK_ROWS = 256 }; /* on hosts: 1 MiB of L2 with hidden 2048 */
enum { FUSED_TILE = 128 };       /* on hosts, columns of C: default, and unit of tile_cols */
enum { FUSED_PART_UNIT = 256 };  /* unit of combine_cols: signals stay few beside the columns */
enum { FUSED_LAG = 4 };          /* default of option lag */
enum { FUSED_BUFFERS = 2 };      /* sets of the regions that peers write, used alternately */

/* Words of 32 bits at the start of a header, which a source sends to a rank before its rows. Arrays
 * follow: rows_to[size], entries_to[size], first_rows[local], row_start[rows + 1], then the
 * choices. */
enum fused_head { FUSED_ROWS, FUSED_CHOICES, FUSED_OUT_START, FUSED_EPOCH, FUSED_HEAD_WORDS };

/* An expert of the receiver that a row has chosen. */
struct fused_choice {
    uint32_t expert; /* index among the receiver's experts */
    float weight;
};

/* Layout of the heap. Offsets count from the first byte of the algorithm's part, which begins at a
 * page boundary. Regions that peers write exist FUSED_BUFFERS times; flags exist once, since they
 * hold the epoch.
 *
 * Rows from a source to a rank are numbered 0, 1, ...; the outputs return to the source in the
 * order of (rank, row). A chunk is `chunk` rows with consecutive numbers: the unit of a send task,
 * of a flag and of a put. */
struct fused_layout {
    uint32_t size, experts, local, max_tokens, topk, hidden, ffn, up_rows;
    uint32_t group, inter_group; /* FP8: channels per scale, in rows and in intermediates */
    uint32_t row_groups,
        inter_groups;       /* scales per row and per intermediate; 0: weights have none */
    enum epa_dtype dtype;   /* type of tokens and of returning outputs: EPA_BF16 or EPA_F16 */
    enum epa_dtype weights; /* type of weights: dtype, EPA_FP8_E4M3 or EPA_INT8 */
    bool fp8, dedup, padded, gather, puts;
    uint32_t places;      /* maximum number of rows of a token */
    uint32_t source_rows; /* maximum number of rows from one source to one rank */
    uint32_t source_choices;
    uint32_t chunk, chunks;      /* chunks: maximum number per source and rank */
    uint32_t units;              /* flags of rows per source: one per chunk or per expert */
    uint32_t block_rows, blocks; /* blocks: maximum number, for all local experts together */
    uint32_t tile_cols;
    /* Columns of a part of a returning row, and parts; the last part may be narrower. A region of
     * returning rows has the first part of all rows, then the second part of all rows, ... */
    uint32_t out_cols, out_parts;
    uint64_t rows, entries; /* room of a rank; padded: [size][source_rows] rows */
    uint64_t out_rows;      /* maximum number of rows that return to a rank */
    uint64_t head_bytes, row_bytes, scales_at, output_bytes;
    uint64_t heads_at;                  /* [size]: headers, one per source */
    uint64_t rows_at, rows_bytes;       /* [rows] */
    uint64_t out_at, out_bytes;         /* [out_rows] */
    uint64_t done_at, done_bytes;       /* [size][source_rows]: returning rows, for gather or
                                         * puts */
    uint64_t staging_at, staging_bytes; /* [out_rows]: rows before their put */
    uint64_t sent_heads_at;             /* [size]: headers of this rank before they are sent */
    /* uint64_t each, the epoch: [size] headers; [size][units] rows; [out_parts][out_rows]
     * outputs */
    uint64_t head_flags_at, row_flags_at, out_flags_at;
    uint64_t heap_bytes;
    /* puts: [size] headers, [size][units] rows, [size][chunks][out_parts] outputs */
    uint32_t signals;
};

/* Checks shape and options for hosts, or with `device` for GPUs; unsupported ones fail with a
 * message. */
enum epa_status fused_check(const struct epa_moe *, const struct epa_world *,
                            const struct fused_config *, bool device, struct epa_error *);

/* Computes the layout for a shape. Unsupported shapes fail with a message. */
enum epa_status fused_layout_make(const struct epa_moe *, const struct epa_world *,
                                  uint32_t transport_flags, const struct fused_config *,
                                  struct fused_layout *out, struct epa_error *);

#endif
