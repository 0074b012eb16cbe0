/* One rank of a session: what its parts share. All that is here runs in the rank's own
 * thread. */
#ifndef RANK_H
#define RANK_H

#include <stdbool.h>

#include "config/experiment.h"
#include "session/record.h"
#include "session/session.h"

struct graphs;    /* rank_graph.c */
struct rank_stop; /* stop.c */

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
    struct epa_transport *transport;
    struct epa_algorithm *algorithm;
    struct op_rank *op;
    /* The algorithm's, with one for the experts after each dispatch where those are timed. */
    struct epa_stage stage[SESSION_STAGES];
    uint32_t n_stages;
    struct graphs *graphs;  /* NULL: none were made */
    struct rank_stop *stop; /* NULL: bench takes as many samples as it is told to */
    enum bench_clock clock; /* that bench and run use */
    uint32_t fault_stage;   /* before which a planted fault strikes */
    /* Stages up to the first that is no SEND: the dispatch, or all there are where it is
     * WHOLE. What the operation does between stages comes after it. 0: the list is of
     * another kind. */
    uint32_t first_stages;
    struct epa_wait_observer observer; /* who is told of waits: writes to `shared` */
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
    return r->op->operation->problem(r->op, slot);
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

/* From here on long waits are noted in `shared`, until rank_waits_end(). */
void rank_waits_begin(struct rank *);
void rank_waits_end(struct rank *);

/* Before the algorithm is made, which notes names of its own: nothing, if nobody profiles. */
void rank_trace_begin(struct rank *);
/* Once it is there: clocks of hosts are compared, collectively. */
enum epa_status rank_trace_ready(struct rank *);
/* After the last iteration, which all ranks have done: the same again. */
enum epa_status rank_trace_end(struct rank *);
/* What is noted from now on is of no iteration, and not kept. */
void rank_trace_pause(struct rank *);

/* A slice of the rank's own thread, from begin_ns (epa_trace_now()) until now. */
static inline void rank_noted(struct rank *r, uint16_t name, uint64_t begin_ns)
{
    (void)epa_trace_slice(r->trace, 0, name, begin_ns, EPA_TRACE_NOBODY, 0, 0);
}

/* Runs a stage on the problem of a slot; on a device it is only queued. */
enum epa_status rank_stage(struct rank *, uint32_t stage, uint32_t slot, struct epa_error *);

/* What the backend's function returned, explained: a kernel that gave up waiting by the
 * algorithm that queued it, all else by the backend. */
enum epa_status rank_explain(struct rank *, enum epa_status, struct epa_error *);

/* All that was queued is done, and well. */
enum epa_status rank_sync(struct rank *, struct epa_error *);

enum epa_status rank_barrier(struct rank *, struct epa_error *);

/* Whether there is to be another iteration. A rank that waits for nobody would not hear of
 * a failure elsewhere, or of the user's wish to stop, in any other way. */
bool rank_goes_on(const struct rank *, enum epa_status *);

/* What a function of the bootstrap returned, explained. */
enum epa_status rank_explain_boot(struct rank *, enum epa_status, struct epa_error *);

/* Makes the inputs of an iteration; `out` is spoilt. */
enum epa_status rank_make(struct rank *, uint32_t slot, uint64_t iteration, struct epa_error *);

/* After a stage: what the core does before the next and does not time, as synthetic experts of
 * what a dispatch brought. */
enum epa_status rank_between(struct rank *, uint32_t stage, uint32_t slot, struct epa_error *);

/* Compares what a stage of this kind left. */
enum epa_status rank_check(struct rank *, enum epa_stage_kind, uint32_t slot, struct epa_error *);

/* Makes the inputs of an iteration and counts what they move. */
enum epa_status rank_inputs(struct rank *, uint32_t slot, uint64_t iteration, struct epa_error *);

/* One iteration with its stages between marks, each after a barrier where `apart`. check:
 * compare every element after each stage. */
enum epa_status rank_iteration(struct rank *, uint32_t slot, bool apart, bool check,
                               struct epa_error *);

/* From the marks of the last iteration: of one stage, and of all. */
enum epa_status rank_stage_ns(struct rank *, uint32_t stage, double *out, struct epa_error *);
enum epa_status rank_total_ns(struct rank *, double *out, struct epa_error *);

/* ---- what a rank does once it is set up ---- */

enum epa_status rank_run(struct rank *, struct epa_error *);
enum epa_status rank_bench(struct rank *, struct epa_error *);
enum epa_status rank_bench_graph(struct rank *, struct epa_error *);
enum epa_status rank_bench_open(struct rank *, struct epa_error *);

/* One iteration more, of which every element is compared, if bench is to check. `last`: the
 * number of those before. No figure counts unless the same program was right on the same
 * shape. */
enum epa_status rank_check_once(struct rank *, uint64_t last, struct epa_error *);

/* What each part of a stage takes when it runs alone, launched one by one; nothing where there are
 * none. */
enum epa_status rank_time_parts(struct rank *, struct epa_error *);

/* So many samples of this rank are complete. */
void rank_keep_samples(struct rank *, uint64_t n);
void rank_graphs_destroy(struct rank *);

/* ---- rank_stages.c: expectations ---- */

/* EPA_ERR_CONFIG where `expect` names a row that there is not. */
enum epa_status rank_expect_check(const struct rank *, struct epa_error *);

/* ---- rank_fault.c ---- */

/* EPA_ERR_CONFIG where `fault` names a stage that there is not, or cannot strike. */
enum epa_status rank_fault_check(struct rank *, struct epa_error *);

/* Before a stage: does what `fault` plants there, and else nothing. It may not return. */
enum epa_status rank_fault(struct rank *, uint32_t stage, struct epa_error *);

/* verify.straggle: late and early ranks, another set before each stage of each iteration. */
void rank_straggle(const struct rank *, uint64_t iteration, uint32_t stage);

/* ---- stop.c ---- */

/* Before the first iteration of bench: nothing, where there is no stop rule. */
enum epa_status rank_stop_create(struct rank *, struct epa_error *);
void rank_stop_destroy(struct rank *);

/* Between samples, and after each iteration of warm-up with 0 of them, on all ranks alike:
 * *ends is set once there are enough. */
enum epa_status rank_stop_poll(struct rank *, uint64_t samples, bool *ends, struct epa_error *);
enum epa_status rank_verify(struct rank *, struct epa_error *);

/* Has the backend say what its device is, as it is now. */
void rank_describe_device(struct rank *);

#endif
