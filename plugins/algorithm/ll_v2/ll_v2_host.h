/* What the host code of ll_v2 keeps between calls, and the small things that its parts
 * share: where regions and rows are, who is reachable. Parts: ll_v2_host.c (set-up, puts,
 * signals), ll_v2_dispatch.c with ll_v2_arrival.c, ll_v2_combine.c. */
#ifndef LL_V2_HOST_H
#define LL_V2_HOST_H

#include "ll_v2.h"
#include "epa2a/quant.h"

static const uint32_t NOWHERE = UINT32_MAX;

/* Where one row of a token stands: at `rank` in place `row` (sent once) or entry; its
 * answer, if it has to be put, comes to place `answer` here. rank NOWHERE: there is none.
 */
struct ll_slot {
    uint32_t rank, row, output;
};

/* Rows of this rank for one expert or, if sent once, one rank. They stand in the order of
 * tokens, side by side there and, as their expert outputs do, here. */
struct ll_block {
    uint32_t row, output; /* the next to be put: where it goes, and where it is */
    uint32_t made;        /* answer of the first that has not been made */
};

/* What a dispatch leaves for its combine, and the views it hands out. Open from the one to the
 * other; a set that is not may be taken by the next dispatch. */
struct ll_set {
    bool open;
    uint64_t epoch;
    struct ll_slot *place; /* [max_tokens][places] */
    uint32_t *entry;        /* once: [max_tokens][topk], at the receivers */
    uint32_t *count;        /* [source][count_words], a copy */
    uint32_t *recv_count;   /* [local] */
    uint64_t *recv_start;   /* [local] */
    uint32_t *recv_row;     /* layout rank: [entries] */
    float *recv_weight;     /* layout rank: [entries] */
};

/* Which way of storing rows is faster here, found out in the first dispatches. */
enum { LL_TRIALS = 8 };
struct ll_trial {
    uint32_t left; /* dispatches still to be timed */
    uint32_t n[2]; /* by enum epa_store */
    double ns_per_row[2][LL_TRIALS];
};

/* Phases of the two stages, and what a worker does in them: for explain() and traces. */
enum ll_phase {
    LL_DO_CREATE,
    LL_DO_COUNT_PUT,
    LL_DO_QUANT_AND_PUT,
    LL_DO_WAIT,
    LL_DO_QUIET,
    LL_DO_POSTPROCESS,
    LL_DO_COPY_AND_PUT,
    LL_DO_RECV_WAIT,
    LL_DO_TOPK_REDUCE,
    LL_PHASES,
};

/* What is noted where somebody profiles: names, and since when the phase is. */
struct ll_notes {
    uint16_t phase[LL_PHASES], from[LL_SIGNALS]; /* from: a wait for one peer */
    uint16_t rows;                               /* that a dispatch brought, a counter */
    uint64_t begin_ns, bytes;                    /* of the phase, and what it moves */
    uint32_t tokens;
};

struct ll_host {
    struct epa_algorithm base;
    struct ll_layout l;
    struct epa_world world;
    struct epa_transport *t;
    struct epa_backend *backend;
    const struct epa_kernels *kernels;
    enum epa_store store;
    struct ll_trial trial;
    uint64_t heap, timeout_ns, epoch;
    uint32_t signal;
    struct ll_set set[2];
    uint8_t *rank_of; /* [experts] */
    /* While places are given out: rows so far for an expert or, if sent once, a rank. */
    uint32_t *sum, *next, *next_output; /* [experts]; next_output by rank if sent once */
    uint32_t *next_row;                 /* [size] */
    uint32_t far;                       /* ranks that loads and stores do not reach */
    struct ll_block *block;             /* [experts], or by rank if sent once */
    uint32_t *left;                     /* [size] rows of this phase still to be put */
    uint64_t reported;                      /* ranks whose last put has told them, a bit each */
    char *scratch;                      /* [workers] messages, each a worker's own */
    char *sums; /* [workers][ll_sums()] expert outputs before they are sent or added up */
    uint32_t workers;
    struct epa_trace *trace;
    struct ll_notes notes;
    struct { /* for explain() */
        const char *stage;
        enum ll_phase phase;
        uint32_t peer;
        enum ll_signal signal;
        enum epa_status status; /* of `text` */
        char text[160];         /* empty: it was the transport that failed */
    } last;
};

