/* State of the host code of ll_v2 between calls, and the layout of its memory. ll_v2_host.c
 * contains the protocol, dispatch and set-up; ll_v2_signals.c contains puts and signals;
 * ll_v2_routes.c contains counts and places; ll_v2_combine.c contains combine. */
#ifndef LL_V2_STATE_H
#define LL_V2_STATE_H

#include "ll_v2_layout.h"

#include <string.h>

#include "../../common/algo_host.h"

/* Place of a row of a token: row `row` (dedup) or entry `row` at `rank`. An expert output that
 * arrives by a put arrives in row `output` of this rank. rank ALGO_NONE: no row. */
struct ll_slot {
    uint32_t rank, row, output;
};

/* Rows of this rank for one expert or, with dedup, for one rank, in the order of tokens. The rows
 * are contiguous at the receiver, and their expert outputs are contiguous at this rank. */
struct ll_block {
    /* next row to put: index at the experts' rank, index at the token's rank */
    uint32_t row, output;
    uint32_t made; /* `output` of the first row that is not written yet */
};

/* State that a dispatch keeps for its combine, and the arrays of its published views. */
struct ll_set {
    struct algo_set s;
    struct ll_slot *place; /* [max_tokens][places] */
    uint32_t *entry;       /* dedup: [max_tokens][topk]: entries at the receivers */
    uint32_t *count;       /* puts: [source][count_words]: copy of the counts */
    uint64_t rows;         /* dedup: number of messages that arrive here */
    /* bit masks: ranks that get rows of this rank; ranks that send rows to it */
    uint64_t to, from;
    uint32_t *recv_row; /* layout rank: [entries] */
    float *recv_weight; /* layout rank: [entries] */
    uint8_t *recv_k;    /* layout rank: [entries] */
};

struct ll_host {
    struct algo_host a;
    struct ll_layout l;
    /* Counters for the assignment of places, per expert and, with dedup, per rank. */
    /* [experts + size]: rows of all ranks; next place of this rank's rows */
    uint32_t *sum, *next;
    uint32_t *next_row;     /* [size]: the part of `next` for ranks */
    uint32_t *next_output;  /* [experts], or [size] with dedup */
    struct ll_block *block; /* [size] */
    uint32_t *left;         /* [size]: rows that remain to be put in this phase */
    uint64_t signalled;     /* bit mask of the ranks that a put of this phase has signalled */
    char *scratch;          /* [workers]: one message per worker */
    char *sums;             /* [workers]: a sum of outputs, before it is quantised */
};

struct ll_task {
    struct ll_host *h;
    struct ll_set *set;
    struct epa_moe *m;
    /* combine: writes expert outputs to the place from which peers get them; NULL: experts have
     * written them there */
    void (*make)(void *, uint32_t worker, uint32_t workers);
    uint32_t begin, end; /* range of tokens, rows or experts of this pass */
    uint32_t written;    /* dispatch: number of channels of token 0 that are already in scratch */
    uint64_t wrong;      /* 1 + index of a received row with invalid choices; 0: none */
};

/* Blocks with fewer bytes wait for more rows, unless all tokens are done. */
enum { LL_BLOCK_BYTES = 64 << 10 };

/* Channels of a token, in whole groups, that are quantised before they are stored. Of token 0, so
 * many parts are quantised while routes are in flight. */
enum { LL_PART_CHANNELS = 1024, LL_PARTS_AHEAD = 2 };

/* Returns the first item of a worker; for `worker` + 1 the end of its items. */
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

/* Offset of the arriving messages. */
static inline uint64_t arrival_offset(const struct ll_host *h, const struct ll_set *s)
{
    return h->l.arrival_bytes != 0 ? algo_region(&h->a, &s->s, h->l.arrival_at, h->l.arrival_bytes)
                                   : recv_offset(h, s);
}

/* Offset of the expert outputs for peers. */
static inline uint64_t leave_offset(const struct ll_host *h, const struct ll_set *s)
{
    return h->l.outbox_bytes != 0 ? algo_region(&h->a, &s->s, h->l.outbox_at, h->l.outbox_bytes)
                                  : y_offset(h, s);
}

static inline uint64_t outputs_offset(const struct ll_host *h, const struct ll_set *s)
{
    return algo_region(&h->a, &s->s, h->l.outputs_at, h->l.outputs_bytes);
}

/* Counts of `source`: rows for each expert, then rows for each rank. */
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

/* Counts of contiguous rows: for each rank with dedup, else for each expert. */
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

#endif
