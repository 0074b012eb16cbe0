/* One rank of a session: what its parts share. All that is here runs in the rank's own thread.
 *
 * The first failure of a rank stays, with its reason, in `status` and `err`: after it no function
 * below does anything, so that who calls several of them need not look in between. */
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

/* What the core itself notes in a trace. */
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
    struct epa_transport *transport; /* as the algorithm is given it */
    struct view *view;   /* `transport`, where that is one; NULL: it is what was opened */
    struct guard *guard; /* NULL: nothing is guarded */
    uint64_t heap_at;    /* as in epa_algorithm_params */
    uint32_t signal_at;
    struct epa_algorithm *algorithm;
    struct op_rank *op;
    const struct epa_footprint *footprint; /* of the algorithm as it was created */
    enum epa_status status;                /* of what was done so far */
    struct epa_error err;
    /* The algorithm's, with one for the experts after each dispatch where those are timed. */
    struct epa_stage stage[SESSION_STAGES];
    uint32_t n_stages;
    struct graphs *graphs;          /* NULL: none were made */
    struct rank_stop *stop;         /* NULL: bench takes as many samples as were asked for */
    struct rank_schedule *schedule; /* of an open loop */
    enum bench_clock clock;         /* that bench and run use */
    uint32_t fault_stage;           /* before which a planted fault strikes */
    bool counts_puts;               /* iterations of verify are over */
    uint64_t memory_bytes;          /* rank_memory.c; 0: not known */
    /* Stages up to the first that is no SEND: the dispatch, or all there are where it is
     * WHOLE. What the operation does between stages comes after it. 0: the list is of
     * another kind. */
    uint32_t first_stages;
    struct epa_wait_observer observer; /* of long waits: writes to `shared` */
    struct recorder recorder;          /* where somebody profiles */
    struct epa_trace *trace;           /* of it; NULL: nobody does */
    uint16_t slice[RANK_SLICES], stage_slice[SESSION_STAGES], units; /* names in it */
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

/* The kind of the last stage: WHOLE, or what ends an iteration in several. */
static inline enum epa_stage_kind last_kind(const struct rank *r)
{
    return r->stage[r->n_stages - 1].kind;
}

/* Where this rank is, for whoever looks from outside; nothing hangs on its order. */
void rank_at_stage(struct rank *, uint32_t stage);
void rank_at(struct rank *, uint64_t iteration, uint32_t stage);

/* ---- rank_stages.c ---- */

/* The first failure, with its reason. Returns false. */
EPA_PRINTF(3, 4)
bool rank_fail(struct rank *, enum epa_status, const char *fmt, ...);

/* Of what the experiment says at `key`: "x.yaml:7:12: KEY SENTENCE dispatch, combine; did you mean
 * 'dispatch'?". `want` is none of the n names. */
EPA_PRINTF(6, 7)
void rank_refuse_name(struct rank *, const char *key, const char *want, const char *const *name,
                      uint32_t n, const char *fmt, ...);

/* The operation and the algorithm, over `transport` as it is; with both gone, that again with
 * another plan. */
void rank_create(struct rank *, const struct epa_footprint *, uint32_t transport_flags);
void rank_destroy(struct rank *);

/* Heap and signals as open() left them; what had them before may have written both. */
void rank_clear_heap(struct rank *);

/* What a function returned, explained by whom it belongs to: a kernel that gave up waiting by the
 * algorithm that queued it, all else of the backend by itself. Whether it is good. */
bool rank_backend(struct rank *, enum epa_status);
bool rank_algorithm(struct rank *, enum epa_status);
bool rank_transport(struct rank *, enum epa_status);
bool rank_boot(struct rank *, enum epa_status);

static inline bool rank_good(const struct rank *r)
{
    return r->status == EPA_OK;
}

/* Whether there is to be another iteration. A rank that waits for nobody would not notice
 * a failure elsewhere, or of the user's wish to stop, in any other way. */
bool rank_goes_on(struct rank *);

/* From here on long waits are noted in `shared`, until rank_waits_end(). */
void rank_waits_begin(struct rank *);
void rank_waits_end(struct rank *);

/* Before transport and algorithm are made, which note names of their own: nothing, if nobody
 * profiles. */
void rank_trace_begin(struct rank *);
/* Once it is there: clocks of hosts are compared, collectively. */
void rank_trace_ready(struct rank *);
/* After the last iteration, which all ranks have done: the same again. */
void rank_trace_end(struct rank *);
/* What is noted from now on is of no iteration, and not kept. */
void rank_trace_pause(struct rank *);

/* Runs a stage on the problem of a slot; on a device it is only queued. */
void rank_stage(struct rank *, uint32_t stage, uint32_t slot);

/* All that was queued is done, and well. */
void rank_sync(struct rank *);
void rank_barrier(struct rank *);
void rank_mark(struct rank *, uint32_t mark);
void rank_flush(struct rank *); /* caches */
double rank_elapsed(struct rank *, uint32_t from_mark, uint32_t to_mark);

