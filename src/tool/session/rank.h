/* The state of a rank of a session. All functions on it run in the rank's own thread.
 *
 * `status` and `err` keep the first failure of a rank. After a failure every function on a struct
 * rank returns without effect, so that a caller of several functions need not check each. */
#ifndef RANK_H
#define RANK_H

#include <stdbool.h>

#include "caller/caller.h"
#include "config/experiment.h"
#include "ep/ep.h"
#include "session/session.h"

struct graphs;    /* rank_graph.c */
struct guard;     /* rank_guard.c */
struct view;      /* view.h */
struct rank_stop; /* rank_stop.c */
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
    struct ep_comm comm;
    struct ep ep;        /* its transport is the opened one or `view` */
    struct view *view;   /* NULL: no view */
    struct guard *guard; /* NULL: no guard */
    uint64_t heap_at;    /* as in epa_algorithm_params */
    uint32_t signal_at;
    struct caller *caller; /* of the public interface; NULL: api: none */
    /* bench with `caller`: the algorithm without the interface, for comparison; or NULL */
    struct epa_algorithm *direct;
    struct op_rank *op;
    enum epa_status status; /* first failure, or EPA_OK */
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

/* Returns true if the stages are calls of the public interface. */
static inline bool rank_calls_interface(const struct rank *r)
{
    return r->caller != NULL && r->ep.algorithm != r->direct;
}

static inline bool rank_good(const struct rank *r)
{
    return r->status == EPA_OK;
}

#endif
