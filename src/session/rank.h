/* One rank of a session: the state and the functions that its parts share. All functions run in the
 * rank's own thread.
 *
 * `status` and `err` keep the first failure of a rank. After a failure every function below returns
 * without effect, so that a caller of several functions need not check each. */
#ifndef RANK_H
#define RANK_H

#include <stdbool.h>

#include "config/experiment.h"
#include "session/session.h"

struct graphs;    /* rank_graph.c */
struct guard;     /* view.c */
struct view;      /* view.c */
struct rank_stop; /* rank_bench.c */
struct rank_schedule;

/* Slices that the core records in a trace. */
enum rank_slice {
    SLICE_BARRIER,
    SLICE_INPUTS,
    SLICE_BETWEEN,
    SLICE_CHECK,
    SLICE_SYNC,
    RANK_SLICES,
};

struct rank {
    const struct session *session;
    struct session_rank *shared;
    struct epa_bootstrap *boot;
    struct epa_backend *backend;
    struct epa_transport *transport; /* the transport of the algorithm: the opened one or a view */
    struct view *view;               /* the view that `transport` points to; NULL: no view */
    struct guard *guard;             /* NULL: no guard */
    uint64_t heap_at;                /* as in epa_algorithm_params */
    uint32_t signal_at;
    struct epa_algorithm *algorithm;
    struct op_rank *op;
    const struct epa_footprint *footprint; /* footprint of `algorithm` */
    enum epa_status status;                /* first failure, or EPA_OK */
    struct epa_error err;
    /* Stages of the algorithm, and a stage for the experts after each dispatch if they are timed. */
    struct epa_stage stage[SESSION_STAGES];
    uint32_t n_stages;
    struct graphs *graphs;          /* NULL: no graphs */
    struct rank_stop *stop;         /* NULL: bench takes the requested number of samples */
    struct rank_schedule *schedule; /* of an open loop */
    enum bench_clock clock;         /* clock of bench and run */
    uint32_t fault_stage;           /* a planted fault takes effect before this stage */
    bool counts_puts;               /* the iterations of verify are over; puts are counted */
    uint64_t memory_bytes;          /* rank_memory.c; 0: unknown */
    /* Number of stages up to the first stage that is not SEND: the dispatch, or all stages if it is
     * WHOLE. The operation's work between stages follows them. 0: the stages are not the phases of
     * the operation. */
    uint32_t first_stages;
    struct epa_wait_observer observer; /* writes long waits to `shared` */
    struct recorder recorder;          /* used with a profile */
    struct epa_trace *trace;           /* of `recorder`; NULL: no profile */
    uint16_t slice[RANK_SLICES], stage_slice[SESSION_STAGES], units; /* names in the trace */
};

static inline const struct experiment *experiment_of(const struct rank *r)
{
    return r->session->experiment;
}

static inline bool is_kind(const struct rank *r, uint32_t stage, enum epa_stage_kind kind)
{
    return r->stage[stage].kind == kind;
}

/* The problem of a slot. */
static inline struct epa_problem *problem_of(const struct rank *r, uint32_t slot)
{
    return &r->op->slot[slot].problem;
}

/* The kind of the last stage: WHOLE, or the kind that ends an iteration of several stages. */
static inline enum epa_stage_kind last_kind(const struct rank *r)
{
    return r->stage[r->n_stages - 1].kind;
}

/* Publish the position of this rank for observers (status, time-outs). Relaxed: no other data depends
 * on the order. */
void rank_at_stage(struct rank *, uint32_t stage);
void rank_at(struct rank *, uint64_t iteration, uint32_t stage);

/* ---- rank_stages.c ---- */

/* Records a failure and its message unless an earlier failure exists. Returns false. */
EPA_PRINTF(3, 4)
bool rank_fail(struct rank *, enum epa_status, const char *fmt, ...);

/* Fails with the position of `key` in the experiment: "x.yaml:7:12: KEY SENTENCE dispatch, combine;
 * did you mean 'dispatch'?". `want` is the unknown name; `name` lists the n known names. */
EPA_PRINTF(6, 7)
void rank_refuse_name(struct rank *, const char *key, const char *want, const char *const *name,
                      uint32_t n, const char *fmt, ...);

/* Creates the operation and the algorithm over the present `transport`. After rank_destroy() the call
 * may be repeated with another plan. */
void rank_create(struct rank *, const struct epa_footprint *, uint32_t transport_flags);
void rank_destroy(struct rank *);

/* Resets heap and signals to their state after open(). */
void rank_clear_heap(struct rank *);

/* Take the status of a call and, after a failure, the explanation of its owner. The algorithm explains
 * a time-out of its kernels; the backend explains its other failures. Return true without failure. */
bool rank_backend(struct rank *, enum epa_status);
bool rank_algorithm(struct rank *, enum epa_status);
bool rank_transport(struct rank *, enum epa_status);
bool rank_boot(struct rank *, enum epa_status);

static inline bool rank_good(const struct rank *r)
{
    return r->status == EPA_OK;
}

/* Returns true if the rank may begin another iteration. A rank that waits for no peer detects the
 * failure of another rank, or an interrupt by the user, only here. */
bool rank_goes_on(struct rank *);

/* Long waits between rank_waits_begin() and rank_waits_end() appear in `shared`. */
void rank_waits_begin(struct rank *);
void rank_waits_end(struct rank *);

/* Begins the trace record; called before transport and algorithm exist, since both register names.
 * No effect without a profile. */
void rank_trace_begin(struct rank *);
/* Registers the stages and compares the clocks of hosts. Collective; called with the algorithm
 * created. */
