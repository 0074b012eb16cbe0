/* An algorithm solves one kind of problem over any transport with the required flags.
 *
 *   plan     computes heap size and number of signals; no side effects, runs on any rank
 *   create   lays out its part of the heap, once for each shape
 *   stages   run in order, each iteration; the core times and verifies between them
 *   destroy
 *
 * Host and CUDA code of an algorithm are two stage lists behind one create(): layout, options, plan
 * and descriptor exist once.
 *
 * Graphs. On a device a stage only queues work. The work may be recorded and then launched many
 * times, with other calls in between. The device counts all values that grow with each call, epochs
 * above all. Dispatches use up to in_flight buffer sets (receive buffers, the memory of views,
 * y_space), in turn or the set of the last combine again. A recorded call keeps the set of its
 * capture; the caller must launch graphs so that an open dispatch keeps its set. bench runs no
 * experts in graphs, and checks the data of the last dispatch into each set at the end. So:
 *   - the memory of the views of a dispatch is unchanged until the next dispatch that uses
 *     its set, also after its combine;
 *   - dispatch does not write y_space: its expert outputs are valid for the next dispatch of
 *     that set, if this dispatch sends the same tokens. */
#ifndef EPA2A_ALGORITHM_H
#define EPA2A_ALGORITHM_H

#include <stdbool.h>

#include <epa2a/problem.h>
#include <epa2a/trace.h>
#include <epa2a/transport.h>

/* MoE: layout and traffic of this algorithm. verify counts the bytes of puts, and of stores and
 * puts of kernels in an emulator, and requires them to match the bytes of rows, choices and control
 * below, within 1 % or four cache lines for each peer. Atomic additions to counters of peers may be
 * included. If the receiver of a row loads it, the sender is the rank whose heap holds the row. */
struct epa_moe_footprint {
    uint64_t recv_rows, recv_entries; /* maximum; determines the size of y and the experts' work */
    enum epa_layout layout;
    /* Layout rank: order of the rows of dispatch and of y. EPA_ROWS_ANY on hosts, where recv_source
     * states the order. */
    enum epa_row_order row_order;
    enum epa_dtype recv_dtype;
    enum epa_sum sum;
    /* Data type in which expert outputs travel: the problem's dtype, or EPA_FP8_E4M3: the output in
     * dtype is quantised like a token, and enters the sum as q * scale, rounded to float32.
     * EPA_F32, only for real experts with `fused` and EPA_SUM_BY_RANK: outputs are not rounded
     * before the sum of a rank's choices; this sum travels in dtype. */
    enum epa_dtype output_dtype;
    /* Dispatch sends one row of a token to each of its ranks, and combine returns one reduced row
     * from each. false: one row for each choice. */
    bool dispatch_dedup, combine_dedup;
    /* Combine leaves out choices whose `expert` became -1 after the dispatch. The outputs of these
     * choices may be NaN. false: `expert` must have the values of the dispatch. */
    bool late_choices;
    /* On a device: the kernels of both stages read wide choices, and dispatch makes the copies
     * `keep` and `into` of struct epa_moe, which otherwise are kernels of the backend. `into` has
     * rows in recv_dtype. */
    bool direct;
    /* Combine, or the only stage, computes the experts, by expert_factor or mlp: the core does not
     * run them and does not read y. Layout expert. With mlp, flops is not 0: this value separates
     * algorithms with real experts from algorithms with synthetic experts only. */
    bool fused;
    /* With `fused` and FP8 weights: number of fraction bits in the additions of a group. 32
     * consecutive products and the sum of the products before them are aligned to this precision
     * (13 on Hopper's tensor cores); 0: the additions are in float32. */
    uint32_t fp8_sum_bits;
    /* Bytes that a row takes on a link, with flags for this row; bytes of the token, or of the
     * expert output, in it. */
    uint64_t dispatch_row_bytes, dispatch_token_bytes;
    uint64_t combine_row_bytes, combine_token_bytes;
    /* Rows arrive in a buffer of their rank, and are copied, or added up, from there. false: a row
     * arrives at its final place, or its receiver loads it from the memory of its sender. */
    bool dispatch_staged, combine_staged;
    /* With dispatch, bytes for each choice of a token if one row serves several choices: indices,
     * weights. */
    uint64_t choice_bytes;
    /* To each peer in one iteration: counts, indices, flags. Kernels may send fewer for fewer
     * tokens than max_tokens. */
    uint64_t control_bytes;
    /* Not 0: one put to a rank of another node transfers the slots of all tokens. Each token of a
     * rank then takes a row of this size to every rank of another node, and a row back, also if the
     * peer has none of its experts; far_control_bytes replaces control_bytes. 0: the rows above are
     * also the rows to other nodes. */
    uint64_t far_dispatch_row_bytes, far_combine_row_bytes, far_control_bytes;
};

