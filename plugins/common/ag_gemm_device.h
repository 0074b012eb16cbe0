/* AllGather and GEMM on GPUs: arguments from the host to the kernels. ag_gemm_cuda.c describes the
 * protocol. */
#ifndef AG_GEMM_DEVICE_H
#define AG_GEMM_DEVICE_H

#include <cuda_runtime_api.h>

#include <epa2a/both.h>
#include <epa2a/ring.h>

#include "ag_gemm.h"
#include "gemm_cuda.h"

enum {
    AG_GEMM_SETS = 2,
    AG_GEMM_RANKS = 16,    /* maximum number of ranks: masks of receivers have 16 bits */
    AG_GEMM_THREADS = 384, /* threads per block */
    AG_GEMM_WARPS = AG_GEMM_THREADS / 32,
    AG_GEMM_MOVERS = 4,           /* movers of a block that only moves rows */
    AG_GEMM_HOPS = AG_GEMM_RANKS, /* own rows, and rows that this rank forwards */
    AG_GEMM_CHUNKS = 64,          /* maximum number of chunks per rank */
    AG_GEMM_PIECE = 8192          /* bytes that a warp moves at a time */
};

/* Wait that a kernel has abandoned. In struct epa_fault, `peer` is the source of the rows, `index`
 * is their chunk, `stage` is the first row of the tile in C, and `what` is this enum plus the
 * number of rows of the tile << 8. */
enum ag_gemm_wait {
    AG_GEMM_WAIT_TILE,
    AG_GEMM_WAIT_PANEL, /* any tile: `stage` is the first row of C that the next tiles lack */
    AG_GEMM_WAIT_PASS,  /* rows to forward */
    AG_GEMM_WAIT_LOAD,  /* rows to pull */
    AG_GEMM_WAIT_RING,  /* room for a put to another node: `peer` is the receiver */
    AG_GEMM_WAIT_END
};

/* Rows of `source` that this rank has, and masks of the ranks that receive them. */
struct ag_gemm_hop {
    uint16_t source, store, signal;
};

/* Counters of a block: calls that gathered, kernels that have ended. */
struct ag_gemm_count {
    uint64_t calls, kernels;
};

/* Intervals that the kernel records for the profile. A tile has the first three, a mover has the
 * last two for each of its steps. */
enum ag_gemm_interval {
    AG_GEMM_CHOOSE, /* no panel had all its rows, until the thread that takes tiles got this tile */
    AG_GEMM_AWAIT,  /* wait for the words of the tile's rows */
    AG_GEMM_TILE,   /* loads, products and stores of the tile */
    AG_GEMM_TILE_NOTES,
    AG_GEMM_AWAIT_CHUNK = AG_GEMM_TILE_NOTES, /* wait for the word of a chunk to forward or pull */
    AG_GEMM_COPY,                             /* loads and stores of a part of a chunk */
    AG_GEMM_INTERVALS,
    AG_GEMM_COPY_NOTES = AG_GEMM_INTERVALS - AG_GEMM_TILE_NOTES
};

/* An interval, 32 bytes, which one thread stores. */
struct ag_gemm_note {
    uint64_t end; /* by the device's nanosecond clock; 0: no interval */
    uint32_t took_ns, call;
    uint32_t warp;        /* block * AG_GEMM_WARPS + warp of the block */
    uint32_t peer;        /* awaited rank, or source of the copied rows */
    uint32_t row, column; /* first row and column in C; copies have no column */
};

