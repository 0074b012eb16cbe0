/* State of the host code of token_flag between calls, and the layout of its memory.
 * token_flag_host.c contains the protocol and set-up; token_flag_pass.c contains passes of workers;
 * token_flag_send.c contains dispatch_send; token_flag_recv.c contains dispatch_recv;
 * token_flag_combine.c contains both stages of combine; token_flag_layer.c contains the layer. */
#ifndef TOKEN_FLAG_STATE_H
#define TOKEN_FLAG_STATE_H

#include "token_flag_layout.h"

#include <string.h>

#include "experts/host_experts.h"

#include "../../common/algo_host.h"

/* The last of the four stages that a set has completed. A dispatch may take a set in state FREE. */
enum tf_state {
    TF_FREE = ALGO_FREE,
    TF_SENT = ALGO_OPEN,
    TF_RECEIVED,
    TF_RETURNED,
};

/* Names of trace slices of single tokens and rows, with a profile. */
enum tf_name { TF_SEND_TOKEN, TF_ROW_FROM, TF_OUTPUT_FROM, TF_COUNTS_FROM, TF_NAMES };

/* Rows from a source in the current dispatch: number of rows, number of rows copied, and end of the
 * rows that the next pass copies. */
struct tf_source {
    enum tf_way way; /* how rows of this source reach this rank; constant */
    uint32_t rows, taken, end;
};

struct tf_host {
    struct algo_host a;
    struct tf_layout l;
    bool counted;             /* the counts of the current dispatch have been taken in */
    struct tf_source *source; /* [size] */
    /* Counters of assigned places, which workers increment concurrently: rows at each rank
     * (dispatch_send), and received rows of each source and local expert. */
    uint32_t *sent;  /* [size] */
    uint32_t *taken; /* [size][local] */
    /* Place of the first row of each source among the rows of an expert; [size] is their number. */
    uint32_t *first; /* [size + 1][local] */
    char *scratch;   /* [workers]: one message per worker */
    uint16_t name[TF_NAMES];
    /* A layer. Part n of the tokens is part[n % TF_HOST_SETS] until its combine ends. */
    struct host_experts
        *experts; /* NULL: combine_send computes the experts, or there is no layer */
    struct epa_problem part[TF_HOST_SETS];
    uint32_t at; /* part of the current stage */
};

/* A pass of the workers, which share the struct. */
struct tf_task {
    struct tf_host *h;
    struct algo_set *set;
    struct epa_moe *m;
    uint64_t begin, end;   /* range of tokens or entries of this pass */
    bool counts;           /* worker 0 sends counts before its rows */
    bool resets;           /* worker 0 clears the counters of the other half of dispatch */
    bool waits;            /* rows may not have arrived yet */
    bool arrows;           /* with a profile: arrows of rows end during the copy of rows */
    struct algo_pass pass; /* the stopping worker stores its error in h->a.last */
};

/* Offset of row `row` of `source` at its receiver. */
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

/* Offset of the slot of a flat token at its rank. */
static inline uint64_t slot_offset(const struct tf_host *h, const struct algo_set *s,
                                   uint32_t token, uint32_t k)
{
    return algo_region(&h->a, s, h->l.outputs_at, h->l.outputs_bytes) +
           ((uint64_t)token * h->l.topk + k) * h->l.slot_bytes;
}

/* Counts for `rank` to send. */
static inline uint32_t *reported_to(const struct tf_host *h, uint32_t rank)
{
    char *reported = h->a.t->heap + h->a.heap + h->l.reported_at;

    return (uint32_t *)(void *)reported + (size_t)rank * h->l.count_words;
}

/* Offset of the received counts of `source`. */
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

/* Numbers of trace arrows of single rows and expert outputs. A row has its place at its receiver,
 * an output its token's slot. */
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

/* Records the wait of `worker` for `peer` since begin_ns, which may have been empty. */
static inline void tf_noted(const struct tf_host *h, uint32_t worker, enum tf_name name,
                            uint64_t begin_ns, uint32_t peer, uint32_t arrow, uint64_t epoch)
{
    uint64_t end = epa_trace_slice(h->a.trace, worker, h->name[name], begin_ns, peer, 0, 1);

    epa_trace_flow_end(h->a.trace, worker, begin_ns, end, peer, arrow, epoch);
}

/* Ends a stage that sends. A layer calls quiet() later, so that the experts run while data is in
 * transit. */
static inline enum epa_status tf_end_sends(struct tf_host *h, enum epa_status status)
{
    if (h->l.parts != 0)
        status = status == EPA_OK ? h->a.t->ops->progress(h->a.t) : status;
    else if (algo_phase(&h->a, status, "quiet"))
        status = h->a.t->ops->quiet(h->a.t);
    algo_end(&h->a);
    return status;
}

/* Returns true if the rows and expert outputs of a rank arrive by puts. */
static inline bool is_put(const struct tf_host *h, uint32_t source)
{
    return source != h->a.world.rank && h->source[source].way == TF_PUT;
}

#endif
