/* Host code that algorithms, above all those for MoE, share: checks of a shape, set-up, buffer
 * sets, puts that retry when the transport has no room, waits for all ranks, phases and their
 * trace, messages of failed stages, and the choice between cached and nontemporal stores.
 *
 * An algorithm's state begins with struct algo_host, and each of its buffer sets begins with struct
 * algo_set:
 *
 *     status = algo_create(&setup, params, &host, err);
 *     ... host points to the algorithm's own struct; algo_alloc() further memory ...
 *     return algo_created(host, out, err);
 *
 * Functions that stages call per row or token are inline. algo_store.c has the choice of stores,
 * algo_host.c all other functions. Only the rank's own thread calls these functions, except where a
 * comment states otherwise. */
#ifndef ALGO_HOST_H
#define ALGO_HOST_H

#include <epa2a/algorithm.h>
#include <epa2a/packets.h>

#include "algo_options.h"

enum { ALGO_PAGE = 4096 };

/* Senders produce this many bytes before they send them, so that production and transfer
 * overlap. */
enum { ALGO_SLICE_BYTES = 256 << 10 };

#define ALGO_NONE UINT32_MAX /* no rank, no row */

/* ---- layouts ---- */

/* Reserves `times` regions of `bytes` each, from the next page boundary after *end, and advances
 * *end. Returns the offset. */
static inline uint64_t algo_place(uint64_t *end, uint64_t bytes, uint32_t times)
{
    uint64_t at = epa_round_up(*end, ALGO_PAGE);

    *end = at + bytes * times;
    return at;
}

/* Returns true if some ranks may be reachable by puts only. */
static inline bool algo_puts(const struct epa_world *world, uint32_t transport_flags)
{
    return world->size > 1 && ((transport_flags & EPA_TRANSPORT_LOAD_STORE) == 0 ||
                               (transport_flags & EPA_TRANSPORT_NODES) != 0);
}

/* Bytes of mirrors on a GPU. A rank collects the data for a rank of another node in a mirror of
 * that rank's heap. Behind the mirrors follow dummy words that replace signals and that no thread
 * reads. */
static inline uint64_t algo_mirrors_bytes(uint64_t heap_bytes, uint32_t signals, uint32_t far)
{
    return far == 0 ? 0 : far * epa_round_up(heap_bytes, ALGO_PAGE) + signals * sizeof(uint64_t);
}

/* Limits of an algorithm. `fp8`: option for rows in FP8, or NULL. `native`: dispatch sends tokens
 * without conversion. `device_experts`: maximum number of experts on GPUs. `device_option` and
 * `host_option`: an option that the user set and that only GPUs, or only hosts, support; or
 * NULL. */
struct algo_limits {
    const char *name;
    uint32_t topk, ranks, device_experts;
    uint32_t device_ranks; /* 0: the limit of the kernels */
    const char *fp8;
    bool native;
    const char *device_option, *host_option;
};

/* Fails, with a message, if the problem exceeds the limits of the host code or of the `device`
 * code. */
enum epa_status algo_check(const struct algo_limits *, const struct epa_moe *,
                           const struct epa_world *, bool device, struct epa_error *);

/* ---- state ---- */

/* State of a buffer set. OPEN: dispatch has filled the set, and combine has not used it yet. FREE:
 * the next dispatch may use the set. An algorithm may define further states. */
enum { ALGO_FREE, ALGO_OPEN };

enum { ALGO_SETS = 3 }; /* maximum number of buffer sets */

struct algo_set {
    uint32_t state, index;
    uint64_t epoch;
    uint32_t *recv_count;  /* [local] */
    uint64_t *recv_start;  /* [local] */
    uint32_t *recv_source; /* [size][local]; for epa_moe.recv_source */
};

/* Measures which way of storing rows is faster. The first dispatches and their combines try each
 * way in two turns of a cycle. */