void rank_trace_ready(struct rank *);
/* Compares the clocks again. Collective; called after the last iteration of all ranks. */
void rank_trace_end(struct rank *);
/* Discards later events: they belong to no iteration. */
void rank_trace_pause(struct rank *);

/* Runs a stage on the problem of a slot; on a device it only queues the stage. */
void rank_stage(struct rank *, uint32_t stage, uint32_t slot);

/* Waits until all queued work is done. */
void rank_sync(struct rank *);
void rank_barrier(struct rank *);
void rank_mark(struct rank *, uint32_t mark);
void rank_flush(struct rank *); /* caches */
double rank_elapsed(struct rank *, uint32_t from_mark, uint32_t to_mark);

/* Writes the inputs of an iteration and overwrites `out` with invalid values. */
void rank_make(struct rank *, uint32_t slot, uint64_t iteration);
/* Calls rank_make() and adds the bytes of the iteration to the traffic of the rank. */
void rank_inputs(struct rank *, uint32_t slot, uint64_t iteration);

/* Runs the untimed work of the core after a stage, such as synthetic experts after a dispatch. */
void rank_between(struct rank *, uint32_t stage, uint32_t slot);

/* Compares the outputs of a stage of this kind. */
void rank_check(struct rank *, enum epa_stage_kind, uint32_t slot);

/* Compares the outputs of the first phase again after the last stage: they must equal the values that
 * rank_check() read. Collective. */
void rank_check_kept(struct rank *, uint32_t slot);

/* Runs one iteration with a mark before and after each stage. apart: a barrier before and after each
 * stage. check: compares every element after each stage. */
void rank_iteration(struct rank *, uint32_t slot, bool apart, bool check);

/* Times from the marks of the last iteration: of one stage, and of all stages. */
double rank_stage_ns(struct rank *, uint32_t stage);
double rank_total_ns(struct rank *);

/* Fails with EPA_ERR_CONFIG if `expect` names a row that the session does not have. */
void rank_expect_check(struct rank *);

/* ---- rank_bench.c, rank_graph.c: the verbs ---- */

void rank_run(struct rank *);
void rank_bench(struct rank *);
void rank_bench_graph(struct rank *);
void rank_verify(struct rank *);

/* Runs warm-up and samples in blocks of up to `block` iterations: take() runs the `n` iterations from
 * `first` on, either all warm-up or all samples, and stores their times. Returns the number of
 * iterations. */
uint64_t rank_loop(struct rank *, uint32_t block,
                   void (*take)(struct rank *, uint64_t first, uint32_t n));

/* Returns the time of iteration `i` in a row; NULL: the iteration is warm-up. */
double *rank_sample(const struct rank *, uint32_t row, uint64_t i);
void rank_graphs_destroy(struct rank *);

/* ---- view.c: guard. The functions have an effect only if verify.guard or verify.epoch is set. ---- */

bool rank_is_guarded(const struct rank *);
/* Adds the guard areas around the algorithm's part of heap and signals, and sets the offset of the
 * part. */
void rank_guard_room(struct rank *, uint64_t *heap_bytes, uint32_t *signals);
/* Fills the guard areas of the heap; called before the creation of an algorithm with this footprint.
 * All bytes of the heap are 0 before. */
void rank_guard_heap(struct rank *, const struct epa_footprint *);
/* Hashes the inputs of an iteration after they are made, and checks inputs and guard areas at the end
 * of the iteration. */
void rank_guard_inputs(struct rank *, uint32_t slot);
void rank_guard_check(struct rank *, uint32_t slot);
/* Fails with EPA_ERR_UNSUPPORTED if the algorithm ignored verify.epoch. */
void rank_guard_end(struct rank *);

/* ---- view.c: counted ---- */

/* verify, after the last iteration: runs a few more iterations with puts only and compares the bytes
 * put to other ranks with the plan. Collective. */
void rank_count_puts(struct rank *);

/* ---- rank_memory.c ---- */

/* Checks the growth of memory; `iterations` of verify are complete. */
void rank_memory_check(struct rank *, uint64_t iterations);

/* ---- rank_halt.c ---- */

/* Returns true if verify.stop is set. rank_halt() then ends the run, and a barrier of the transport is
 * impossible after it. */
bool rank_is_halted(const struct rank *);
/* Runs the stop of the last rank after the last iteration of verify. Collective. */
void rank_halt(struct rank *);

/* ---- faults ---- */

/* Fails with EPA_ERR_CONFIG if the algorithm does not have the stage of `fault`, or if graphs make a
 * fault impossible. */
void rank_fault_check(struct rank *);

/* Executes the planted fault if it is due before this stage. A fault of kind kill does not return. */
void rank_fault(struct rank *, uint32_t stage);

/* Waits until `end` (epa_now_ns()) or the failure of a rank. Sleeps, except for the last `spin` ns,
 * which it polls. */
void rank_rest(const struct rank *, uint64_t end, uint64_t spin);
/* `spin` for exact times: upper bound of the delay of a sleep. */
enum { RANK_SPIN_NS = 150000 };

/* verify.straggle: delays random ranks, another set before each stage of each iteration. Before every
 * third stage only the last rank is late, by the full time, since among many ranks a random rank is
 * seldom the latest. */
void rank_straggle(const struct rank *, uint64_t iteration, uint32_t stage);

/* ---- rank_bench.c: stop rules ---- */

/* Creates the state of the stop rule before the first iteration of bench; no effect without a rule. */
void rank_stop_create(struct rank *);
void rank_stop_destroy(struct rank *);

/* Returns true if the number of samples is sufficient. All ranks call it between samples, and with
 * `samples` 0 after each block of warm-up, and obtain the same result. */
bool rank_stop_poll(struct rank *, uint64_t samples);

/* Records the present facts of the device. */
void rank_describe_device(struct rank *);

#endif
