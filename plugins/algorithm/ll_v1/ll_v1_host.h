/* What the chapters of the host code of ll_v1 share:
 *
 *   ll_v1_host.c   the exchange with other ranks, the two stages, and why they are right
 *   ll_v1_rows.c   what a rank does alone: sort and quantise, regroup, reduce */
#ifndef LL_V1_HOST_H
#define LL_V1_HOST_H

#include "ll_v1.h"

#include "../../common/algo_host.h"

/* What a dispatch leaves for its combine, and the views it publishes. */
struct v1_set {
    struct algo_set s;
    uint32_t *at;     /* [max_tokens][topk] place of a choice as sorted; of a dropped one: any */
    uint32_t *cumsum; /* [experts + 1] rows for the experts before */
    uint32_t *count;  /* [source][local] rows received */
    uint32_t *offset; /* [source] recv_offset: where its slice begins, as it sorted */
};

/* A received row and the entries that it is copied to. */
struct v1_move {
    uint32_t row;  /* of the source's tokens, if they are pulled, or of its slots */
    uint32_t dest; /* first in v1_host.dest */
    uint32_t n;
};

struct v1_host {
    struct algo_host a;
    struct v1_layout l;
    uint64_t calls[V1_MODES]; /* made so far */
    struct v1_set *again;     /* combined last, with no dispatch since */
    uint32_t *tokens_of;      /* [experts] in out_splits: tokens as sorted, less the row */
    uint32_t *next;           /* [workers][experts] */
    uintptr_t *output;        /* [experts] where row 0, as sorted, would have its output */
    struct v1_move *move;     /* [source][max_m] */
    uint32_t *moves, *dest;   /* [source]; [source][max_m] */
    uint32_t *seen;           /* [workers][max_tokens] */
};

struct v1_task {
    struct v1_host *h;
    struct v1_set *set;
    struct epa_moe *m;
    enum v1_mode mode;
    uint64_t call;
    uint32_t peer, begin, end; /* rows of the block to `peer` that are made now */
    const char *y;             /* combine: where outputs are taken from */
    uint32_t wrong;            /* 1 + a source whose splits cannot be; 0: none */
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

/* At a rank that is not to be reached by puts. */
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

/* Rows of this rank, as sorted, that are for the ranks before `rank`. */
static inline uint32_t start_to(const struct v1_task *task, uint32_t rank)
{
    return task->set->cumsum[rank * task->h->l.local];
}

/* [local] where the rows of `source` begin here. */
static inline uint32_t *starts_of(const struct v1_task *task, uint32_t source)
{
    return (uint32_t *)(void *)here(task->h, &task->h->l.starts, index_of(task)) +
           (size_t)source * task->h->l.local;
}

static inline const uint32_t *counts_of(const struct v1_task *task, uint32_t source)
{
    return task->set->count + (size_t)source * task->h->l.local;
}

/* The splits received from `source`: counts, start, tokens. */
static inline const uint32_t *splits_of(const struct v1_task *task, uint32_t source)
{
    return (const uint32_t *)(const void *)here(task->h, &task->h->l.splits, position(task)) +
           (size_t)source * task->h->l.split_words;
}

/* Those that go to `rank`. */
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

/* ---- ll_v1_rows.c ---- */

/* The choices of this rank, counted and placed by expert; its tokens as they are sent. */
enum epa_status v1_sort_and_quantise(struct v1_task *);
/* The rows of all sources, to where experts read them, and the views of them. */
enum epa_status v1_regroup(struct v1_task *);
/* The expert outputs of each token, added up. */
enum epa_status v1_reduce(struct v1_task *);

#endif
