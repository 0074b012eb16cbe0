/* What token_flag keeps between calls, and the small things that its parts share: where
 * things are, who is reachable. Parts: token_flag_host.c (set-up, waits, puts),
 * token_flag_send.c and token_flag_receive.c (dispatch), token_flag_combine.c. */
#ifndef TOKEN_FLAG_HOST_H
#define TOKEN_FLAG_HOST_H

#include "token_flag.h"
#include "epa2a/quant.h"

/* The calls that an iteration has made of its four; the next dispatch may take a set that is
 * FREE. */
enum tf_state { TF_FREE, TF_SENT, TF_RECEIVED, TF_ANSWERED };

/* What a dispatch leaves for its combine, and the views it hands out. */
struct tf_set {
    enum tf_state state;
    uint64_t epoch;
    uint32_t *recv_count; /* [local] */
    uint64_t *recv_start; /* [local] */
};

/* Rows from one source of the dispatch that is under way: how many there are, how many of
 * these are taken in, and which are to be now. */
struct tf_source {
    enum tf_way way; /* how it reaches this rank, which holds for good */
    uint32_t rows, taken, end;
};

struct tf_host {
    struct epa_algorithm base;
    struct tf_layout l;
    struct epa_world world;
    struct epa_transport *t;
    struct epa_backend *backend;
    struct epa_wait_observer *observer;
    const struct epa_kernels *kernels;
    enum epa_store store;
    uint64_t heap, timeout_ns, epoch;
    uint32_t signal, workers;
    bool crowded; /* more threads than cores: who waits lets another run */
    struct tf_set set[2];
    bool counted;             /* the counts of the dispatch under way have been taken */
    struct tf_source *source; /* [size] */
    uint16_t *rank_of;        /* [experts] */
    /* The counters. Rows given a place so far: at each rank, by dispatch_send; among those of
     * each expert of this rank, by what takes rows in. Workers add to them at once. */
    uint32_t *sent;  /* [size] */
    uint32_t *taken; /* [local] */
    char *scratch;   /* [workers] messages, each a worker's own */
    uint32_t far;    /* ranks that loads and stores do not reach */
    struct {         /* for explain() */
        const char *stage, *phase, *what;
        uint32_t peer, row; /* of `what` */
        enum epa_status status;
        char text[200]; /* empty: it was the transport that failed */
    } last;
};

/* What workers do together: one struct for all of a pass. */
struct tf_task {
    struct tf_host *h;
    struct tf_set *set;
    struct epa_moe *m;
    uint64_t begin, end; /* what is done now: tokens, or entries */
    bool tells;    /* the first worker counts rows and tells, before it sends its own */
    bool resets;   /* and clears the counters that the other half of dispatch uses */
    bool waits;    /* what is read may not have come yet */
    uint32_t done; /* workers that have ended */
    uint32_t stop; /* one has failed: the rest is left undone */
    enum epa_status status; /* who stopped, says why in h->last */
};

/* Of what is put, so many bytes are made before they leave, so that making and sending
 * overlap. */
enum { TF_SLICE_BYTES = 256 << 10 };

static inline struct tf_host *host_of(struct epa_algorithm *a)
{
    return (struct tf_host *)a; /* base is the first member */
}

/* Names the phase that begins if all is well so far; true if so. */
static inline bool tf_phase(struct tf_host *h, enum epa_status status, const char *name)
{
    if (status == EPA_OK)
        h->last.phase = name;
    return status == EPA_OK;
}

static inline uint32_t set_number(const struct tf_host *h, const struct tf_set *s)
{
    return (uint32_t)(s - h->set);
}

static inline uint64_t region(const struct tf_host *h, const struct tf_set *s, uint64_t at,
                              uint64_t bytes)
{
    return h->heap + at + bytes * set_number(h, s);
}

/* Row `row` of `source` at whoever receives it. */
static inline uint64_t comm_offset(const struct tf_host *h, const struct tf_set *s,
                                   uint32_t source, uint32_t row)
{
    return region(h, s, h->l.comm_at, h->l.comm_bytes) +
           ((uint64_t)source * h->l.source_rows + row) * h->l.message_bytes;
}

