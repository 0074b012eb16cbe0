/* An algorithm solves one kind of problem over any transport that has what it needs.
 *
 *   plan     how much heap and how many signals; no side effects, runs on any rank
 *   create   lays out its part of the heap, once for a shape
 *   stages   run in order, each iteration; the core times and verifies between them
 *   destroy
 *
 * Host and CUDA code of an algorithm are two stage lists behind one create(): layout,
 * options, plan and descriptor exist once.
 *
 * Graphs. On a device a stage only queues work, which may be recorded and then launched
 * many times, with other calls in between. Whatever grows with each call, epochs above all,
 * is counted on the device. Dispatches use in_flight buffer sets in turn (receive buffers,
 * the memory of views, y_space), and a recorded call keeps the set that it had then; the
 * caller must launch so that sets are still used in turn. bench runs no experts in graphs,
 * and checks the data of the last in_flight dispatches at the end. So:
 *   - the memory of the views of a dispatch is unchanged until the next dispatch that uses
 *     its set, also after its combine;
 *   - dispatch does not write y_space: its expert outputs are valid for the next dispatch of
 *     that set, if it sends the same. */
#ifndef EPA2A_ALGORITHM_H
#define EPA2A_ALGORITHM_H

#include <stdbool.h>

#include <epa2a/problem.h>
#include <epa2a/trace.h>
#include <epa2a/transport.h>

/* MoE: what this algorithm delivers and transfers. verify counts what is put: to within 1 %, or a
 * line for each peer, it is what follows from the bytes of rows, choices and control. */
struct epa_moe_footprint {
    uint64_t recv_rows, recv_entries; /* at most; sizes y and the experts' work */
    enum epa_layout layout;
    enum epa_dtype recv_dtype;
    enum epa_sum sum;
    /* How expert outputs travel: the problem's dtype, or EPA_FP8_E4M3: the output in
     * dtype is quantised like a token, and enters the sum as q * scale, rounded to float32.
     * EPA_F32, of real experts only, with `fused` and EPA_SUM_BY_RANK: outputs are not rounded
     * before the sum of a rank's choices, which then travels in dtype. */
    enum epa_dtype output_dtype;
    bool dedup; /* one row per destination rank, and one reduced row back */
    /* Combine, or the one stage there is, computes the experts, by expert_factor or mlp: the
     * core does not run them, and y is not read. Layout expert. With mlp, flops is not 0: that is
     * how one that knows synthetic experts alone differs from one that knows real ones. */
    bool fused;
    /* With `fused` and FP8 weights: fraction bits to which 32 products that follow each other in a
     * group, and the sum of those before, are aligned as they are added up (13 on Hopper's tensor
     * cores); 0: they are added in float32. */
    uint32_t fp8_sum_bits;
    uint64_t dispatch_row_bytes, dispatch_token_bytes; /* whole message; the token in it */
    uint64_t combine_row_bytes, combine_token_bytes;
    /* With dispatch, of each choice of a token, where a row is of several: indices, weights. */
    uint64_t choice_bytes;
    uint64_t control_bytes; /* to each peer in one iteration: counts, indices, flags */
};

/* AllGather: what is sent besides the rows, which each rank sends to all others. */
struct epa_allgather_footprint {
    uint64_t control_bytes; /* to each peer in one iteration: signals */
};

/* AllGather and GEMM. */
struct epa_ag_gemm_footprint {
    uint64_t row_bytes;     /* of a row of A as it is sent, scales included */
    uint64_t control_bytes; /* to each peer in one iteration: signals */
    /* Where there are several nodes, rows are sent between them to the rank of the same place,
     * which passes them on within its node; else each rank sends its rows to all others. */
    bool two_level;
    /* C is written up to the last row for which there is room: what is behind the rows that there
     * are is not of use. Else it stays as it is. */
    bool all_room;
};

