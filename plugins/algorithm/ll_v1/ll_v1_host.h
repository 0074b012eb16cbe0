/* What the host code of ll_v1 keeps between calls, and the small things that its parts share.
 * Parts: ll_v1_host.c (set-up), ll_v1_dispatch.c (sort, quantise), ll_v1_exchange.c (blocks,
 * signals), ll_v1_arrival.c (what came, regrouped), ll_v1_combine.c. */
#ifndef LL_V1_HOST_H
#define LL_V1_HOST_H

#include "ll_v1.h"
#include "epa2a/quant.h"

static const uint32_t NOWHERE = UINT32_MAX;

/* What a dispatch leaves for its combine, and the views it hands out. */
struct v1_set {
    bool open;
    uint64_t epoch;
    uint32_t *at;         /* [max_tokens][topk] place of a choice as sorted, or NOWHERE */
    uint32_t *cumsum;     /* [experts + 1] rows for the experts before */
    uint32_t *count;      /* [source][local] rows that came */
    uint32_t *offset;     /* [source] recv_offset: where its slice begins, as it sorted */
    uint32_t *recv_count; /* [local] */
    uint64_t *recv_start; /* [local] */
};

/* A row that came and the entries that it is copied to. */
struct v1_move {
    uint32_t row;  /* of the source's tokens, if they are pulled, or of its slots */
    uint32_t dest; /* first in v1_host.dest */
    uint32_t n;
};

/* Which way of storing rows is faster here, found out in the first dispatches. */
enum { V1_TRIALS = 8 };
struct v1_trial {
    uint32_t left; /* dispatches still to be timed */
    uint32_t n[2]; /* by enum epa_store */
    double ns_per_row[2][V1_TRIALS];
};

struct v1_host {
    struct epa_algorithm base;
    struct v1_layout l;
    struct epa_world world;
    struct epa_transport *t;
    struct epa_backend *backend;
    const struct epa_kernels *kernels;
    enum epa_store store;
    struct v1_trial trial;
    uint64_t heap, timeout_ns;
    uint32_t signal, workers;
    bool far;                 /* some ranks are out of reach */
    uint64_t calls[V1_MODES]; /* made so far */
    struct v1_set set[2];
    struct v1_set *again;   /* combined last, with no dispatch since */
    uint32_t *tokens_of;    /* [experts] in out_splits: tokens as sorted, less the row */
    uint32_t *next;         /* [workers][experts] */
    uintptr_t *outputs;     /* [experts] where row 0, as sorted, would be answered */
    struct v1_move *move;   /* [source][max_m] */
    uint32_t *moves, *dest; /* [source]; [source][max_m] */
    uint32_t *seen;         /* [workers][max_tokens] */
    struct epa_trace *trace;
    uint64_t phase_ns; /* since when the phase is, where somebody profiles */
    struct {           /* for explain() */
        const char *stage, *phase;
        uint64_t call;
        uint32_t peer;
        enum epa_status status; /* of `text` */
        char text[192];         /* empty: it was the transport that failed */
    } last;
};

struct v1_task {
    struct v1_host *h;
    struct v1_set *set;
    struct epa_moe *m;
    enum v1_mode mode;
    uint64_t call;
    uint32_t peer, begin, end; /* rows of the block to `peer` that are made now */
    const char *y;             /* combine: where expert outputs are taken from */
    uint32_t wrong;            /* 1 + a source whose splits cannot be; 0: none */
};

enum v1_way { V1_PULL, V1_PUSH, V1_PUT };

static inline struct v1_host *v1_host_of(struct epa_algorithm *a)
{
    return (struct v1_host *)a; /* base is the first member */
}

/* A stage begins, with this phase. */
static inline void v1_begin(struct v1_host *h, const char *stage, const char *name)
{
    h->last.stage = stage;
    h->last.phase = name;
    h->phase_ns = epa_trace_now(h->trace);
}

/* The phase ends. */
static inline void v1_end(struct v1_host *h)
{
    h->phase_ns = epa_trace_slice(h->trace, 0, epa_trace_name(h->trace, h->last.phase),
                                  h->phase_ns, EPA_TRACE_NOBODY, 0, 0);
}

/* Names the phase that begins if all is well so far; true if so. */
static inline bool v1_phase(struct v1_host *h, enum epa_status status, const char *name)
{
    if (status != EPA_OK)
        return false;
    v1_end(h);
    h->last.phase = name;
    return true;
}

static inline uint64_t position(const struct v1_task *task)
{
    return task->call % V1_POSITIONS;
}

static inline uint64_t index_of(const struct v1_task *task)
{
    return (uint64_t)(task->set - task->h->set);
}

static inline uint64_t offset_of(const struct v1_host *h, const struct v1_region *r,
                                 uint64_t which)
{
    return h->heap + r->at + r->bytes * which;
}

static inline char *here(const struct v1_host *h, const struct v1_region *r, uint64_t which)
{
    return h->t->heap + offset_of(h, r, which);
}

/* At a rank that is not to be reached by puts. */
static inline char *there(const struct v1_host *h, uint32_t rank, const struct v1_region *r,
                          uint64_t which)
{
    char *heap = rank == h->world.rank ? h->t->heap : h->t->peer_heap[rank];

    return heap + offset_of(h, r, which);
}

static inline enum v1_way way_to(const struct v1_host *h, uint32_t rank)
{
    if (rank != h->world.rank && h->t->peer_heap[rank] == NULL)
        return V1_PUT;
    return h->l.pull ? V1_PULL : V1_PUSH;
}

/* Everybody else in turn, beginning with the next rank, so that not all start at rank 0; then,
 * for i = size, this rank. */
static inline uint32_t peer_at(const struct v1_host *h, uint32_t i)
{
    return (h->world.rank + i) % h->l.size;
}

/* The first of what a worker does; of the worker after it: the end. */
static inline uint32_t share_of(uint32_t n, uint32_t worker, uint32_t workers)
{
    return (uint32_t)((uint64_t)n * worker / workers);
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

/* The splits that came from `source`: counts, start, tokens. */
static inline const uint32_t *splits_of(const struct v1_task *task, uint32_t source)
{
    return (const uint32_t *)(const void *)here(task->h, &task->h->l.splits,
                                                position(task)) +
           (size_t)source * task->h->l.split_words;
}

/* Those that go to `rank`. */
static inline uint32_t *splits_to(const struct v1_task *task, uint32_t rank)
{
    return (uint32_t *)(void *)here(task->h, &task->h->l.out_splits, 0) +
           v1_splits_to(&task->h->l, rank, start_to(task, rank));
}

uint64_t v1_now_ns(void);

/* Notes why the stage fails, for explain(); returns `status`. */
EPA_PRINTF(3, 4)
enum epa_status v1_fail(struct v1_host *, enum epa_status status, const char *fmt, ...);

/* All blocks of a call to all ranks, until those of all ranks have come and nothing that this
 * rank sent is held back. */
enum epa_status v1_exchange(struct v1_task *);

/* What came, to where experts read it, and the views of it. */
enum epa_status v1_publish_views(struct v1_task *);

enum epa_status v1_dispatch(struct epa_algorithm *, struct epa_problem *);
enum epa_status v1_combine(struct epa_algorithm *, struct epa_problem *);

#endif