enum {
    ALGO_WAYS = 3,
    ALGO_TURN = 6,
    ALGO_TRIALS = 2 * ALGO_WAYS * ALGO_TURN, /* per cycle */
    ALGO_CYCLES = 4
};
struct algo_tuner {
    uint32_t ways, way[ALGO_WAYS]; /* the ways under trial; ways 0: the choice is final */
    uint32_t cycles;               /* number of completed cycles */
    uint32_t signal;               /* [ALGO_WAYS][size]: signals with the times of the ranks, per
                                    * way */
    uint64_t first;                /* epoch of the cycle's first trial */
    uint64_t sum[ALGO_WAYS];       /* sum of the times of all ranks over all cycles */
    uint64_t begin_ns;             /* start of the current timed work */
    double ns[2][ALGO_TRIALS];     /* nanoseconds per token of dispatch and of combine, by trial;
                                    * 0: not measured */
};
enum algo_half { ALGO_DISPATCH, ALGO_COMBINE };

struct algo_host {
    struct epa_algorithm base; /* first */
    /* Fields that every call reads are first, in few cache lines. */
    struct epa_transport *t;
    struct epa_backend *backend;
    const struct epa_kernels *kernels;
    struct epa_trace *trace;
    uint64_t heap, timeout_ns, epoch; /* epoch: of the last dispatch */
    uint32_t signal, signals, workers, buffers;
    struct algo_set *set[ALGO_SETS];
    uint16_t *rank_of;               /* [experts] */
    uint32_t far;                    /* number of ranks that loads and stores do not reach */
    enum epa_store store, own_store; /* for memory of peers, and for this rank's own memory */
    bool crowded;                    /* more threads than cores: a waiting thread yields its core */
    bool no_memory;
    struct epa_world world;
    struct { /* the current phase */
        uint64_t begin_ns, bytes;
        uint32_t tokens;
        uint16_t name;
    } note;
    struct { /* for explain() */
        const char *stage, *phase;
        const char *what; /* subject of the wait: "rows" of `peer`, or "row" `row` of `peer` */
        uint32_t peer, row;
        enum epa_status status; /* status, key and awaited ranks that belong to `text` */
        const char *key;
        uint32_t n_awaited, awaited[2];
        char text[200]; /* empty: the transport has failed */
    } last;
    struct algo_tuner tuner;
    const char *name;
    struct epa_wait_observer *observer;
    struct algo_block *memory; /* list of all blocks of algo_alloc() */
};

/* ---- set-up ---- */

struct algo_setup {
    const char *name;
    const struct epa_stage *stages;
    uint32_t n_stages;
    size_t state_bytes, set_bytes; /* sizes of the algorithm's own structs */
    uint32_t buffers, signals;
    uint64_t heap_bytes;
    bool puts; /* the layout supports puts */
};

/* Fills in all of struct algo_host and, for MoE, its sets. The remaining state is 0. */
enum epa_status algo_create(const struct algo_setup *, const struct epa_algorithm_params *,
                            struct algo_host **out, struct epa_error *);

/* Allocates n zeroed elements of `size` bytes, aligned to a cache line. algo_destroy() frees them.
 * After a NULL result algo_created() fails. */
void *algo_alloc(struct algo_host *, size_t n, size_t size);

/* Allocates one message buffer per worker, aligned to a page. */
char *algo_alloc_scratch(struct algo_host *, size_t message_bytes);

/* Last step of a set-up: returns the algorithm in *out, or destroys it after a failed
 * allocation. */
enum epa_status algo_created(struct algo_host *, struct epa_algorithm **out, struct epa_error *);

/* Implements epa_algorithm.destroy: frees the state and all blocks of algo_alloc(). */
void algo_destroy(struct epa_algorithm *);

/* ---- ranks, heaps, workers ---- */

/* Returns the i-th rank of an order that begins with this rank, so that the ranks do not all start
 * at rank 0. */
static inline uint32_t algo_peer(const struct algo_host *h, uint32_t i)
{
    return (h->world.rank + i) % h->world.size;
}

static inline bool algo_reachable(const struct algo_host *h, uint32_t rank)
{
    return rank == h->world.rank || h->t->peer_heap[rank] != NULL;
}

/* Returns the address of `offset` in the heap of a rank that loads and stores reach. */
static inline char *algo_at(const struct algo_host *h, uint32_t rank, uint64_t offset)
{
    return (rank == h->world.rank ? h->t->heap : h->t->peer_heap[rank]) + offset;
}