/* Makes the inputs of an iteration; `out` is spoilt. */
void rank_make(struct rank *, uint32_t slot, uint64_t iteration);
/* The same, and counts what they move. */
void rank_inputs(struct rank *, uint32_t slot, uint64_t iteration);

/* After a stage: what the core does before the next and does not time, as synthetic experts of
 * what a dispatch delivered. */
void rank_between(struct rank *, uint32_t stage, uint32_t slot);

/* Compares what a stage of this kind left. */
void rank_check(struct rank *, enum epa_stage_kind, uint32_t slot);

/* Compares what the first phase left in a slot, after the last stage, with what rank_check() read
 * there. Collective. */
void rank_check_kept(struct rank *, uint32_t slot);

/* One iteration with its stages between marks, each after a barrier where `apart`. check:
 * compare every element after each stage. */
void rank_iteration(struct rank *, uint32_t slot, bool apart, bool check);

/* From the marks of the last iteration: of one stage, and of all. */
double rank_stage_ns(struct rank *, uint32_t stage);
double rank_total_ns(struct rank *);

/* EPA_ERR_CONFIG where `expect` names a row that there is not, by the notes of the session. */
void rank_expect_check(struct rank *);

/* ---- rank_bench.c, rank_graph.c: what a rank does once it is set up ---- */

void rank_run(struct rank *);
void rank_bench(struct rank *);
void rank_bench_graph(struct rank *);
void rank_verify(struct rank *);

/* Warm-up and samples, `block` at a time: take() runs the `n` iterations from `first` on, which are
 * all of the one or all of the other, and keeps their times. Returns how many there were. */
uint64_t rank_loop(struct rank *, uint32_t block,
                   void (*take)(struct rank *, uint64_t first, uint32_t n));

/* A sample's time of a row; NULL: iteration `i` is warm-up. */
double *rank_sample(const struct rank *, uint32_t row, uint64_t i);
void rank_graphs_destroy(struct rank *);

/* ---- view.c: guard ---- */

/* Whether verify.guard or verify.epoch is set: then all of these do something. */
bool rank_is_guarded(const struct rank *);
/* Adds what is around the algorithm's part, and says where that is. */
void rank_guard_room(struct rank *, uint64_t *heap_bytes, uint32_t *signals);
/* Before an algorithm of this footprint is created, all of whose heap is 0. */
void rank_guard_heap(struct rank *, const struct epa_footprint *);
/* Once inputs are made, and when what they are for is over. */
void rank_guard_inputs(struct rank *, uint32_t slot);
void rank_guard_check(struct rank *, uint32_t slot);
/* EPA_ERR_UNSUPPORTED where verify.epoch was ignored. */
void rank_guard_end(struct rank *);

/* ---- view.c: counted ---- */

/* verify, after the last iteration: a few more, over puts alone, of which those to other ranks are
 * counted and held against what the plan claims. Collective. */
void rank_count_puts(struct rank *);

/* ---- rank_memory.c ---- */

/* After so many iterations of verify. */
void rank_memory_check(struct rank *, uint64_t iterations);

/* ---- rank_halt.c ---- */

/* Whether verify.stop is set: rank_halt() is the end of the run, and peers cannot meet in a barrier
 * of the transport after it. */
bool rank_is_halted(const struct rank *);
/* After the last iteration of verify. Collective. */
void rank_halt(struct rank *);

/* ---- faults ---- */

/* EPA_ERR_CONFIG where `fault` names a stage that there is not, or cannot strike. */
void rank_fault_check(struct rank *);

/* Before a stage: does what `fault` plants there, and else nothing. It may not return. */
void rank_fault(struct rank *, uint32_t stage);

/* Waits until `end` (epa_now_ns()), or a rank has failed; what is left below `spin` it does not
 * sleep. */
void rank_rest(const struct rank *, uint64_t end, uint64_t spin);
/* For who needs the time itself: a sleep may be so much too long. */
enum { RANK_SPIN_NS = 150000 };

/* verify.straggle: late and early ranks, another set before each stage of each iteration. Before
 * every third, the last rank alone is late, by the whole time: among many ranks, a random rank is
 * seldom later than all others. */
void rank_straggle(const struct rank *, uint64_t iteration, uint32_t stage);

/* ---- rank_bench.c: when it stops ---- */

/* Before the first iteration of bench: nothing, where there is no stop rule. */
void rank_stop_create(struct rank *);
void rank_stop_destroy(struct rank *);

/* Between samples, and after each iteration of warm-up with 0 of them, on all ranks alike: whether
 * there are enough. */
bool rank_stop_poll(struct rank *, uint64_t samples);

/* Has the backend say what its device is, as it is now. */
void rank_describe_device(struct rank *);

#endif
