/* State of the host code of fused. fused_host.c: the protocol, queues, set-up; fused_progress.c:
 * puts, signals and waits; fused_dispatch.c: routes, headers, rows, and the index of received rows;
 * fused_gemm.c: GEMMs and combine. */
#ifndef FUSED_STATE_H
#define FUSED_STATE_H

#include "fused_layout.h"

#include <string.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/gemm.h>
#include <epa2a/problem.h>

#include "kernels/rows.h"
#include "../../common/algo_host.h"

enum { FUSED_CACHED = 32 << 20 };   /* bytes of slots that a sum finds in caches */
enum { FUSED_COMBINE_TOKENS = 16 }; /* tokens per combine task */

/* A row of a token, at its source. rank ALGO_NONE: no row. */
struct fused_place {
    uint32_t rank, out; /* out: index among the rows that return */
};

/* Consecutive entries of a local expert. */
struct fused_block {
    uint32_t expert, first, rows;
};

enum fused_kind {
    FUSED_SEND,    /* item: chunk of rows; over the chunks of all ranks */
    FUSED_INDEX,   /* one task: places of the rows of all sources, and the list of the GEMM tasks */
    FUSED_PACK,    /* item: block; the second stage of dispatch */
    FUSED_UP,      /* item: block; part: of its columns */
    FUSED_DOWN,    /* item: block; part: of its columns */
    FUSED_FINISH,  /* item: chunk of received rows; serial only */
    FUSED_COMBINE, /* item: group of FUSED_COMBINE_TOKENS tokens */
    FUSED_KINDS
};

struct fused_task {
    uint32_t item;
    uint16_t kind, part;
};

/* Queues, in the order of execution. Free workers take tasks, or tasks are dealt to `workers`
 * workers from `first_worker` on. A task waits only for tasks of other ranks, or for tasks before
 * it in this queue or in an earlier queue. */
enum fused_queue_number {
    FUSED_Q_DISPATCH,
    FUSED_Q_TAIL,
    FUSED_Q_GEMM,
    FUSED_Q_DOWN,
    FUSED_Q_COMBINE,
    FUSED_QUEUES
};
struct fused_tasks {
    struct fused_task *task;
    uint32_t n, room;
    uint32_t next; /* index of the next task; relaxed: tasks wait for their inputs themselves */
    uint32_t first_worker, workers;
    char apart[40];
};

/* A put by worker 0, the only worker that calls the transport. */
struct fused_request {
    uint64_t ready; /* the epoch; release, pairs with issue_requests() */
    uint64_t dst;
    const void *src;
    size_t bytes;    /* 0: only a signal, ordered after all earlier puts */
    uint32_t signal; /* ALGO_NONE: no signal */
    uint32_t peer;
};

/* Progress of a rank whose rows arrive with signals. */
struct fused_far {
    uint32_t row_units, rows_from;  /* row_units: number of awaited flags of rows; flags before
                                     * rows_from are set */
    uint32_t out_chunks, outs_from; /* the same for outputs */
};

/* Description of a wait for messages. expert ALGO_NONE: not the wait of a GEMM task. */
struct fused_wait {
    const char *what;
    uint32_t peer, first, last, expert, row, rows;
};

/* Work of a call: everything, or one half, which bench times alone. */
enum fused_half { FUSED_BOTH, FUSED_MOVING, FUSED_MULTIPLYING };

struct fused_host {
    struct algo_host a;
    struct fused_layout l;
    struct fused_config c;
    enum fused_half half;
    const struct epa_gemm *gemm;
    const struct gemm_rows *rows;
    struct epa_mlp mlp;
    struct epa_moe *m; /* problem of the current call */
    uint64_t epoch, set;

    /* Source side. */
    struct fused_place *place; /* [max_tokens][places] */
    uint32_t *out_start;       /* [size + 1] */
    uint32_t *token;           /* [out_rows] */
    uint32_t *first_expert;    /* [out_rows]: lowest expert, numbered over all ranks, that has
                                * chosen the row */
    uint32_t *key_next;        /* [experts + 1] */
    uint32_t *expert_left;     /* [experts]: unsent rows whose first_expert is this expert */
    struct fused_place *chunk; /* chunks to send: rank, and first row of the chunk */
    uint32_t n_chunks;

    /* Receiver side. A row has the number source * source_rows + row. */
    const uint32_t **head;  /* [size] */
    uint64_t *row_base;     /* [size]: index of a source's first row here */
    uint64_t *sent_base;    /* [size]: index of this rank's first row at that rank */
    uint32_t *entry_row;    /* [entries] */
    uint32_t *choice_entry; /* [size][source_choices] */
    uint32_t *left;         /* [size][source_rows][out_parts]: GEMM tasks that this part of a row
                             * still waits for */
    uint32_t *chunk_left;   /* [size][chunks][out_parts]: rows that do not return yet */
    uint32_t *count;        /* [local] */
    uint32_t *entry_start;  /* [local] */
    struct fused_block *block;
    uint32_t n_blocks, splits;
    /* [blocks]: progress of each block in this call; set to 0 before `indexed`. ups: finished tasks;
     * INT8: one more after the intermediate is quantised */
    uint64_t *packed, *ups, *downs;
    uint64_t down_tasks, downs_done, indexed; /* indexed: epoch of the last complete index */

    /* GEMMs. Panels and intermediates are in rings: block b has slot b % ring. */
    char *weights;
    size_t up_bytes, down_bytes; /* bytes per expert */
    uint32_t gemm_workers, panel_ring, inter_ring;
    char *panel, *inter; /* inter: intermediates; panel: one per block with tail, otherwise one
                          * per worker */
    float *panel_scale, *inter_scale;
    uint32_t *held; /* [workers]: block in the panel of this worker, without tail */
    size_t panel_bytes, inter_bytes;
    char *tile; /* [workers]: two tiles of float32, and spare_bytes for a row before its packing */
    size_t tile_bytes, spare_bytes;
    float *slot; /* [entries][hidden]: outputs before their sum */
    bool stream_slots;