/* Returns the offset of the set's buffer in a region, from the start of any rank's heap. */
static inline uint64_t algo_region(const struct algo_host *h, const struct algo_set *s, uint64_t at,
                                   uint64_t bytes)
{
    return h->heap + at + bytes * s->index;
}

/* Returns the first of n items that the worker processes. The share ends at the first item of the
 * next worker. */
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

/* Begins a stage and its first phase. */
static inline void algo_begin(struct algo_host *h, const char *stage, const char *phase)
{
    h->last.text[0] = '\0'; /* clear the message of an earlier failed call */
    h->last.n_awaited = 0;
    h->last.stage = stage;
    h->note.begin_ns = epa_trace_now(h->trace);
    algo_name_phase(h, phase);
}

/* Ends the phase. */
static inline void algo_end(struct algo_host *h)
{
    h->note.begin_ns = epa_trace_slice(h->trace, 0, h->note.name, h->note.begin_ns,
                                       EPA_TRACE_NOBODY, h->note.bytes, h->note.tokens);
    h->note.bytes = h->note.tokens = 0;
}

/* Begins the next phase, and returns true, if `status` is EPA_OK. */
static inline bool algo_phase(struct algo_host *h, enum epa_status status, const char *phase)
{
    if (status != EPA_OK)
        return false;
    algo_end(h);
    algo_name_phase(h, phase);
    return true;
}

/* Records the work of one worker since begin_ns, for a phase that several workers share. Called by
 * workers. */
static inline void algo_worked(const struct algo_host *h, uint32_t worker, uint32_t workers,
                               uint64_t begin_ns, uint32_t tokens)
{
    if (workers > 1)
        (void)epa_trace_slice(h->trace, worker, h->note.name, begin_ns, EPA_TRACE_NOBODY, 0,
                              tokens);
}

/* ---- failures ---- */

/* Records the reason of the failure for explain(); returns `status`. */
EPA_PRINTF(3, 4)
enum epa_status algo_fail(struct algo_host *, enum epa_status status, const char *fmt, ...);

/* Names a rank for which the wait that fails now has waited, as epa_awaits(); ALGO_NONE: unknown rank.
 * Returns `h` for algo_fail(). */
struct algo_host *algo_awaits(struct algo_host *h, uint32_t rank);

/* The same for an option that the user must change, as in epa_fail_key(). `key` is a literal. */
EPA_PRINTF(4, 5)
enum epa_status algo_fail_key(struct algo_host *, enum epa_status status, const char *key,
                              const char *fmt, ...);

/* Records that `rank` has no room for `rows` rows; returns the status. */
enum epa_status algo_too_full(struct algo_host *, uint32_t rank, uint64_t rows, uint64_t room);

/* Implements epa_algorithm.explain: reports the message of algo_fail(), or the message of the
 * transport and the subject of the wait. epa_algorithm.wait_describe reports the same for a wait in
 * progress. */
void algo_explain(struct epa_algorithm *, struct epa_error *);

/* ---- puts, signals, waits ---- */

struct algo_room {
    uint64_t begun_ns, waited_ns; /* begin of the wait and its duration; 0 before the first try */
};
/* After a call without room: makes progress until the time limit. Returns true if the caller must
 * repeat the call. */
bool algo_wait_for_room(struct algo_host *, enum epa_status *status, struct algo_room *);

/* After a call to h->last.peer that returns EPA_AGAIN without room: returns true if the caller must
 * repeat the call. */
static inline bool algo_again(struct algo_host *h, enum epa_status *status, struct algo_room *room)
{
    return *status == EPA_AGAIN && algo_wait_for_room(h, status, room);
}

/* Puts `bytes` from `src`, which is in the heap and must not change until quiet. */
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

/* Puts like algo_put(); afterwards the algorithm's signal at `peer` becomes `value`. */
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

/* Puts like algo_put_signal(), or, with 0 bytes, only sets the signal. Its partner is
 * algo_wait_for_all(); the trace has an arrow from here to the wait. */
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

/* Waits until the algorithm's signal reaches `value`. For messages, `what` names the awaited data
 * of row `row` (ALGO_NONE: all rows) of `peer`. */
static inline enum epa_status algo_wait(struct algo_host *h, uint32_t signal, uint64_t value,
                                        const char *what, uint32_t row, uint32_t peer)
{
    h->last.what = what;
    h->last.row = row;
    h->last.peer = peer;
    return epa_wait(h->t, h->signal + signal, value, h->timeout_ns);
}

