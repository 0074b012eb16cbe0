/* The host half that algorithms have in common, those for MoE above all: checks of a shape,
 * set-up, buffer sets, puts that find no room, waits for all ranks, phases and their trace, what a
 * failed stage says, and the choice between cached and nontemporal stores.
 *
 * An algorithm's state begins with struct algo_host, and so does each of its buffer sets with
 * struct algo_set:
 *
 *     status = algo_create(&setup, params, &host, err);
 *     ... host is the algorithm's own struct; algo_alloc() what it needs ...
 *     return algo_created(host, out, err);
 *
 * What stages call for each row or token is inline; the rest is in algo_host.c and, of stores, in
 * algo_store.c. One thread calls, the rank's own, except where a function says otherwise. */
#ifndef ALGO_HOST_H
#define ALGO_HOST_H

#include <epa2a/algorithm.h>
#include <epa2a/packets.h>

#include "algo_options.h"

enum { ALGO_PAGE = 4096 };

/* Of what is put, so many bytes are made before they leave, so that making and sending
 * overlap. */
enum { ALGO_SLICE_BYTES = 256 << 10 };

#define ALGO_NONE UINT32_MAX /* no rank, no row */

/* ---- layouts ---- */

/* The offset of a region of `bytes`, `times` times, on pages of its own, behind *end. */
static inline uint64_t algo_place(uint64_t *end, uint64_t bytes, uint32_t times)
{
    uint64_t at = epa_round_up(*end, ALGO_PAGE);

    *end = at + bytes * times;
    return at;
}

/* Whether some ranks may have to be reached by puts. */
static inline bool algo_puts(const struct epa_world *world, uint32_t transport_flags)
{
    return world->size > 1 && ((transport_flags & EPA_TRANSPORT_LOAD_STORE) == 0 ||
                               (transport_flags & EPA_TRANSPORT_NODES) != 0);
}

/* GPUs: what is put to a rank of another node is put together in a mirror of its heap; behind
 * mirrors are words that nobody reads, in place of signals. */
static inline uint64_t algo_mirrors_bytes(uint64_t heap_bytes, uint32_t signals, uint32_t far)
{
    return far == 0 ? 0 : far * epa_round_up(heap_bytes, ALGO_PAGE) + signals * sizeof(uint64_t);
}

/* What an algorithm takes of a problem. fp8: the option that asks for rows in FP8, or NULL;
 * native: dispatch sends tokens as they are. On GPUs: how many experts; and of the options that
 * were set, one that is for GPUs alone and one that is for hosts alone, or NULL. */
struct algo_limits {
    const char *name;
    uint32_t topk, ranks, device_experts;
    uint32_t device_ranks; /* 0: as many as kernels know */
    const char *fp8;
    bool native;
    const char *device_option, *host_option;
};

/* Refuses, in a sentence, what is beyond the limits: for host code, or `device` code. */
enum epa_status algo_check(const struct algo_limits *, const struct epa_moe *,
                           const struct epa_world *, bool device, struct epa_error *);

/* ---- state ---- */

/* What a dispatch leaves for its combine. FREE: the next dispatch may take it. An algorithm
 * may have more states than these. */
enum { ALGO_FREE, ALGO_OPEN };

struct algo_set {
    uint32_t state, index;
    uint64_t epoch;
    uint32_t *recv_count; /* [local] */
    uint64_t *recv_start; /* [local] */
};

/* Which way of storing rows is faster here, tried out by the first dispatches and their combines,
 * each way in two turns of a cycle. */
enum {
    ALGO_WAYS = 3,
    ALGO_TURN = 6,
    ALGO_TRIALS = 2 * ALGO_WAYS * ALGO_TURN, /* of a cycle */
    ALGO_CYCLES = 4
};
struct algo_tuner {
    uint32_t ways, way[ALGO_WAYS]; /* that are tried; 0: it is settled */
    uint32_t cycles;               /* of trials that have ended */
    uint32_t signal;               /* [ALGO_WAYS][size]: what ranks say of each way */
    uint64_t first;                /* epoch of the cycle's first trial */
    uint64_t sum[ALGO_WAYS];       /* of the times of all ranks in all cycles */
    uint64_t begin_ns;             /* of the work that is timed */
    double ns[2][ALGO_TRIALS];     /* a token, of dispatch and of combine, by trial; 0: not timed */
};
enum algo_half { ALGO_DISPATCH, ALGO_COMBINE };