struct ll_task {
    struct ll_host *h;
    struct ll_set *set;
    struct epa_moe *m;
    /* combine: makes expert outputs in the outbox; NULL: they are sent as they stand */
    void (*make)(void *, uint32_t worker, uint32_t workers);
    uint32_t begin, end; /* what is done now: tokens, rows or experts */
    uint64_t wrong;      /* 1 + a row that came and says what cannot be; 0: none */
};

/* Of what is puts, so many bytes are made before they leave, so that making and sending
 * overlap; and fewer than these wait for more, if more may come. */
enum { LL_SLICE_BYTES = 256 << 10, LL_BLOCK_BYTES = 64 << 10 };

/* The first of what a worker does; of the worker after it: the end. */
static inline uint32_t first_of(const struct ll_task *task, uint32_t worker,
                                uint32_t workers)
{
    return task->begin + (uint32_t)((uint64_t)(task->end - task->begin) * worker / workers);
}

static inline struct ll_host *host_of(struct epa_algorithm *a)
{
    return (struct ll_host *)a; /* base is the first member */
}

/* A stage begins, with this phase. */
static inline void ll_begin(struct ll_host *h, const char *stage, enum ll_phase phase)
{
    h->last.text[0] = '\0'; /* of a call that was refused before */
    h->last.stage = stage;
    h->last.phase = phase;
    h->notes.begin_ns = epa_trace_now(h->trace);
}

/* The phase ends. */
static inline void ll_end(struct ll_host *h)
{
    struct ll_notes *n = &h->notes;

    n->begin_ns = epa_trace_slice(h->trace, 0, n->phase[h->last.phase], n->begin_ns,
                                  EPA_TRACE_NOBODY, n->bytes, n->tokens);
    n->bytes = n->tokens = 0;
}

/* Another phase begins if all is well so far; true if so. */
static inline bool ll_phase(struct ll_host *h, enum epa_status status, enum ll_phase phase)
{
    if (status != EPA_OK)
        return false;
    ll_end(h);
    h->last.phase = phase;
    return true;
}

/* Of a phase that several workers share each notes what it did, since begin_ns. */
static inline void ll_worked(const struct ll_host *h, uint32_t worker, uint32_t workers,
                             uint64_t begin_ns, uint32_t tokens)
{
    if (workers > 1)
        (void)epa_trace_slice(h->trace, worker, h->notes.phase[h->last.phase], begin_ns,
                              EPA_TRACE_NOBODY, 0, tokens);
}

static inline uint64_t region(const struct ll_host *h, const struct ll_set *s, uint64_t at,
                              uint64_t bytes)
{
    return h->heap + at + bytes * (uint64_t)(s - h->set);
}

static inline uint64_t recv_offset(const struct ll_host *h, const struct ll_set *s)
{
    return region(h, s, h->l.recv_at, h->l.recv_bytes);
}

static inline uint64_t y_offset(const struct ll_host *h, const struct ll_set *s)
{
    return region(h, s, h->l.y_at, h->l.y_bytes);
}

/* Where messages come to. */
static inline uint64_t arrival_offset(const struct ll_host *h, const struct ll_set *s)
{
    return h->l.arrival_bytes != 0 ? region(h, s, h->l.arrival_at, h->l.arrival_bytes)
                                   : recv_offset(h, s);
}

/* Where peers get expert outputs. */
static inline uint64_t leave_offset(const struct ll_host *h, const struct ll_set *s)
{
    return h->l.outbox_bytes != 0 ? region(h, s, h->l.outbox_at, h->l.outbox_bytes)
                                  : y_offset(h, s);
}

static inline uint64_t outputs_offset(const struct ll_host *h, const struct ll_set *s)
{
    return region(h, s, h->l.outputs_at, h->l.outputs_bytes);
}

/* The counts that `source` gave: rows for each expert, then rows for each rank. */
static inline const uint32_t *expert_counts(const struct ll_host *h, const struct ll_set *s,
                                            uint32_t source)
{
    return s->count + (size_t)source * h->l.count_words;
}