/* AllGather: traffic in addition to the rows. Each rank sends its rows to all others. */
struct epa_allgather_footprint {
    uint64_t control_bytes; /* to each peer in one iteration: signals */
};

/* AllGather and GEMM. */
struct epa_ag_gemm_footprint {
    uint64_t row_bytes;     /* of a row of A in a message, scales included */
    uint64_t control_bytes; /* to each peer in one iteration: signals */
    /* With several nodes, a rank sends rows to the rank of the same local index on each other node,
     * and that rank forwards them within its node. false: each rank sends its rows to all
     * others. */
    bool two_level;
    /* The algorithm may write C up to the last row of its capacity; rows beyond the valid rows are
     * undefined. false: these rows do not change. */
    bool all_room;
};

/* Resources and traffic of an algorithm on one rank. */
struct epa_footprint {
    uint64_t heap_bytes;
    uint64_t private_bytes; /* host memory outside the heap, of a rank with one worker */
    uint64_t worker_bytes;  /* additional host memory of each further worker */
    uint64_t device_bytes;  /* device scratch memory outside the heap */
    uint32_t signals;
    uint32_t least_workers; /* minimum of a rank on hosts; 0 is the same as 1 */
    /* Names of the stages that create() lists, then NULL; for checks without ranks. NULL: plan()
     * does not know them. */
    const char *const *stages;
    /* Maximum number of open iterations (begun and not ended): 1 or 2. MoE: dispatches before their
     * combine; AllGather: valid outputs. */
    uint32_t in_flight;
    /* Maximum number of events that one worker of a rank adds to a trace in an iteration, if the
     * algorithm records single rows and tokens. 0: a few events for each rank. */
    uint64_t trace_events;
    /* Capabilities for verify.order: epa_algorithm.discard is set; epa_algorithm.combines_again. */
    bool discards, combines_again;
    /* Floating-point operations of an iteration with full inputs, a multiply-add counted as two; 0:
     * the algorithm moves data and adds values only. */
    double flops;
    union { /* by epa_algorithm_plugin.op */
        struct epa_moe_footprint moe;
        struct epa_allgather_footprint allgather;
        struct epa_ag_gemm_footprint ag_gemm;
    } u;
};

struct epa_algorithm;

enum epa_stage_kind {
    EPA_STAGE_DISPATCH, /* fills recv*, origin; the core then runs the experts */
    EPA_STAGE_COMBINE,  /* reads y, fills out */
    EPA_STAGE_SEND,     /* first half of the next stage; other work may run between the halves */
    EPA_STAGE_WHOLE,    /* inputs to final output in one stage: the only stage apart from SEND */
    EPA_STAGE_EXPERTS,  /* real experts, after a dispatch: a stage of the core, not of algorithms */
};

enum { EPA_PARTS = 2, EPA_ENDS = 32 };

struct epa_stage {
    const char *name; /* name of the row in the report */
    enum epa_stage_kind kind;
    /* CPU: the stage has ended on return, and all puts and signals of this rank have arrived
     * (quiet() of the transport), since the next call of the rank may be far away. CUDA: the stage
     * is queued on backend->stream. */
    enum epa_status (*run)(struct epa_algorithm *, struct epa_problem *);
};