struct algo_host {
    struct epa_algorithm base; /* first */
    /* What each call reads comes first, in few cache lines. */
    struct epa_transport *t;
    struct epa_backend *backend;
    const struct epa_kernels *kernels;
    struct epa_trace *trace;
    uint64_t heap, timeout_ns, epoch; /* epoch: of the last dispatch */
    uint32_t signal, signals, workers, buffers;
    struct algo_set *set[2];
    uint16_t *rank_of;               /* [experts] */
    uint32_t far;                    /* ranks that loads and stores do not reach */
    enum epa_store store, own_store; /* to memory of peers, and to this rank's own */
    bool crowded;                    /* more threads than cores: who waits lets another run */
    bool no_memory;
    struct epa_world world;
    struct { /* of the phase */
        uint64_t begin_ns, bytes;
        uint32_t tokens;
        uint16_t name;
    } note;
    struct { /* for explain() */
        const char *stage, *phase;
        const char *what; /* is waited for: "rows" of `peer`, or "row" `row` of it */
        uint32_t peer, row;
        enum epa_status status; /* of `text` */
        char text[200];         /* empty: it was the transport that failed */
    } last;
    struct algo_tuner tuner;
    const char *name;
    struct epa_wait_observer *observer;
    struct algo_block *memory; /* all that algo_alloc() gave */
};

/* ---- set-up ---- */

struct algo_setup {
    const char *name;
    const struct epa_stage *stages;
    uint32_t n_stages;
    size_t state_bytes, set_bytes; /* of the algorithm's own structs */
    uint32_t buffers, signals;
    uint64_t heap_bytes;
    bool puts; /* the layout has what puts need */
};

/* Fills in all of struct algo_host and, of MoE, its sets; the rest of the state is 0. */
enum epa_status algo_create(const struct algo_setup *, const struct epa_algorithm_params *,
                            struct algo_host **out, struct epa_error *);

/* [n] of `size` bytes, zeros, at the start of a line, until the algorithm is destroyed. NULL:
 * algo_created() fails. */
void *algo_alloc(struct algo_host *, size_t n, size_t size);

/* A message for each worker, at the start of a page. */
char *algo_alloc_scratch(struct algo_host *, size_t message_bytes);

/* The end of a set-up: gives the algorithm out, or destroys it for want of memory. */
enum epa_status algo_created(struct algo_host *, struct epa_algorithm **out, struct epa_error *);

/* epa_algorithm.destroy; frees the state and all that was allocated for it. */
void algo_destroy(struct epa_algorithm *);

/* ---- ranks, heaps, workers ---- */

/* All ranks in turn, beginning with this one, so that not all start at rank 0. */
static inline uint32_t algo_peer(const struct algo_host *h, uint32_t i)
{
    return (h->world.rank + i) % h->world.size;
}

static inline bool algo_reachable(const struct algo_host *h, uint32_t rank)
{
    return rank == h->world.rank || h->t->peer_heap[rank] != NULL;
}

/* At a rank that loads and stores reach. */
static inline char *algo_at(const struct algo_host *h, uint32_t rank, uint64_t offset)
{
    return (rank == h->world.rank ? h->t->heap : h->t->peer_heap[rank]) + offset;
}

/* Offset of a region's buffer for a set, from the start of any rank's heap. */
static inline uint64_t algo_region(const struct algo_host *h, const struct algo_set *s, uint64_t at,
                                   uint64_t bytes)
{
    return h->heap + at + bytes * s->index;
}

/* The first of what a worker does of n; of the worker after it: the end. */
static inline uint32_t algo_share(uint32_t n, uint32_t worker, uint32_t workers)
{
    return (uint32_t)((uint64_t)n * worker / workers);
}

static inline enum epa_status algo_parallel(struct algo_host *h,
                                            void (*fn)(void *, uint32_t, uint32_t), void *arg)
{
    return h->backend->ops->parallel(h->backend, fn, arg);
}

/* ---- phases ---- */

static inline void algo_name_phase(struct algo_host *h, const char *phase)
{
    h->last.phase = phase;
    h->note.name = epa_trace_name(h->trace, phase);
}

/* A stage begins, with this phase. */
static inline void algo_begin(struct algo_host *h, const char *stage, const char *phase)
{
    h->last.text[0] = '\0'; /* of a call that was refused before */
    h->last.stage = stage;
    h->note.begin_ns = epa_trace_now(h->trace);
    algo_name_phase(h, phase);
}

/* The phase ends. */
static inline void algo_end(struct algo_host *h)
{
    h->note.begin_ns = epa_trace_slice(h->trace, 0, h->note.name, h->note.begin_ns,
                                       EPA_TRACE_NOBODY, h->note.bytes, h->note.tokens);
    h->note.bytes = h->note.tokens = 0;
}

