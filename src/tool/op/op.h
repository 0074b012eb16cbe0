/* The interface of an operation, such as moe or allgather. Session, report and trace use an operation
 * through this table only. Its options are a section of the experiment (config/experiment.c), its shapes
 * a member of struct epa_problem.
 *
 * All inputs are functions of (seed, rank, iteration): a rank can make the inputs of any other rank, so a
 * check needs no communication. */
#ifndef OP_H
#define OP_H

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>

#include "base/crew.h"
#include "base/text.h"
#include "op/problem_params.h"

/* Contents of the files that an operation reads, loaded once and const from then on. Each operation
 * defines this struct. */
struct op_source;

/* Tells which settings messages may suggest: takes() returns true if `value` is valid for `key`, and
 * otherwise writes the reason. */
struct op_advice {
    bool (*takes)(const void *arg, const char *key, uint64_t value, char *why, size_t room);
    const void *arg;
};

enum { OP_PHASES = 2, OP_STATS_BYTES = 256, OP_ARRAYS = 8, OP_SPARE = 64, OP_POISON = 0xff };

/* Memory of the backend (`there`) and its host copy (`here`); both are equal with the host backend, and
 * both are NULL without memory. */
struct op_buffer {
    void *there, *here;
};

/* An array that a problem points to, for a number of units of a rank (tokens, rows). OP_SPARE unused
 * bytes follow it. */
struct op_array {
    const char *what;
    uint64_t bytes; /* 0: no array; an output has the size for the maximum of units */
    bool output;    /* written by the algorithm; contains OP_POISON before */
};

/* A problem with its inputs and outputs. */
struct op_slot {
    struct epa_problem problem;
    uint64_t iteration;
    uint32_t units; /* number of units of this rank */
    struct op_buffer array[OP_ARRAYS];
};

/* Share of the outputs of the last phase that checks compared. */
struct op_share {
    uint64_t outputs, compared; /* elements in all, and elements compared with the reference */
    uint64_t overflowed;        /* not compared: the right value may exceed the range of a float */
    double widest,
        widths; /* widths of the intervals of right values relative to the sum of magnitudes
                              of the terms: maximum, and sum over the compared elements */
};

/* Key of an error whose message begins with rank, iteration and stage. */
#define OP_PLACED "place"

/* Inputs and comparisons of a verification; {0} otherwise. */
struct op_oracle {
    /* Some inputs are hard for numerics (zeros, outliers, denormals): in verify only, since they
     * distort times. */
    bool hard_values;
    bool signed_weights; /* some of these iterations have weights of both signs */
    bool nonfinite;      /* some of these tokens have a NaN and an infinite channel */
    bool allclose; /* outputs differ from the reference by at most atol + rtol * |reference| */
    double rtol, atol;
};

/* State of one rank of an operation: the first member of the operation's own struct. */
struct op_rank {
    const struct operation *operation;
    const struct problem_params *params;
    struct op_oracle oracle;
    const char *backend_name;
    const struct op_source *source; /* NULL: no input files */
    struct epa_world world;
    struct epa_footprint footprint;
    struct epa_backend *backend;
    struct crew crew; /* for checks; the threads only compute */
    uint32_t n_slots;
    struct op_share share; /* sum over all checks so far */
    struct op_slot *slot;  /* [slots]; the address of a problem never changes */
};

struct op_params {
    const struct problem_params *problem; /* outlives the rank */
    const struct epa_world *world;
    const struct epa_footprint *footprint;
    const struct op_source *source; /* NULL: no input files */
    struct epa_backend *backend;
    const char *backend_name; /* for messages */
    uint32_t slots;
    struct op_oracle oracle;
    struct crew crew;
};

/* A phase: a part of an iteration with its own count of bytes, and the kind of the stage that implements
 * it. The row of EPA_STAGE_WHOLE and the total are the sum of all phases. */
struct op_phase {
    const char *name; /* in the report */
    enum epa_stage_kind kind;
};