static inline const uint32_t *rank_counts(const struct ll_host *h, const struct ll_set *s,
                                          uint32_t source)
{
    return expert_counts(h, s, source) + h->l.experts;
}

/* Messages that are sent once for each rank, from all ranks to this one. */
static inline uint64_t rows_that_came(const struct ll_host *h, const struct ll_set *s)
{
    uint64_t rows = 0;

    for (uint32_t source = 0; source < h->l.size; source++)
        rows += rank_counts(h, s, source)[h->world.rank];
    return rows;
}

static inline const struct ll_meta *meta_of(const char *msg)
{
    return (const struct ll_meta *)(const void *)msg;
}

static inline const struct ll_choice *choices_of(const struct ll_host *h, const char *msg)
{
    return (const struct ll_choice *)(const void *)(msg + h->l.choices_at);
}

static inline uint32_t signal_of(const struct ll_host *h, enum ll_signal kind,
                                 uint32_t source)
{
    return h->signal + (uint32_t)kind * h->l.size + source;
}

/* Everybody else in turn, beginning with the next rank, so that not all start at rank 0. */
static inline uint32_t peer_at(const struct ll_host *h, uint32_t i)
{
    return (h->world.rank + i) % h->l.size;
}

static inline bool reachable(const struct ll_host *h, uint32_t rank)
{
    return rank == h->world.rank || h->t->peer_heap[rank] != NULL;
}

static inline char *heap_at(const struct ll_host *h, uint32_t rank, uint64_t offset)
{
    return (rank == h->world.rank ? h->t->heap : h->t->peer_heap[rank]) + offset;
}

/* Expert outputs that a worker makes before they go on: a sum of them, and those that it is of. */
static inline uint32_t ll_sums(const struct ll_layout *l)
{
    return l->fused ? 1 + l->topk : l->outbox_bytes != 0;
}

uint64_t ll_now_ns(void);

/* Puts `rows` of h->left[peer] rows, `bytes` in all, and waits for room; `src` must be in the
 * heap and stay until quiet. What leaves none tells the peer. */
enum epa_status ll_put(struct ll_host *, enum ll_signal kind, uint64_t epoch, uint64_t dst,
                       const void *src, uint32_t rows, uint32_t peer);
/* Notes why the stage fails, for explain(); returns `status`. */
EPA_PRINTF(3, 4)
enum epa_status ll_fail(struct ll_host *, enum epa_status status, const char *fmt, ...);
/* After a call that may have had no room (EPA_AGAIN): true if it must be made again.
 * *deadline is 0 before the first try. */
bool ll_again(struct ll_host *, enum epa_status *status, uint64_t *deadline);
/* Tells who was not told with a put. All that was stored or put for the epoch so far is seen
 * before. Partner: ll_wait(). */
enum epa_status ll_signal(struct ll_host *, enum ll_signal kind, uint64_t epoch);
/* Until every other rank has told at least `epoch`. */
enum epa_status ll_wait(struct ll_host *, enum ll_signal kind, uint64_t epoch);
/* The same; then nothing that this rank has put or told is held back. */
enum epa_status ll_wait_and_leave(struct ll_host *, enum ll_signal kind, uint64_t epoch);

/* To ranks out of reach. Where the message of a place of token t is made: where its answer is
 * counted or, if it is the same for all who get it, once for each token. */
char *ll_staging_at(const struct ll_host *, const struct ll_set *, uint32_t t,
                    const struct ll_slot *);
/* Notes what is to be put to whom and where blocks begin, before places are given out. */
void ll_begin_rows(struct ll_host *, const struct ll_set *);
/* The messages of the tokens that were just made; in blocks, of long ones, all with the last.
 */
enum epa_status ll_put_rows(const struct ll_task *);

/* After the last message has come: what it means for the experts, and the views of it. */
enum epa_status ll_publish_views(struct ll_task *);

enum epa_status ll_dispatch(struct epa_algorithm *, struct epa_problem *);
enum epa_status ll_combine(struct epa_algorithm *, struct epa_problem *);

#endif