static inline uint64_t grouped_offset(const struct tf_host *h, const struct tf_set *s)
{
    return region(h, s, h->l.grouped_at, h->l.grouped_bytes);
}

static inline uint64_t y_offset(const struct tf_host *h, const struct tf_set *s)
{
    return region(h, s, h->l.y_at, h->l.y_bytes);
}

/* The slot of a flat token at its rank. */
static inline uint64_t slot_offset(const struct tf_host *h, const struct tf_set *s,
                                   uint32_t token, uint32_t k)
{
    return region(h, s, h->l.outputs_at, h->l.outputs_bytes) +
           ((uint64_t)token * h->l.topk + k) * h->l.slot_bytes;
}

/* What this rank tells `rank`, before it leaves. */
static inline uint32_t *reported_to(const struct tf_host *h, uint32_t rank)
{
    char *reported = h->t->heap + h->heap + h->l.reported_at;

    return (uint32_t *)(void *)reported + (size_t)rank * h->l.count_words;
}

/* Where what `source` tells arrives. */
static inline uint64_t counts_offset(const struct tf_host *h, uint64_t epoch,
                                     uint32_t source)
{
    return h->heap + h->l.counts_at + epoch % 2 * h->l.counts_bytes +
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

/* Everybody in turn, beginning with this rank, so that not all start at rank 0. */
static inline uint32_t peer_at(const struct tf_host *h, uint32_t i)
{
    return (h->world.rank + i) % h->l.size;
}

static inline bool reachable(const struct tf_host *h, uint32_t rank)
{
    return rank == h->world.rank || h->t->peer_heap[rank] != NULL;
}

static inline char *heap_at(const struct tf_host *h, uint32_t rank, uint64_t offset)
{
    return (rank == h->world.rank ? h->t->heap : h->t->peer_heap[rank]) + offset;
}

/* Notes why the stage fails, for explain(); returns `status`. */
EPA_PRINTF(3, 4)
enum epa_status tf_fail(struct tf_host *, enum epa_status status, const char *fmt, ...);

/* Runs fn on all workers; what stopped one of them is what it returns. */
enum epa_status tf_parallel(struct tf_task *,
                            void (*fn)(void *, uint32_t worker, uint32_t workers));

/* For workers. Ends the pass: `status` came of what of whom; false: another was first. */
bool tf_stop(struct tf_task *, enum epa_status status, const char *what, uint32_t peer,
             uint32_t row);
/* Until a flag in this heap has come to the set's epoch; false: the pass is to end. What the
 * flag vouches for can be read then. Names what of whom it waits for. */
bool tf_await(struct tf_task *, const uint64_t *flag, uint32_t worker, const char *what,
              uint32_t peer, uint32_t row);
/* The last that a worker does in a pass that waits: the rank's own thread, which alone may
 * call the transport, keeps it going while others wait. */
void tf_tend(struct tf_task *, uint32_t worker, uint32_t workers);

/* Until this rank's signal has come that far; names what of whom it waits for. */
enum epa_status tf_wait(struct tf_host *, uint32_t signal, uint64_t value, const char *what,
                        uint32_t peer, uint32_t row);

/* Puts, and waits for room; `src` is in the heap and stays until quiet. */
enum epa_status tf_put(struct tf_host *, uint64_t dst, const void *src, uint64_t bytes,
                       uint32_t peer);
enum epa_status tf_put_signal(struct tf_host *, uint64_t dst, const void *src,
                              uint64_t bytes, uint32_t signal, uint64_t value,
                              uint32_t peer);

/* The set of the oldest dispatch that has come to `state`, if its epoch is this; NULL, and
 * said why: it is not. */
struct tf_set *tf_set_of(struct tf_host *, uint64_t epoch, enum tf_state state);

/* token_flag_receive.c: what has come so far of the dispatch under way, without a wait. */
enum epa_status tf_take_some(struct tf_host *, struct tf_set *, struct epa_moe *);

enum epa_status tf_dispatch_send(struct epa_algorithm *, struct epa_problem *);
enum epa_status tf_dispatch_recv(struct epa_algorithm *, struct epa_problem *);
enum epa_status tf_combine_send(struct epa_algorithm *, struct epa_problem *);
enum epa_status tf_combine_recv(struct epa_algorithm *, struct epa_problem *);

#endif