/* Bytes of one rank in one phase, summed over iterations. */
struct op_bytes {
    uint64_t needed;         /* payload that the operation requires */
    uint64_t sent, received; /* to and from other ranks, with headers and padding */
    uint64_t least;          /* lower bound of the bytes that leave or reach the rank */
    /* Bytes of the memory of the rank's device that kernels read and write, each byte once; 0:
     * unknown. */
    uint64_t memory;
};

struct op_traffic {
    struct op_bytes phase[OP_PHASES];
    double flops;     /* operations for the inputs of the iteration (see epa_footprint.flops) */
    uint64_t weights; /* lower bound of the bytes of weights that a rank reads */
};

/* Computing peaks of a rank: of all its workers or of its device; 0: unknown. */
struct op_peaks {
    double flops_per_ns, bytes_per_ns; /* multiply-adds in registers, and reads of memory */
    double cache_bytes;                /* of a device: at most so many bytes are not read anew */
};

static inline void op_bytes_add(struct op_bytes *sum, const struct op_bytes *b)
{
    sum->needed += b->needed;
    sum->sent += b->sent;
    sum->received += b->received;
    sum->least += b->least;
    sum->memory += b->memory;
}

static inline void op_traffic_add(struct op_traffic *sum, const struct op_traffic *t)
{
    for (uint32_t i = 0; i < OP_PHASES; i++)
        op_bytes_add(&sum->phase[i], &t->phase[i]);
    sum->flops += t->flops;
    sum->weights += t->weights;
}

/* Load of an iteration in a phase, computed without ranks. Each figure is the maximum over ranks, or over
 * links. */
struct op_load {
    double rows, entries; /* sent and received, including the rank's own; entries: choices */
    double rank_bytes, node_bytes; /* the larger of the bytes to and from other nodes */
    double messages;               /* messages to other nodes, with one message per row */
};

/* Memory of weights, which an operation keeps for all iterations. */
struct op_weights {
    uint64_t host, device; /* bytes of a rank */
};

/* A property of outputs that a consumer sees. */
struct op_property {
    const char *name, *value; /* "layout", "expert"; value NULL: invisible to the consumer */
    bool is_flag;             /* the value is "true" or "false" */
};
enum { OP_PROPERTIES = 4, OP_STATISTICS = 16 };

/* A statistic of inputs. */
struct op_statistic {
    const char *path; /* in the object of the statistics: "tokens_per_rank.max" */
    double number;    /* NaN: unknown */
    bool is_count;
};

/* Findings of a check. `where` begins the sentence about an element ("row 3"), or is empty. */
struct op_finding {
    const char *stage;
    uint32_t rank;
    uint64_t iteration, compared, wrong;
    char where[96];
    struct op_share share;
    struct epa_error *err;
};

struct operation {
    enum epa_op op;
    const char *name; /* "moe" */

    /* ---- configuration ---- */

    /* The key of the size of a rank's input, and its label on an axis; for sweeps (-b, -e), plots and
     * advice. */
    const char *size_key, *size_label;
    uint64_t (*size)(const struct problem_params *); /* value of size_key */
    /* The key of the number of copies of each unit (topk), and its value. NULL, both: one copy. */
    const char *copies_key;
    uint32_t (*copies)(const struct problem_params *);
    const char *weights_keys; /* ", KEY...": keys that reduce weights; NULL: no weights */
    /* Returns a further section for the head of a report ("expert"), or NULL. NULL: never. */
    const char *(*head_also)(const struct problem_params *);
    /* Sections in the head of a report: the names of a line, then NULL; a second NULL ends the
     * lines. */
    const char *const *head;
    /* Rejects a footprint whose results this operation cannot verify. Optional. */
    enum epa_status (*refuse_footprint)(const struct problem_params *, const struct epa_footprint *,
                                        struct epa_error *);
    /* Algorithms on devices distinguish nodes even if loads and stores reach all ranks: ranks_per_node
     * then divides one host into nodes. */
    bool device_nodes;
    /* Sets the shapes of a problem of a rank; array pointers are NULL. The shapes of rank 0 are the
     * largest. */
    void (*shape)(const struct problem_params *, uint32_t rank, struct epa_problem *out);

    /* ---- input files; all NULL: the operation reads no files ---- */

