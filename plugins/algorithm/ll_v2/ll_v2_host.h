/* What the host code of ll_v2 keeps between calls, and where things are. ll_v2_host.c: the
 * protocol, dispatch and set-up; ll_v2_routes.c; ll_v2_combine.c. */
#ifndef LL_V2_HOST_H
#define LL_V2_HOST_H

#include "ll_v2.h"

#include <string.h>

#include "../../common/algo_host.h"

/* Where one row of a token is: at `rank` in row `row` (dedup) or entry; its expert output, if it
 * has to be put, arrives in row `output` here. rank ALGO_NONE: there is none. */
struct ll_slot {
    uint32_t rank, row, output;
};

/* Rows of this rank for one expert or, if sent once, one rank. They are in the order of
 * tokens, side by side there and, as their expert outputs do, here. */
struct ll_block {
    uint32_t row, output; /* the next to be put: where it goes, and where it is */
    uint32_t made;        /* `output` of the first that has not been made */
};

/* What a dispatch leaves for its combine, and the views it publishes. */
struct ll_set {
    struct algo_set s;
    struct ll_slot *place; /* [max_tokens][places] */
    uint32_t *entry;       /* once: [max_tokens][topk], at the receivers */
    uint32_t *count;       /* puts: [source][count_words], a copy */
    uint64_t rows;         /* dedup: messages that arrive here */
    uint64_t to, from;     /* ranks to signal of rows, and to wait for, a bit each */
    uint32_t *recv_row;    /* layout rank: [entries] */
    float *recv_weight;    /* layout rank: [entries] */
};

struct ll_host {
    struct algo_host a;
    struct ll_layout l;
    /* While places are given out: rows so far for an expert or, if sent once, a rank. */
    uint32_t *sum, *next;   /* [experts + size]: of experts, then of ranks */
    uint32_t *next_row;     /* [size], the second part of `next` */
    uint32_t *next_output;  /* [experts], or by rank if sent once */
    struct ll_block *block; /* [size]: dedup */
    uint32_t *left;         /* [size] rows of this phase still to be put */
    uint64_t signalled;     /* ranks that their last put has signalled, a bit each */
    char *scratch;          /* [workers] messages, each a worker's own */
    char *sums;             /* [workers] rows: outputs reduced before they are sent */
};

struct ll_task {
    struct ll_host *h;
    struct ll_set *set;
    struct epa_moe *m;
    /* combine: makes expert outputs in the outbox; NULL: they are sent as they are */
    void (*make)(void *, uint32_t worker, uint32_t workers);
    uint32_t begin, end; /* what is done now: tokens, rows or experts */
    uint32_t written;    /* dispatch: channels of the first token that are in scratch already */
    uint64_t wrong;      /* 1 + a row that came and says what cannot be; 0: none */
};

/* Fewer bytes than these wait for more, if more may be put with them. */
enum { LL_BLOCK_BYTES = 64 << 10 };

/* Of a token so many, in whole groups, are quantised and then stored; of the first, so many parts
 * while routes are on their way. */
enum { LL_PART_CHANNELS = 1024, LL_PARTS_AHEAD = 2 };

/* The first of what a worker does; of the worker after it: the end. */
static inline uint32_t first_of(const struct ll_task *task, uint32_t worker, uint32_t workers)
{
    return task->begin + (uint32_t)((uint64_t)(task->end - task->begin) * worker / workers);
}

static inline uint64_t recv_offset(const struct ll_host *h, const struct ll_set *s)
{
    return algo_region(&h->a, &s->s, h->l.recv_at, h->l.recv_bytes);
}

static inline uint64_t y_offset(const struct ll_host *h, const struct ll_set *s)
{
    return algo_region(&h->a, &s->s, h->l.y_at, h->l.y_bytes);
}

/* Where messages arrive. */
static inline uint64_t arrival_offset(const struct ll_host *h, const struct ll_set *s)
{
    return h->l.arrival_bytes != 0 ? algo_region(&h->a, &s->s, h->l.arrival_at, h->l.arrival_bytes)
                                   : recv_offset(h, s);
}

/* Where peers get expert outputs. */
static inline uint64_t leave_offset(const struct ll_host *h, const struct ll_set *s)
{
    return h->l.outbox_bytes != 0 ? algo_region(&h->a, &s->s, h->l.outbox_at, h->l.outbox_bytes)
                                  : y_offset(h, s);
}

static inline uint64_t outputs_offset(const struct ll_host *h, const struct ll_set *s)
{
    return algo_region(&h->a, &s->s, h->l.outputs_at, h->l.outputs_bytes);
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

/* Counts of what is adjacent: rows for each rank, if they are sent once, or expert. */
static inline const uint32_t *row_counts(const struct ll_host *h, const struct ll_set *s,
                                         uint32_t source)
{
    return h->l.dedup ? rank_counts(h, s, source) : expert_counts(h, s, source);
}

static inline const struct ll_meta *meta_of(const char *msg)
{
    return (const struct ll_meta *)(const void *)msg;
}

static inline const struct ll_choice *choices_of(const struct ll_host *h, const char *msg)
{
    return (const struct ll_choice *)(const void *)(msg + h->l.choices_at);
}

/* Puts `rows` of h->left[peer] rows to where `row` and those after it are at the peer (DATA), or
 * its outputs (OUTPUT); `src` is in the heap and stays until quiet. The last signals the peer. */
enum epa_status ll_put(struct ll_host *, enum ll_signal kind, const struct ll_set *, uint64_t row,
                       const void *src, uint32_t rows, uint32_t peer);
/* Signals those of `ranks`, a bit each, that were not signalled with a put. All that was stored or
 * put for the epoch so far is seen before. */
enum epa_status ll_signal(struct ll_host *, enum ll_signal kind, uint64_t epoch, uint64_t ranks);
/* Partner of both: until each of `ranks` has signalled at least `epoch`. */
enum epa_status ll_wait(struct ll_host *, enum ll_signal kind, uint64_t epoch, uint64_t ranks);
/* The same; then nothing that this rank has put or signalled is held back. */
enum epa_status ll_wait_and_leave(struct ll_host *, enum ll_signal kind, uint64_t epoch,
                                  uint64_t ranks);

/* Writes the beginning of the first token, which needs no place yet, where it is made. */
void ll_write_ahead(struct ll_task *);

/* ll_v2_routes.c: who has how many rows for whom, and where they go. */
enum epa_status ll_exchange(struct ll_task *);
enum epa_status ll_give_places(struct ll_host *, struct ll_set *, const struct epa_moe *);

enum epa_status ll_combine(struct epa_algorithm *, struct epa_problem *);

#endif