/* Another phase begins if all is well so far; true if so. */
static inline bool algo_phase(struct algo_host *h, enum epa_status status, const char *phase)
{
    if (status != EPA_OK)
        return false;
    algo_end(h);
    algo_name_phase(h, phase);
    return true;
}

/* Of a phase that several workers share each notes what it did, since begin_ns. For workers. */
static inline void algo_worked(const struct algo_host *h, uint32_t worker, uint32_t workers,
                               uint64_t begin_ns, uint32_t tokens)
{
    if (workers > 1)
        (void)epa_trace_slice(h->trace, worker, h->note.name, begin_ns, EPA_TRACE_NOBODY, 0,
                              tokens);
}

/* ---- failures ---- */

/* Notes why the stage fails, for explain(); returns `status`. */
EPA_PRINTF(3, 4)
enum epa_status algo_fail(struct algo_host *, enum epa_status status, const char *fmt, ...);

/* The same of a rank that has no room for what it would receive. */
enum epa_status algo_too_full(struct algo_host *, uint32_t rank, uint64_t rows, uint64_t room);

/* epa_algorithm.explain: what algo_fail() noted, or the transport's words and what was
 * waited for. epa_algorithm.awaits: the same of a wait that goes on. */
void algo_explain(struct epa_algorithm *, struct epa_error *);

/* ---- puts, signals, waits ---- */

/* Where a call found no room: progress, until the time-out; true: it must be made again. */
struct algo_room {
    uint64_t begun_ns, waited_ns; /* 0 before the first try */
};
bool algo_wait_for_room(struct algo_host *, enum epa_status *status, struct algo_room *);

/* After a call to h->last.peer that may have had no room (EPA_AGAIN): true if it must be made
 * again. */
static inline bool algo_again(struct algo_host *h, enum epa_status *status, struct algo_room *room)
{
    return *status == EPA_AGAIN && algo_wait_for_room(h, status, room);
}

/* `src` is in the heap and stays as it is until quiet. */
static inline enum epa_status algo_put(struct algo_host *h, uint64_t dst, const void *src,
                                       size_t bytes, uint32_t peer)
{
    enum epa_status status;
    struct algo_room room = {0, 0};

    h->last.peer = peer;
    do {
        status = epa_put(h->t, dst, src, bytes, peer);
    } while (algo_again(h, &status, &room));
    return status;
}

/* The same; the algorithm's signal becomes `value` at peer after it. */
static inline enum epa_status algo_put_signal(struct algo_host *h, uint64_t dst, const void *src,
                                              size_t bytes, uint32_t signal, uint64_t value,
                                              uint32_t peer)
{
    enum epa_status status;
    struct algo_room room = {0, 0};

    h->last.peer = peer;
    do {
        status = epa_put_signal(h->t, dst, src, bytes, h->signal + signal, value, peer);
    } while (algo_again(h, &status, &room));
    return status;
}

/* The same, or without bytes the signal alone. Its partner is algo_wait_for_all(): the trace
 * has an arrow from here to there. */
static inline enum epa_status algo_signal(struct algo_host *h, uint64_t dst, const void *src,
                                          size_t bytes, uint32_t signal, uint64_t value,
                                          uint32_t peer)
{
    uint32_t word = h->signal + signal;
    enum epa_status status;
    struct algo_room room = {0, 0};

    epa_trace_flow_begin(h->trace, 0, peer, word, value);
    if (bytes != 0)
        return algo_put_signal(h, dst, src, bytes, signal, value, peer);
    h->last.peer = peer;
    do {
        status = h->t->ops->signal(h->t, word, value, EPA_SIGNAL_SET, peer);
    } while (algo_again(h, &status, &room));
    return status;
}

/* Until the algorithm's signal has reached `value`; `what` it says, of row `row` (ALGO_NONE:
 * of all) of `peer`. */
static inline enum epa_status algo_wait(struct algo_host *h, uint32_t signal, uint64_t value,
                                        const char *what, uint32_t row, uint32_t peer)
{
    h->last.what = what;
    h->last.row = row;
    h->last.peer = peer;
    return epa_wait(h->t, h->signal + signal, value, h->timeout_ns);
}

/* For the signals of other ranks: `first` is rank 0's, and the others' follow it. ranks: those to
 * wait for, a bit each; those that have none, from 64 on, are all waited for. */
enum epa_status algo_wait_for_ranks(struct algo_host *, uint32_t first, uint64_t value,
                                    const char *what, uint64_t ranks);