struct epa_algorithm {
    const struct epa_stage *stages;
    uint32_t n_stages;
    /* Parts of a stage of kind WHOLE that can run alone: the communication and the computation.
     * bench times the parts in addition to the stage, to find the time that one part hides behind
     * the other. Called on all ranks with the problem of a previous call; the parts leave no
     * output. At most EPA_PARTS. */
    const struct epa_stage *parts;
    uint32_t n_parts;
    /* CUDA, for bench, after a call of each stage: queues kernels without work, one for each kernel
     * of these calls, with the same grid, arguments, shared memory and launch attributes. Called on
     * all ranks. NULL: not supported. */
    const struct epa_stage *empty;
    /* CUDA, for bench: fills ns[n] with the times at which the last n calls of a dispatch or combine
     * ended, in order, on a clock of the device; n is at most EPA_ENDS. Queued work has ended. Calls
     * store the time only if they are queued, or recorded, while the caller has set keeps_ends. NULL:
     * unknown. */
    bool keeps_ends;
    enum epa_status (*ended)(struct epa_algorithm *, enum epa_stage_kind, uint32_t n, uint64_t *ns);
    /* Library or kernel set that multiplies matrices, for reports, if there are several: "oneDNN
     * 2.6.3". Or NULL. */
    const char *products_by;
    /* Discards the last dispatch, whose combine will not be called: to time dispatches alone.
     * Called before the next dispatch, on all ranks. Another whole dispatch or combine must end
     * before the buffers of the discarded dispatch are reused. Single calls ensure this, since they
     * use buffers in turn. A graph keeps the buffers of its capture, so a graph must not end with a
     * discard of buffers with which the next graph or call begins. NULL: not supported. */
    enum epa_status (*discard)(struct epa_algorithm *, struct epa_problem *);
    /* true: combine may be called again for a combined dispatch, with no dispatch in between: to
     * time combines alone. */
    bool combines_again;
    /* Fills `peer` and `what` of a wait for a signal of this algorithm. The waiting thread calls
     * it. NULL: the algorithm does not know them. */
    void (*wait_describe)(const struct epa_algorithm *, struct epa_wait_state *);
    /* Called between calls, when the profiled calls have ended; others may follow. Moves the
     * device's records of these calls to the trace. NULL: the trace already contains them. */
    void (*trace_end)(struct epa_algorithm *);
    /* Describes the last failure, by epa_fail_stage() if the algorithm knows the stage. A failed wait
     * names its rank in the text and by epa_awaits(): verify.stop checks this. */
    void (*explain)(struct epa_algorithm *, struct epa_error *);
    void (*destroy)(struct epa_algorithm *);
};

struct epa_algorithm_params {
    const struct epa_problem *problem; /* shapes only */
    struct epa_world world;
    struct epa_transport *transport;
    struct epa_backend *backend;
    const void *config;
    uint32_t transport_flags; /* same value as in plan() */
    uint64_t heap;            /* first heap offset of this algorithm; a multiple of 4096 */
    uint32_t signal;          /* first signal of this algorithm */
    uint64_t timeout_ns;
    /* Number of calls before the first: the first call has epoch + 1, although all signals are 0.
     * Not 0 where verify tests the wrap-around of host code. */
    uint64_t epoch;
    struct epa_trace *trace; /* NULL: no profile */
    /* Receives reports of waits outside the transport; may be NULL. */
    struct epa_wait_observer *observer;
};

struct epa_algorithm_plugin {
    struct epa_plugin plugin;
    enum epa_op op;
    uint32_t memory;     /* enum epa_memory bits with code in this plugin */
    uint32_t needs_host; /* transport flags required by its host code */
    uint32_t needs_cuda; /* transport flags required by its CUDA code */
    /* transport_flags: best flags of the transport; without LOAD_STORE, or with NODES, the
     * algorithm may have to reach some peers by puts. */
    enum epa_status (*plan)(const struct epa_problem *, const struct epa_world *,
                            uint32_t transport_flags, const void *config, struct epa_footprint *out,
                            struct epa_error *);
    enum epa_status (*create)(const struct epa_algorithm_params *, struct epa_algorithm **out,
                              struct epa_error *);
};

#endif
