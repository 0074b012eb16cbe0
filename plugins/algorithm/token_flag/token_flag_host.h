/* What the host code of token_flag keeps between calls, and where things are.
 * token_flag_host.c: the protocol, passes of workers, dispatch and set-up;
 * token_flag_combine.c. */
#ifndef TOKEN_FLAG_HOST_H
#define TOKEN_FLAG_HOST_H

#include "token_flag.h"

#include <string.h>

#include "../../common/algo_host.h"

/* The calls that an iteration has made of its four; the next dispatch may take a set that is
 * FREE. */
enum tf_state {
    TF_FREE = ALGO_FREE,
    TF_SENT = ALGO_OPEN,
    TF_RECEIVED,
    TF_RETURNED,
};

/* Of slices of single tokens and rows, with a profile. */
enum tf_name { TF_SEND_TOKEN, TF_ROW_FROM, TF_OUTPUT_FROM, TF_COUNTS_FROM, TF_NAMES };

/* Rows from one source of the dispatch that is under way: how many there are, how many of
 * these are taken in, and which are to be now. */
struct tf_source {
    enum tf_way way; /* how it reaches this rank, which holds for good */
    uint32_t rows, taken, end;
};

struct tf_host {
    struct algo_host a;
    struct tf_layout l;
    bool counted;             /* the counts of the dispatch under way have been taken */
    struct tf_source *source; /* [size] */
    /* The counters. Rows given a place so far: at each rank, by dispatch_send; among those of
     * each expert of this rank, by what takes rows in. Workers add to them at once. */
    uint32_t *sent;  /* [size] */
    uint32_t *taken; /* [local] */
    char *scratch;   /* [workers] messages, each a worker's own */
    uint16_t name[TF_NAMES];
};

/* What workers do together: one struct for all of a pass. */
struct tf_task {
    struct tf_host *h;
    struct algo_set *set;
    struct epa_moe *m;
    uint64_t begin, end;   /* what is done now: tokens, or entries */
    bool counts;           /* the first worker sends counts of rows before its own rows */
    bool resets;           /* and clears the counters that the other half of dispatch uses */
    bool waits;            /* what is read may not have arrived yet */
    bool arrows;           /* with a profile: those of rows end as rows are copied */
    struct algo_pass pass; /* who stopped it says why in h->a.last */
};

/* Row `row` of `source` at whoever receives it. */
static inline uint64_t comm_offset(const struct tf_host *h, const struct algo_set *s,
                                   uint32_t source, uint32_t row)
{
    return algo_region(&h->a, s, h->l.comm_at, h->l.comm_bytes) +
           ((uint64_t)source * h->l.source_rows + row) * h->l.message_bytes;
}

static inline uint64_t grouped_offset(const struct tf_host *h, const struct algo_set *s)
{
    return algo_region(&h->a, s, h->l.grouped_at, h->l.grouped_bytes);
}

static inline uint64_t y_offset(const struct tf_host *h, const struct algo_set *s)
{
    return algo_region(&h->a, s, h->l.y_at, h->l.y_bytes);
}

/* The slot of a flat token at its rank. */
static inline uint64_t slot_offset(const struct tf_host *h, const struct algo_set *s,
                                   uint32_t token, uint32_t k)
{
    return algo_region(&h->a, s, h->l.outputs_at, h->l.outputs_bytes) +
           ((uint64_t)token * h->l.topk + k) * h->l.slot_bytes;
}

/* Counts for `rank`, before they are sent. */
static inline uint32_t *reported_to(const struct tf_host *h, uint32_t rank)
{
    char *reported = h->a.t->heap + h->a.heap + h->l.reported_at;

    return (uint32_t *)(void *)reported + (size_t)rank * h->l.count_words;
}

/* Where the counts of `source` arrive. */
static inline uint64_t counts_offset(const struct tf_host *h, uint64_t epoch, uint32_t source)
{
    return h->a.heap + h->l.counts_at + epoch % 2 * h->l.counts_bytes +
           (uint64_t)source * h->l.count_words * sizeof(uint32_t);
}

static inline struct tf_meta *meta_of(const struct tf_host *h, char *msg)
{
    return (struct tf_meta *)(void *)(msg + h->l.meta_at);
}

static inline uint64_t *flag_of_slot(const struct tf_host *h, char *slot)
{
    return (uint64_t *)(void *)(slot + h->l.slot_bytes - TF_FLAG_BYTES);
}

/* Arrows of single rows and expert outputs, which have a signal or a flag each: the row's place at
 * its receiver; and the token's slot at its rank. */
static inline uint32_t row_arrow(const struct tf_host *h, const struct algo_set *s, uint32_t row)
{
    return EPA_TRACE_FLAGS + s->index * h->l.source_rows + row;
}

static inline uint32_t output_arrow(const struct tf_host *h, const struct algo_set *s,
                                    uint32_t token, uint32_t k)
{
    return EPA_TRACE_FLAGS + h->l.buffers * h->l.source_rows +
           (s->index * h->l.max_tokens + token) * h->l.topk + k;
}

/* `worker` waited for `peer` since begin_ns, or found what it wanted. */
static inline void tf_noted(const struct tf_host *h, uint32_t worker, enum tf_name name,
                            uint64_t begin_ns, uint32_t peer, uint32_t arrow, uint64_t epoch)
{
    uint64_t end = epa_trace_slice(h->a.trace, worker, h->name[name], begin_ns, peer, 0, 1);

    epa_trace_flow_end(h->a.trace, worker, begin_ns, end, peer, arrow, epoch);
}

/* Whether the rows and expert outputs of a rank arrive by puts. */
static inline bool is_put(const struct tf_host *h, uint32_t source)
{
    return source != h->a.world.rank && h->source[source].way == TF_PUT;
}

/* Runs fn on all workers; what stopped one of them is what it returns. */
enum epa_status tf_run_pass(struct tf_task *,
                            void (*fn)(void *, uint32_t worker, uint32_t workers));
/* For workers. Until a flag in this heap has reached the set's epoch; false: the pass is to end.
 * What the flag vouches for can be read then. Names what of whom it waits for. */
bool tf_await_flag(struct tf_task *, const uint64_t *flag, uint32_t worker, const char *what,
                   uint32_t peer, uint32_t row);
/* Ends the pass with a failure: of what, from which rank; false: another was first. */
bool tf_stop_pass(struct tf_task *task, enum epa_status status, const char *what, uint32_t peer,
                  uint32_t row);

/* The last that a worker does in a pass that waits. */
void tf_tend(struct tf_task *, uint32_t worker, uint32_t workers);

/* What has arrived so far of the dispatch under way, without a wait. */
enum epa_status tf_take_some(struct tf_host *, struct algo_set *, struct epa_moe *);

enum epa_status tf_dispatch_recv(struct epa_algorithm *, struct epa_problem *);
enum epa_status tf_combine_send(struct epa_algorithm *, struct epa_problem *);
enum epa_status tf_combine_recv(struct epa_algorithm *, struct epa_problem *);

#endif
