/* fused: options, and the layout of the heap of the host code.
 *
 * Source: "Expert Parallelism All-to-All Fused Megakernel". The options are its switches. */
#ifndef FUSED_H
#define FUSED_H

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
    uint32_t dispatch_workers, tail_workers, combine_workers; /* 0: all do it */
    bool dedup, sort, tail;
    int ready;           /* enum fused_ready */
    uint32_t block_rows; /* of an expert, that a GEMM task takes; 0: FUSED_BLOCK_ROWS */
    uint32_t
        column_splits;  /* GEMM tasks of a block, side by side; 0: as many as keep workers busy */
    int combine_mode;   /* enum fused_combine */
    int dispatch_dtype; /* enum algo_dtype */
    int recv_layout;    /* enum fused_recv_layout */
    uint32_t lag;       /* CUDA code: up-projection tiles of each block that are first */
    uint32_t waves;     /* CUDA code: that many tokens are sent in; 0: by rows of an expert */
    uint32_t blocks;    /* CUDA code: of the kernel, at most; 0: one for each multiprocessor */
    double capacity;    /* entries a rank has room for, times the even share; 0: the worst case */
};

enum { FUSED_RANKS = 64, FUSED_TOPK = 32, FUSED_LINE = 64 };
enum { FUSED_DEVICE_RANKS = 16, FUSED_DEVICE_EXPERTS = 1024 };
enum { FUSED_BLOCK_ROWS = 256 }; /* of hosts: with hidden 2048, 1 MiB of L2 */
enum { FUSED_BUFFERS = 2 };      /* sets of what peers write, used in turn */

/* Words of 32 bits at the start of a header, which a source sends to a rank before its rows. Behind
 * them: rows_to[size], entries_to[size], first_rows[local], row_start[rows + 1], then the
 * choices. */
enum fused_head { FUSED_ROWS, FUSED_CHOICES, FUSED_OUT_START, FUSED_EPOCH, FUSED_HEAD_WORDS };

/* One expert of the receiver that wants a row. */
struct fused_choice {
    uint32_t expert; /* local */
    float weight;
};

/* Offsets are from the first byte of the algorithm's heap, which is at the start of a page.
 * Regions that peers write are there FUSED_BUFFERS times; flags once, as they carry the epoch.
 *
 * Rows of a source for a rank are numbered 0, 1, ...; its outputs return to the source in the
 * order of (rank, row). A chunk is `chunk` rows with consecutive numbers: what one task sends, and
 * what one flag or put covers. */
struct fused_layout {
    uint32_t size, experts, local, max_tokens, topk, hidden, ffn, up_rows;
    uint32_t group, inter_group; /* FP8: channels of a scale, of a row and of the intermediate */
    uint32_t row_groups, inter_groups; /* FP8 weights: scales of a row, of an intermediate */
    enum epa_dtype dtype;   /* of tokens and outputs on their way back: EPA_BF16 or EPA_F16 */
    enum epa_dtype weights; /* of weights: dtype, or EPA_FP8_E4M3 */
    bool fp8, dedup, padded, gather, puts;
    uint32_t places;      /* rows that a token becomes, at most */
    uint32_t source_rows; /* from one source to one rank, at most */
    uint32_t source_choices;
    uint32_t chunk, chunks;      /* chunks: of one source at one rank */
    uint32_t units;              /* flags of rows, of one source: chunks, or experts */
    uint32_t block_rows, blocks; /* blocks: of all local experts, at most */
    uint64_t rows, entries;      /* that a rank has room for; padded: [size][source_rows] rows */
    uint64_t out_rows;           /* that return to a rank */
    uint64_t head_bytes, row_bytes, scales_at, output_bytes;
    uint64_t heads_at;                  /* [size] from each source */
    uint64_t rows_at, rows_bytes;       /* [rows] */
    uint64_t out_at, out_bytes;         /* [out_rows] */
    uint64_t done_at, done_bytes;       /* [size][source_rows], gather or puts: rows that go back */
    uint64_t staging_at, staging_bytes; /* [out_rows], puts: rows on their way out */
    uint64_t sent_heads_at;             /* [size], my headers before they leave */
    /* uint64_t each, the epoch: [size] heads; [size][units] rows; [out_rows] outputs */
    uint64_t head_flags_at, row_flags_at, out_flags_at;
    uint64_t heap_bytes;
    /* puts: [size] heads, [size][units] rows, [size][chunks] outputs */
    uint32_t signals;
};

/* Refuses, in a sentence, what neither hosts can do nor, `device`, GPUs. */
enum epa_status fused_check(const struct epa_moe *, const struct epa_world *,
                            const struct fused_config *, bool device, struct epa_error *);

/* Memory beside the heap that fused_host_create() takes with so many workers. */
uint64_t fused_host_bytes(const struct fused_layout *, const struct fused_config *,
                          uint32_t workers);
enum epa_status fused_host_create(const struct epa_algorithm_params *, const struct fused_layout *,
                                  struct epa_algorithm **out, struct epa_error *);

/* The CUDA code of fused, where it is built in. */

/* What it needs for a shape; refuses what it cannot do in a sentence. */
enum epa_status fused_cuda_plan(const struct epa_moe *, const struct epa_world *,
                                const struct fused_config *, struct epa_footprint *out,
                                struct epa_error *);

enum epa_status fused_cuda_create(const struct epa_algorithm_params *, struct epa_algorithm **out,
                                  struct epa_error *);

#endif