/* Kernel argument, passed by value. */
struct ag_gemm_args {
    struct gemm_rows_map gathered, own; /* tensor maps of the current set's rows, and of this
                                         * rank's rows at the caller's address */
    CUtensorMap weights;
    struct epa_device_view v;
    uint64_t timeout_ns;
    /* Offsets of the current set from the start of any rank's heap: rows, and scales of FP8. */
    uint64_t set_rows, set_scales;
    uint32_t signal, chunks, chunk_rows, max_rows;
    uint32_t row_bytes, groups;                 /* row_bytes: bytes of a row; groups: scales of a
                                                 * row, 0: not FP8 */
    uint32_t n, k_blocks, columns, step, panel; /* columns: tiles across, of `step` columns each */
    uint32_t tile_rows;                         /* rows of a cluster's tiles; panel: number of
                                                 * tiles down */
    uint32_t order, comm_blocks;
    bool padded;   /* rank r's rows begin at r * max_rows, otherwise directly after the rows of
                   * rank r - 1 */
    bool across;   /* tiles cross the borders between ranks */
    bool engines;  /* copy engines push the rank's own rows */
    bool forwards; /* copy engines forward rows of other nodes */
    bool moves, multiplies;        /* work of this kernel; with both, tiles wait for their rows */
    bool wide;                     /* 16-byte stores to rows of C are possible */
    uint8_t turn[AG_GEMM_RANKS];   /* ranks in the order of their tiles */
    uint16_t loaded;               /* mask of sources whose rows are pulled */
    uint8_t sender[AG_GEMM_RANKS]; /* rank that signals a source's chunks to this rank; `loaded`
                                    * rows come from its set */
    uint32_t hops;
    struct ag_gemm_hop hop[AG_GEMM_HOPS]; /* hop[0]: own rows */

    const uint32_t *rows;
    const char *a;
    const float *a_scale, *b_scale, *bias; /* bias NULL: no bias */
    char *c;
    float *c_scale;    /* C in FP8: [rows of C][c_groups] */
    uint32_t c_groups; /* scales of a row of C */

    /* Private memory of this rank. */
    struct ag_gemm_count *count; /* [blocks] */
    uint32_t *stored;   /* [2 * size * chunks + 2]: completed parts of a transfer; 0 between
                         * transfers. [chunks] more for puts */
    uint64_t *placed;   /* [size * chunks + 2]: call whose rows are complete: pulled or own rows,
                         * then the two borders of own rows */
    uint32_t *taken[2]; /* [panels]: tiles taken; kernels alternate between the two arrays */
    uint32_t panels;
    uint64_t *next_call; /* number of the next call; copy engines and puts read it */
    /* [size * chunks] each, for rows of other nodes that copy engines forward. gate: 1 once the
     * stream of the copies may go on, then 0 again. forwarded: call whose rows have arrived, which
     * the copy engines write to the words of the receivers. */
    uint64_t *gate, *forwarded;
    /* Intervals: [bands of tiles][columns][AG_GEMM_TILE_NOTES], then
     * [movers][ag_gemm_steps()][AG_GEMM_COPY_NOTES]; NULL: no profile. */
    struct ag_gemm_note *notes;
};

/* Returns the number of bands of tiles. The first tile of a rank may begin in the band of the last
 * tile of the previous rank. */
EPA_BOTH uint32_t ag_gemm_bands(const struct ag_gemm_args *a)
{
    return (uint32_t)((uint64_t)a->v.size * a->max_rows / GEMM_ROWS) + a->v.size + 1;
}

/* Number of steps of the transfers of a call (ag_gemm_move.cuh). */
EPA_BOTH uint32_t ag_gemm_steps(const struct ag_gemm_args *a)
{
    return a->hops * a->chunks + 2 + a->chunks * (a->v.size - 1);
}

/* Index of the first interval of a mover's step. */
EPA_BOTH uint64_t ag_gemm_copy_note(const struct ag_gemm_args *a, uint32_t mover, uint32_t step)
{
    return (uint64_t)ag_gemm_bands(a) * a->columns * AG_GEMM_TILE_NOTES +
           ((uint64_t)mover * ag_gemm_steps(a) + step) * AG_GEMM_COPY_NOTES;
}

/* Argument of the kernel that puts own rows to ranks of other nodes. */
struct ag_gemm_far_args {
    struct ag_gemm_args a;
    const uint64_t *number; /* number of the call */
    struct epa_device_ring ring;
    uint32_t peers;   /* mask of those ranks */
    uint32_t *copied; /* [chunks]: blocks that have copied; 0 between calls */
};

#endif
