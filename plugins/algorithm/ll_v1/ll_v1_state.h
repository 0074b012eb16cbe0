/* State of the host code of ll_v1, which its files share:
 *
 *   ll_v1_host.c   the exchange between ranks, both stages, and the proof of the buffer protocol
 *   ll_v1_rows.c   work inside a rank: sort, quantise, regroup, reduce */
#ifndef LL_V1_STATE_H
#define LL_V1_STATE_H

#include "ll_v1_layout.h"

#include "../../common/algo_host.h"

/* State that a dispatch keeps for its combine, and the arrays of its published views. */
struct v1_set {
    struct algo_set s;
    /* [max_tokens][topk]: index of a choice in the sorted order; undefined if dropped */
    uint32_t *at;
    uint32_t *cumsum; /* [experts + 1]: number of rows for the preceding experts */
    uint32_t *count;  /* [source][local]: number of received rows */
    /* [source]: recv_offset, the start of the source's slice in its sorted order */
    uint32_t *offset;
};

/* A received row and the entries that receive copies of the row. */
struct v1_move {
    uint32_t row;  /* index among the source's tokens if rows are pulled, else among its slots */
    uint32_t dest; /* index of the first entry in v1_host.dest */
    uint32_t n;
};

struct v1_host {
    struct algo_host a;
    struct v1_layout l;
    uint64_t calls[V1_MODES]; /* number of calls so far */
    struct v1_set *again;     /* set of the last combine; NULL after a dispatch */
    /* [experts]: token of sorted row i, at index tokens_of[expert] + i of out_splits */
    uint32_t *tokens_of;
    /* [workers][experts]: first the choices that a worker counts, then its next index */
    uint32_t *next;
    uintptr_t *output;      /* [experts]: address of the output of sorted row 0 */
    struct v1_move *move;   /* [source][max_m]: rows to copy */
    uint32_t *moves, *dest; /* [source]: number of moves; [source][max_m]: target entries */
    /* [workers][max_tokens]: rows of a token, then its next index in dest */
    uint32_t *seen;
};

struct v1_task {
    struct v1_host *h;
    struct v1_set *set;
    struct epa_moe *m;
    enum v1_mode mode;
    uint64_t call;
    uint32_t peer, begin, end; /* range of rows to `peer` in the current step */
    const char *y;             /* combine: base address of expert outputs */
    uint32_t wrong;            /* 1 + a source with invalid splits; 0: none */
};

enum v1_way { V1_PULL, V1_PUSH, V1_PUT };

static inline uint64_t position(const struct v1_task *task)
{
    return task->call % V1_POSITIONS;
}

static inline uint64_t index_of(const struct v1_task *task)
{
    return task->set->s.index;
}

static inline uint64_t offset_of(const struct v1_host *h, const struct v1_region *r, uint64_t which)
{
    return h->a.heap + r->at + r->bytes * which;
}

static inline char *here(const struct v1_host *h, const struct v1_region *r, uint64_t which)
{
    return h->a.t->heap + offset_of(h, r, which);
}

/* Address in the heap of a rank that loads and stores reach. */
static inline char *there(const struct v1_host *h, uint32_t rank, const struct v1_region *r,
                          uint64_t which)
{
    return algo_at(&h->a, rank, offset_of(h, r, which));
}

static inline enum v1_way way_to(const struct v1_host *h, uint32_t rank)
{
    if (!algo_reachable(&h->a, rank))
        return V1_PUT;
    return h->l.pull ? V1_PULL : V1_PUSH;
}

/* Number of sorted rows of this rank for the ranks before `rank`. */
static inline uint32_t start_to(const struct v1_task *task, uint32_t rank)
{
    return task->set->cumsum[rank * task->h->l.local];
}

/* [local]: start of the rows of `source` at this rank, per expert. */
static inline uint32_t *starts_of(const struct v1_task *task, uint32_t source)
{
    return (uint32_t *)(void *)here(task->h, &task->h->l.starts, index_of(task)) +
           (size_t)source * task->h->l.local;
}

static inline const uint32_t *counts_of(const struct v1_task *task, uint32_t source)
{
    return task->set->count + (size_t)source * task->h->l.local;
}

/* Splits received from `source`: counts, start, tokens. */
static inline const uint32_t *splits_of(const struct v1_task *task, uint32_t source)
{
    return (const uint32_t *)(const void *)here(task->h, &task->h->l.splits, position(task)) +
           (size_t)source * task->h->l.split_words;
}

/* Splits for `rank`. */
static inline uint32_t *splits_to(const struct v1_task *task, uint32_t rank)
{
    return (uint32_t *)(void *)here(task->h, &task->h->l.out_splits, 0) +
           v1_splits_to(&task->h->l, rank, start_to(task, rank));
}

static inline enum epa_status in_parallel(struct v1_task *task,
                                          void (*fn)(void *, uint32_t, uint32_t))
{
    return algo_parallel(&task->h->a, fn, task);
}

#endif