    /* Runs in the parent before ranks start. *out stays NULL without input files. */
    enum epa_status (*source_open)(const struct problem_params *, const struct op_advice *,
                                   struct op_source **out, struct epa_error *);
    void (*source_close)(struct op_source *);

    /* ---- a rank ---- */

    /* Memory of a rank: state_bytes for its own struct, and in each slot the arrays that `arrays` lists
     * for a number of units. Returns the number of arrays, at most OP_ARRAYS. */
    size_t state_bytes;
    const char *unit; /* name of a counter in traces: "tokens" */
    uint64_t (*most_units)(const struct problem_params *);
    uint32_t (*arrays)(const struct problem_params *, uint64_t units, struct op_array *out);
    /* State besides the slots; all NULL: none. init() may fail with partial state, which finish()
     * accepts. */
    enum epa_status (*init)(struct op_rank *, const struct op_params *, struct epa_error *);
    void (*finish)(struct op_rank *);
    /* Upper bound of the host memory of this state with a backend, with or without the memory of
     * checks. */
    uint64_t (*bytes)(const struct problem_params *, const struct epa_footprint *, enum epa_memory,
                      uint32_t slots, bool checks);
    /* Further memory of weights; NULL: none, or included in `bytes`. */
    struct op_weights (*weights_bytes)(const struct problem_params *, const struct epa_footprint *,
                                       enum epa_memory, uint32_t workers);
    /* Sets the pointers to weights in a problem with shapes only, for the creation of an algorithm.
     * NULL: no weights. */
    void (*weights)(const struct op_rank *, struct epa_problem *);
    /* Measures the computing peaks, and the rate of memory, for bench. Collective: all ranks measure at a time. NULL: the
     * operation does not compute. */
    enum epa_status (*measure)(struct op_rank *, struct op_peaks *out, struct epa_error *);
    /* Names the implementation of `between` if it is timed, such as "avx512 kernels". NULL without
     * `between`. */
    void (*between_by)(const struct op_rank *, char *out, size_t room);
    /* Makes the inputs of the slot's iteration in host memory, and sets the pointers of its problem,
     * which has shapes. Returns the number of units of this rank. */
    uint32_t (*inputs)(struct op_rank *, struct op_slot *);
    /* Work of the core between dispatch and combine. NULL: the operation has no such stages. */
    enum epa_status (*between)(struct op_rank *, uint32_t slot, struct epa_error *);
    const char *between_name; /* in traces */
    /* Returns true if this work is a timed stage with a row in reports. NULL: never. */
    bool (*between_is_timed)(const struct problem_params *, const struct epa_footprint *);
    /* Replaces `between` in a graph: combine reads the outputs that `between` stored in the algorithm's
     * memory in an earlier iteration. NULL without `between`. */
    void (*between_in_graph)(struct op_rank *, uint32_t slot);
    /* Compares every output of a stage of this kind (a phase or WHOLE). Returns an error if a comparison
     * is impossible. */
    enum epa_status (*check)(struct op_rank *, enum epa_stage_kind, uint32_t slot,
                             struct op_finding *);
    /* Reason why check() may compare only a part of the outputs. NULL: it compares all outputs. */
    const char *partly;
    /* Compares the outputs of the first phase after the last stage with their contents at the time of
     * check(). NULL: they may change. */
    enum epa_status (*check_kept)(struct op_rank *, uint32_t slot, struct op_finding *);
    /* Adds the iteration in `slot` to sums. */
    void (*traffic)(const struct op_rank *, uint32_t slot, struct op_traffic *sum);

    /* ---- the report ---- */