/* Waits for the signals of other ranks: `first` is the signal of rank 0, and the signals of the
 * other ranks follow. `ranks` is a bit mask of the awaited ranks; ranks from 64 on have no bit and
 * are always awaited. */
enum epa_status algo_wait_for_ranks(struct algo_host *, uint32_t first, uint64_t value,
                                    const char *what, uint64_t ranks);

static inline enum epa_status algo_wait_for_all(struct algo_host *h, uint32_t first, uint64_t value,
                                                const char *what)
{
    return algo_wait_for_ranks(h, first, value, what, UINT64_MAX);
}

/* Polls for data that a rank in reach stores. The caller sets `what`, `peer`, `number` and
 * `wanted`; the other fields begin with 0. */
struct algo_look {
    const char *what; /* subject of the wait, as for algo_wait(), and its rank */
    uint32_t peer, number, turns;
    uint64_t seen, wanted, begun_ns, waited_ns, reported_ns;
};

/* Pauses after an unsuccessful poll. Returns true if the caller must also check the clock and the
 * transport. algo_look_report() then reports the waiting time to the wait observer and in
 * waited_ns. Called by workers. */
bool algo_look_pause(struct algo_host *, struct algo_look *);
void algo_look_report(struct algo_host *, struct algo_look *);
/* Makes both steps, for the rank's own thread. Returns EPA_OK if the caller must poll again; other
 * values mean a time-out or the failure of another rank. */
enum epa_status algo_look_again(struct algo_host *, struct algo_look *);
/* Ends the wait. EPA_OK means that the data has arrived. */
static inline void algo_look_done(struct algo_host *h, const struct algo_look *look,
                                  enum epa_status status)
{
    if (status == EPA_OK)
        epa_wait_clear(h->observer, look->reported_ns);
}

/* ---- passes ---- */

/* State of a parallel pass of the workers and of its early end. Initially 0. */
struct algo_pass {
    uint32_t done, stopped; /* done: number of workers that have ended; stopped: 1 after a
                             * failure, the remaining work is skipped */
    enum epa_status status; /* status of the worker that stopped the pass */
};

/* Ends the pass; returns false if another worker has ended it before. Called by workers. */
static inline bool algo_stop(struct algo_pass *pass, enum epa_status status)
{
    /* Relaxed: the flag carries no data; the end of the pass orders the rest. */
    if (__atomic_exchange_n(&pass->stopped, 1, __ATOMIC_RELAXED) != 0)
        return false;
    pass->status = status;
    return true;
}

static inline bool algo_stopped(const struct algo_pass *pass)
{
    return __atomic_load_n(&pass->stopped, __ATOMIC_RELAXED) != 0;
}

/* Last step of each worker in a pass that waits. Only the rank's own thread may call the transport:
 * this thread drives the transport until all other workers have ended or one has stopped the pass.
 * It calls serve(), or, if NULL, progress. Returns the last status of that call. */
enum epa_status algo_tend(struct algo_host *, struct algo_pass *, uint32_t worker, uint32_t workers,
                          enum epa_status (*serve)(struct algo_host *));

/* ---- buffer sets ---- */

/* Returns the first free set. All ranks make the same calls in the same order, so all choose the
 * same set. With a combine before the next dispatch, one set is used throughout and stays in the
 * cache. Returns NULL after algo_fail() if all sets are open. */
struct algo_set *algo_take_set(struct algo_host *);

/* Returns the set of the oldest dispatch in `state` if its epoch is `epoch`. `in` names the state
 * for messages. Returns NULL after algo_fail() otherwise. */
struct algo_set *algo_set_of(struct algo_host *, uint64_t epoch, uint32_t state, const char *in);

/* Implements epa_algorithm.discard: abandons the last dispatch, without a signal or a wait. */
enum epa_status algo_discard(struct epa_algorithm *, struct epa_problem *);

/* ---- cached or nontemporal stores ---- */

/* Called by workers before the signal for rows that they stored this way. */
static inline void algo_drain(enum epa_store store)
{
    if (store == EPA_STORE_NONTEMPORAL)
        epa_store_drain();
}

#endif