/* What an algorithm needs and does, of one rank. */
struct epa_footprint {
    uint64_t heap_bytes;
    uint64_t private_bytes; /* memory of the host beside the heap, of a rank with one worker */
    uint64_t worker_bytes;  /* and of each worker more */
    uint64_t device_bytes;  /* scratch memory of the device beside the heap */
    uint32_t signals;
    uint32_t least_workers; /* of a rank on hosts; 0 is as 1 */
    /* Names of the stages that create() lists, then NULL; for checks without ranks. NULL: plan()
     * does not say. */
    const char *const *stages;
    /* Iterations that may be open, begun and not ended, at a time: 1 or 2. MoE: dispatches
     * before their combine; AllGather: outputs that are valid. */
    uint32_t in_flight;
    /* Events that one worker of a rank adds to a trace in an iteration, at most, where they are
     * more than some for each rank: of single rows and tokens. 0: they are not. */
    uint64_t trace_events;
    /* What verify.order may ask for: epa_algorithm.discard is there, and its combines_again. */
    bool discards, combines_again;
    /* Floating-point operations of an iteration with full inputs, a multiply-add counted as
     * two; 0: it moves data and adds up. */
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
    EPA_STAGE_SEND,     /* the first half of the stage after it; others may run between */
    EPA_STAGE_WHOLE,    /* inputs to final output in one go: the only stage but SEND */
    EPA_STAGE_EXPERTS,  /* real experts, after a dispatch: the core's own, no algorithm has it */
};

enum { EPA_PARTS = 2 };

struct epa_stage {
    const char *name; /* the row's name in the report */
    enum epa_stage_kind kind;
    /* CPU: done on return. CUDA: queued on backend->stream. */
    enum epa_status (*run)(struct epa_algorithm *, struct epa_problem *);
};

struct epa_algorithm {
    const struct epa_stage *stages;
    uint32_t n_stages;
    /* Parts of a stage of kind WHOLE that can run alone, the communication and the computation,
     * which bench times beside it: what of one is hidden behind the other. Called on all ranks
     * with the problem of a call before; what they leave is no output. At most EPA_PARTS. */
    const struct epa_stage *parts;
    uint32_t n_parts;
    /* What multiplies matrices, for reports, where there is a choice: "oneDNN 2.6.3". Or NULL. */
    const char *products_by;
    /* Discards the last dispatch, whose combine will not be called: to time dispatches
     * alone. Before the next dispatch; on all ranks. Another whole dispatch or combine must end
     * before its buffers are taken again. Calls that are made one by one see to that, as they take
     * buffers in turn. A graph keeps those of its capture, so it must not end by discarding what
     * the next graph or call may begin with. NULL: not supported. */
    enum epa_status (*discard)(struct epa_algorithm *, struct epa_problem *);
    /* Whether combine may be called again for a dispatch that has been combined, with no
     * dispatch in between: to time combines alone. */
    bool combines_again;
    /* Fills `peer` and `what` of a wait for a signal of this algorithm; called by who waits.
     * NULL: they are not known. */
    void (*wait_describe)(const struct epa_algorithm *, struct epa_wait_state *);
    /* The calls that a profile is about have ended, and others may follow: what the device has
     * noted of them goes to the trace. Called between calls. NULL: it is there already. */
    void (*trace_end)(struct epa_algorithm *);
    void (*explain)(struct epa_algorithm *, struct epa_error *);
    void (*destroy)(struct epa_algorithm *);
};

struct epa_algorithm_params {
    const struct epa_problem *problem; /* shapes only */
    struct epa_world world;
    struct epa_transport *transport;
    struct epa_backend *backend;
    const void *config;
    uint32_t transport_flags; /* as plan() was given */
    uint64_t heap;            /* first offset that is this algorithm's; a multiple of 4096 */
    uint32_t signal;          /* first signal that is this algorithm's */
    uint64_t timeout_ns;
    /* Calls that count as made: the first is epoch + 1, though all signals are 0. Not 0 where
     * verify tests how host code wraps around. */
    uint64_t epoch;
    struct epa_trace *trace; /* NULL: no profile */
    /* Waits that are not the transport's are reported to it; may be NULL. */
    struct epa_wait_observer *observer;
};

struct epa_algorithm_plugin {
    struct epa_plugin plugin;
    enum epa_op op;
    uint32_t memory;     /* enum epa_memory bits it has code for */
    uint32_t needs_host; /* transport flags its host code needs */
    uint32_t needs_cuda; /* transport flags its CUDA code needs */
    /* transport_flags: what the transport can give at best; without LOAD_STORE, or with
     * NODES, some peers may have to be reached by puts. */
    enum epa_status (*plan)(const struct epa_problem *, const struct epa_world *,
                            uint32_t transport_flags, const void *config, struct epa_footprint *out,
                            struct epa_error *);
    enum epa_status (*create)(const struct epa_algorithm_params *, struct epa_algorithm **out,
                              struct epa_error *);
};

#endif