    struct fused_tasks queue[FUSED_QUEUES];
    struct fused_far *far; /* [size] */
    struct fused_request *request;
    uint32_t requests, issued, request_room; /* requests: atomic */
    uint32_t launch;                         /* 0, or 1 in the second of two launches */
    uint64_t *counted;                       /* not NULL: fused_alloc() only adds up bytes here */
    struct algo_pass pass;
    uint16_t name[FUSED_KINDS], wait_name;
};

static inline uint64_t at_set(const struct fused_host *h, uint64_t at, uint64_t bytes)
{
    return h->a.heap + at + h->set * bytes;
}

static inline bool fused_near(const struct fused_host *h, uint32_t rank)
{
    return algo_reachable(&h->a, rank);
}

/* Returns the number of tiles; the last tile may be narrower. */
static inline uint32_t fused_tiles(const struct fused_layout *l, uint32_t columns)
{
    return (columns + l->tile_cols - 1) / l->tile_cols;
}

/* Returns the first column of a part of the GEMM tasks of a block; the first column of the next
 * part is its end. */
static inline uint32_t fused_first_column(const struct fused_host *h, uint32_t columns,
                                          uint32_t part)
{
    uint64_t first = (uint64_t)fused_tiles(&h->l, columns) * part / h->splits * h->l.tile_cols;

    return first < columns ? (uint32_t)first : columns;
}

/* ---- parts of returning rows ---- */

/* Returns the first column of a part of a returning row; the first column of the next part is its
 * end. */
static inline uint32_t out_column(const struct fused_layout *l, uint32_t part)
{
    return part < l->out_parts ? part * l->out_cols : l->hidden;
}

/* Returns the offset of a part of a row in a region of `rows` returning rows. */
static inline uint64_t out_part_at(const struct fused_layout *l, uint64_t rows, uint64_t row,
                                   uint32_t part)
{
    uint32_t first = out_column(l, part);

    return (rows * first + row * (out_column(l, part + 1) - first)) * sizeof(uint16_t);
}

/* ---- headers ---- */

static inline const uint32_t *head_rows_to(const uint32_t *head)
{
    return head + FUSED_HEAD_WORDS;
}

static inline const uint32_t *head_entries_to(const struct fused_layout *l, const uint32_t *head)
{
    return head_rows_to(head) + l->size;
}

static inline const uint32_t *head_first_rows(const struct fused_layout *l, const uint32_t *head)
{
    return head_entries_to(l, head) + l->size;
}

/* [rows + 1] */
static inline const uint32_t *head_row_start(const struct fused_layout *l, const uint32_t *head)
{
    return head_first_rows(l, head) + l->local;
}

static inline size_t head_choices_at(const struct fused_layout *l, uint32_t rows)
{
    return epa_round_up((FUSED_HEAD_WORDS + 2 * (size_t)l->size + l->local + rows + 1) * 4, 8);
}

static inline const struct fused_choice *head_choices(const struct fused_layout *l,
                                                      const uint32_t *head)
{
    return (const struct fused_choice *)(const void *)((const char *)head +
                                                       head_choices_at(l, head[FUSED_ROWS]));
}

/* ---- flags ---- */

static inline uint64_t head_flag_at(const struct fused_host *h, uint32_t source)
{
    return h->a.heap + h->l.head_flags_at + source * sizeof(uint64_t);
}

static inline uint64_t row_flag_at(const struct fused_host *h, uint32_t source, uint32_t unit)
{
    return h->a.heap + h->l.row_flags_at +
           ((uint64_t)source * h->l.units + unit) * sizeof(uint64_t);
}

static inline uint64_t out_flag_at(const struct fused_host *h, uint32_t out, uint32_t part)
{
    return h->a.heap + h->l.out_flags_at + (part * h->l.out_rows + out) * sizeof(uint64_t);
}

static inline uint32_t head_signal(uint32_t source)
{
    return source;
}

static inline uint32_t row_signal(const struct fused_layout *l, uint32_t source, uint32_t unit)
{
    return l->size + source * l->units + unit;
}

static inline uint32_t out_signal(const struct fused_layout *l, uint32_t rank, uint32_t chunk,
                                  uint32_t part)
{
    return l->size * (1 + l->units) + (rank * l->chunks + chunk) * l->out_parts + part;
}

/* Sets a flag of a rank that stores reach. Release: pairs with the acquire in fused_await(). */
static inline void fused_flag(const struct fused_host *h, uint32_t rank, uint64_t at)
{
    __atomic_store_n((uint64_t *)(void *)algo_at(&h->a, rank, at), h->epoch, __ATOMIC_RELEASE);
}

static inline const uint64_t *fused_flag_here(const struct fused_host *h, uint64_t at)
{
    return (const uint64_t *)(const void *)(h->a.t->heap + at);
}

static inline void fused_add_task(struct fused_host *h, enum fused_queue_number q,
                                  enum fused_kind kind, uint32_t item, uint32_t part)
{
    struct fused_tasks *queue = &h->queue[q];

    queue->task[queue->n++] = (struct fused_task){item, (uint16_t)kind, (uint16_t)part};
}

/* Returns the number of flags for the rows of a source. Called by worker 0. */
static inline uint32_t fused_row_units(const struct fused_host *h, uint32_t source)
{
    uint32_t units = (h->head[source][FUSED_ROWS] + h->l.chunk - 1) / h->l.chunk;

    return h->c.ready == FUSED_READY_BLOCK && units < h->l.units ? units : h->l.units;
}

#endif