    uint32_t n_phases;
    struct op_phase phase[OP_PHASES];
    /* Statistics of inputs: up to OP_STATS_BYTES, initially zero, summed by rank 0 over iterations. All
     * NULL: no statistics. */
    void (*stats_add)(void *stats, const struct problem_params *, const struct op_source *,
                      uint64_t iteration);
    /* Adds lines under the table; none without iterations. */
    void (*stats_lines)(const void *stats, struct text *out);
    const char *stats_key; /* key of the statistics in results */
    /* Returns the number of statistics, at most OP_STATISTICS; 0: no iterations. */
    uint32_t (*stats_list)(const void *stats, const struct op_source *, struct op_statistic *out);
    /* Computes the load for `epa2a predict` with the plan of the algorithm, for any number of ranks.
     * NULL: unknown. */
    void (*load)(const struct problem_params *, const struct epa_footprint *,
                 const struct op_source *, uint64_t iteration, struct op_load load[OP_PHASES]);
    /* Returns the number of output properties that a consumer sees, at most OP_PROPERTIES. Runs that
     * differ in them are compared only with --across. NULL: all algorithms have the same properties. */
    uint32_t (*delivers)(const struct problem_params *, const struct epa_footprint *,
                         struct op_property *out);
    /* Adds warnings, one per line, for a result with the inputs of `iterations`. Optional. */
    void (*warn)(const struct problem_params *, const struct op_source *, uint64_t iterations,
                 struct text *out);
};

/* Returns the units of a rank in an iteration from the section `tokens`, at most `most`. */
uint32_t op_tokens_of(const struct problem_params *, uint32_t most, uint32_t rank,
                      uint64_t iteration);

/* ---- for operations ---- */

/* Counts a wrong element and reports the first one with rank, iteration, stage and `where`. */
EPA_PRINTF(2, 3) void op_wrong(struct op_finding *, const char *fmt, ...);

/* Takes the status of a backend call. After a failure reports the explanation of the backend and the
 * failed action. */
EPA_PRINTF(4, 5)
enum epa_status op_backend_done(struct epa_backend *, enum epa_status, struct epa_error *,
                                const char *fmt, ...);
/* Allocates memory of the backend with OP_SPARE unused bytes behind it. */
enum epa_status op_alloc(struct epa_backend *, const char *what, uint64_t bytes, void **out,
                         struct epa_error *);

/* Implements operation.measure for products of this dtype. op_measure_memory(): only the rate of the
 * memory of a device. */
enum epa_status op_measure_memory(struct op_rank *, struct op_peaks *out, struct epa_error *err);
enum epa_status op_measure_peaks(struct op_rank *, enum epa_dtype, struct op_peaks *out,
                                 struct epa_error *);

/* Allocates a buffer; 0 bytes need no memory. */
enum epa_status op_buffer_alloc(struct epa_backend *, const char *what, uint64_t bytes,
                                struct op_buffer *out, struct epa_error *);
void op_buffer_free(struct epa_backend *, struct op_buffer *);
/* Copy the first `bytes` from host to backend memory, and back. */
enum epa_status op_buffer_send(struct epa_backend *, const struct op_buffer *, uint64_t bytes);
enum epa_status op_buffer_read(struct epa_backend *, const struct op_buffer *, uint64_t bytes);

/* ---- state of a rank ---- */

enum epa_status op_create(const struct operation *, const struct op_params *, struct op_rank **out,
                          struct epa_error *);
void op_destroy(struct op_rank *); /* accepts NULL */

/* Returns an upper bound of the host memory of a rank. */
uint64_t op_bytes(const struct operation *, const struct problem_params *,
                  const struct epa_footprint *, enum epa_memory, uint32_t slots, bool checks);

/* Makes the inputs of `iteration` in a slot and poisons its outputs. */
enum epa_status op_inputs(struct op_rank *, uint32_t slot, uint64_t iteration);

/* Checks the outputs of a stage in a slot; adds to *compared and *wrong. EPA_ERR_MISMATCH: err contains
 * the first wrong element with iteration and rank. */
enum epa_status op_check(struct op_rank *, enum epa_stage_kind, uint32_t slot, uint64_t *compared,
                         uint64_t *wrong, struct epa_error *);

/* Returns true for iterations with op_check_kept(): a fourth of them, since digests take time. */
static inline bool op_keeps(uint64_t iteration)
{
    return iteration % 4 == 0;
}

/* Calls operation.check_kept; reports like op_check(). */
enum epa_status op_check_kept(struct op_rank *, uint32_t slot, uint64_t *wrong, struct epa_error *);

extern const struct operation op_moe, op_allgather, op_ag_gemm;

#endif