static inline enum epa_status algo_wait_for_all(struct algo_host *h, uint32_t first, uint64_t value,
                                                const char *what)
{
    return algo_wait_for_ranks(h, first, value, what, UINT64_MAX);
}

/* A wait for what a rank in reach stores, by looking at it; the rest begins with 0. */
struct algo_look {
    const char *what; /* is waited for, of `peer`; as for algo_wait() */
    uint32_t peer, number, turns;
    uint64_t seen, wanted, begun_ns, waited_ns, reported_ns;
};

/* For workers. After a look in vain: pauses; true: it is time for the clock and the transport, too:
 * then algo_look_report() says how long it has waited, to who watches and in waited_ns. */
bool algo_look_pause(struct algo_host *, struct algo_look *);
void algo_look_report(struct algo_host *, struct algo_look *);
/* All of that, for the rank's own thread. EPA_OK: look again; or the time is over, or another rank
 * has failed. */
enum epa_status algo_look_again(struct algo_host *, struct algo_look *);
/* It has arrived, if status is EPA_OK. */
static inline void algo_look_done(struct algo_host *h, const struct algo_look *look,
                                  enum epa_status status)
{
    if (status == EPA_OK)
        epa_wait_clear(h->observer, look->reported_ns);
}

/* ---- passes ---- */

/* What workers do together, and what ends it early. All 0 at first. */
struct algo_pass {
    uint32_t done, stopped; /* workers that have ended; one has failed: the rest is left undone */
    enum epa_status status; /* of who stopped it */
};

/* For workers: ends the pass; false: another was first. */
static inline bool algo_stop(struct algo_pass *pass, enum epa_status status)
{
    /* Relaxed: it only says that all is over; the end of the pass carries the rest. */
    if (__atomic_exchange_n(&pass->stopped, 1, __ATOMIC_RELAXED) != 0)
        return false;
    pass->status = status;
    return true;
}

static inline bool algo_stopped(const struct algo_pass *pass)
{
    return __atomic_load_n(&pass->stopped, __ATOMIC_RELAXED) != 0;
}

/* The last that a worker does in a pass that waits: the rank's own thread, which alone may call
 * the transport, keeps it going until the others are done, or one has stopped the pass; by serve(),
 * or NULL: by progress alone. Returns what that did last. */
enum epa_status algo_tend(struct algo_host *, struct algo_pass *, uint32_t worker, uint32_t workers,
                          enum epa_status (*serve)(struct algo_host *));

/* ---- buffer sets ---- */

/* Every rank makes the same calls in the same order, so all take the same set. The first that
 * is free: who combines before the next dispatch stays in one set, and in the cache. NULL,
 * and algo_fail() was called: all are open. */
struct algo_set *algo_take_set(struct algo_host *);

/* The set of the oldest dispatch in `state`, which people call `in`, if its epoch is this;
 * NULL, and algo_fail() was called: it is not. */
struct algo_set *algo_set_of(struct algo_host *, uint64_t epoch, uint32_t state, const char *in);

/* epa_algorithm.discard: gives the last dispatch up. No signal, no wait. */
enum epa_status algo_discard(struct epa_algorithm *, struct epa_problem *);

/* ---- cached or nontemporal stores ---- */

/* Rows that no last level cache holds are stored past it; below that it is tried out. bytes: of the
 * rows that a token of each rank becomes; stores: enum algo_nontemporal. own: own_store is used,
 * and may be another. signal: the first of ALGO_WAYS * size of the algorithm's signals. */
void algo_choose_store(struct algo_host *, int stores, double bytes, bool own, uint32_t signal);

/* Which store is faster depends on the machine and on what else is in its caches, which no size
 * tells. What dispatch stores also decides what combine finds in which cache, so the two are timed
 * together. The first dispatches and their combines take turns, the same on all ranks by their
 * epoch; after each cycle the ranks of a node send each other their times, and all go on with the
 * ways that are near the least sum, until one is left or ALGO_CYCLES have ended. Sets both stores
 * for a stage of dispatch `epoch`; the dispatch after a cycle waits for the ranks of this node,
 * which must be on their way to the same call. */
enum epa_status algo_set_store(struct algo_host *, uint64_t epoch);
/* What a stage does between them is timed, if it has to be; it may be several times. Waits for
 * other ranks stay outside. */
void algo_begin_work(struct algo_host *);
void algo_end_work(struct algo_host *, uint64_t epoch, enum algo_half, uint32_t tokens);

/* For workers, before what they stored this way is signalled. */
static inline void algo_drain(enum epa_store store)
{
    if (store == EPA_STORE_NONTEMPORAL)
        epa_store_drain();
}

#endif
