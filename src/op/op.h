/* The interface of an operation: everything the core knows of what is computed. Session,
 * report and trace reach an operation through this table only; its options are a section of
 * the experiment (config/experiment.c), its shapes a member of struct epa_problem.
 *
 * Everything is a function of (seed, rank, iteration): any rank can make any other rank's
 * inputs, so a check needs no communication. */
#ifndef OP_H
#define OP_H

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>
#include <jansson.h>

#include "base/text.h"
#include "config/experiment.h"

struct config_check;

/* Contents of the files an operation reads, loaded once and const from then on. Each
 * operation defines what is in it for itself. */
struct op_source;

enum { OP_PHASES = 2, OP_STATS_BYTES = 256, OP_ARRAYS = 8, OP_SPARE = 64, OP_POISON = 0xff };

/* Memory of the backend (`there`), and where the host works on it (`here`): the same place
 * where the backend is the host. NULL, both: there is none. */
struct op_buffer {
    void *there, *here;
};

/* An array that a problem points to, for so many units of a rank (tokens, rows); behind it are
 * OP_SPARE bytes more that nobody uses. */
struct op_array {
    const char *what;
    uint64_t bytes; /* 0: there is none; of an output: for the most units */
    bool output;    /* an algorithm writes it; it holds OP_POISON before */
};

/* A problem with inputs and outputs of its own. */
struct op_slot {
    struct epa_problem problem;
    uint64_t iteration;
    uint32_t units; /* that this rank has in it */
    struct op_buffer array[OP_ARRAYS];
};

/* Outputs of the last phase. */
struct op_share {
    uint64_t outputs, compared; /* elements; compared: with the reference */
    uint64_t overflowed;        /* not compared: the right value may exceed the range of a float */
    double widest, widths; /* of intervals of right values, of the sum of magnitudes of the terms:
                              the most, and the sum over those compared */
};

/* One rank's side of an operation: the first member of the operation's own struct. */
struct op_rank {
    const struct operation *operation;
    const struct experiment *x;
    const struct op_source *source; /* NULL: nothing is read */
    struct epa_world world;
    struct epa_footprint footprint;
    struct epa_backend *backend;
    uint32_t n_slots;
    struct op_share share; /* of all checks so far */
    struct op_slot *slot;  /* their problems are always at the same address */
};

struct op_params {
    const struct experiment *x;
    const struct epa_world *world;
    const struct epa_footprint *footprint;
    const struct op_source *source; /* NULL: nothing is read */
    struct epa_backend *backend;
    uint32_t slots;
    /* Some inputs are hard for numerics (zeros, outliers, denormals): in verify, where
     * nothing is timed. */
    bool hard_values;
};

/* A part of an iteration that bytes are counted for, and the kind of the stage that it is
 * where an algorithm has such a stage. The row of EPA_STAGE_WHOLE, and the total, are the
 * sum of all phases. */
struct op_phase {
    const char *name; /* in the report */
    enum epa_stage_kind kind;
};

/* Bytes of one rank in one phase, summed over iterations. */
struct op_bytes {
    uint64_t needed;         /* payload the operation asks for */
    uint64_t sent, received; /* to and from other ranks, headers and padding included */
    uint64_t least;          /* the fewest bytes that must leave it or reach it */
};

struct op_traffic {
    struct op_bytes phase[OP_PHASES];
    double flops;     /* of epa_footprint.flops, what the inputs of the iteration take */
    uint64_t weights; /* bytes of weights that are read at least */
};

/* What a rank, all its workers or its device, does at best; 0: not known. */
struct op_peaks {
    double flops_per_ns, bytes_per_ns; /* multiply-adds out of registers, memory read */
};

static inline void op_bytes_add(struct op_bytes *sum, const struct op_bytes *b)
{
    sum->needed += b->needed;
    sum->sent += b->sent;
    sum->received += b->received;
    sum->least += b->least;
}

static inline void op_traffic_add(struct op_traffic *sum, const struct op_traffic *t)
{
    for (uint32_t i = 0; i < OP_PHASES; i++)
        op_bytes_add(&sum->phase[i], &t->phase[i]);
    sum->flops += t->flops;
    sum->weights += t->weights;
}

/* What an iteration of a world has to move in a phase, by arithmetic: no rank is there. Of the
 * busiest rank, or link, each figure for itself. */
struct op_load {
    double rows, entries; /* sent and received, the rank's own included; entries: choices */
    double rank_bytes, node_bytes; /* to or from other nodes, whichever is more */
    double messages;               /* to other nodes, where each row is one */
};

/* What an operation keeps for all iterations besides its inputs: weights. */
struct op_weights {
    uint64_t host, device; /* bytes of a rank */
};

/* What a check finds. `where`: begins the sentence about an element, "row 3"; may be empty. */
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

    /* The key that sets how much each rank has, and its label on an axis; for sweeps (-b,
     * -e), plots and advice. */
    const char *size_key, *size_label;
    uint64_t (*size)(const struct experiment *); /* its value */
    /* The key that sets how many places each of those goes to, and its value. NULL, both: one. */
    const char *copies_key;
    uint32_t (*copies)(const struct experiment *);
    const char *weights_keys; /* ", KEY..." that make weights smaller; NULL: there are none */
    /* A section more that a report begins with, "expert", where it says something. NULL: never. */
    const char *(*head_also)(const struct experiment *);
    /* Sections that a report begins with: names of a line, then NULL; another NULL ends the
     * lines. */
    const char *const *head;
    /* Relations between the operation's options; wrong ones are reported. */
    void (*check_options)(const struct config_check *);
    /* What it cannot check of what the algorithm has planned. NULL: nothing. */
    enum epa_status (*refuse_footprint)(const struct experiment *, const struct epa_footprint *,
                                        struct epa_error *);
    /* Relations again, once the algorithm has planned: what this footprint excludes. NULL:
     * nothing. */
    void (*check_footprint)(const struct config_check *, const struct epa_footprint *);
    /* Its algorithms on devices distinguish nodes also where loads and stores reach all ranks: then
     * ranks_per_node makes nodes of one host. */
    bool device_nodes;
    /* Shapes only; arrays NULL. */
    void (*shape)(const struct experiment *, struct epa_problem *out);

    /* ---- files; NULL, all of them: the operation reads none ---- */

    /* In the parent, before there are ranks. *out stays NULL where nothing is read. */
    enum epa_status (*open)(const struct experiment *, struct op_source **out, struct epa_error *);
    void (*close)(struct op_source *);

    /* ---- a rank ---- */

    /* What a rank of the operation has: `state_bytes` of its own struct, and in each slot these
     * arrays, for `units` of its own, at most OP_ARRAYS. Returns how many. */
    size_t state_bytes;
    const char *unit; /* a counter of traces: "tokens" */
    uint64_t (*most_units)(const struct experiment *);
    uint32_t (*arrays)(const struct experiment *, uint64_t units, struct op_array *out);
    /* What is beside its slots; NULL, all of them: nothing. init() may fail half way: finish()
     * takes what there is. */
    enum epa_status (*init)(struct op_rank *, const struct op_params *, struct epa_error *);
    void (*finish)(struct op_rank *);
    /* Bytes of host memory that takes at most with such a backend, with or without the memory of
     * checks. */
    uint64_t (*bytes)(const struct experiment *, const struct epa_footprint *, enum epa_memory,
                      uint32_t slots, bool checks);
    /* What weights take besides; NULL: nothing, or `bytes` has them. */
    struct op_weights (*weights_bytes)(const struct experiment *, const struct epa_footprint *,
                                       enum epa_memory);
    /* Sets the pointers to weights, with which an algorithm is created, in a problem that has
     * shapes only. NULL: there are none. */
    void (*weights)(const struct op_rank *, struct epa_problem *);
    /* For bench; collective: all ranks measure at a time. NULL: nothing is computed. */
    enum epa_status (*measure)(struct op_rank *, struct op_peaks *out, struct epa_error *);
    /* What computes `between` where that is timed, such as "avx512 kernels". NULL as there. */
    void (*between_by)(const struct op_rank *, char *out, size_t room);
    /* Makes the inputs of the slot's iteration where the host works on them, and sets the pointers
     * of its problem, which has shapes. Returns how many units this rank has. */
    uint32_t (*inputs)(struct op_rank *, struct op_slot *);
    /* Work that the core does between dispatch and combine. NULL: there are no such stages. */
    enum epa_status (*between)(struct op_rank *, uint32_t slot, struct epa_error *);
    const char *between_name; /* in traces */
    /* Whether that is a stage of its own, with a row in reports. NULL: never. */
    bool (*between_is_timed)(const struct experiment *, const struct epa_footprint *);
    /* In a graph, in place of `between`: points combine at what `between` left in the
     * algorithm's memory in an iteration before. NULL as above. */
    void (*between_in_graph)(struct op_rank *, uint32_t slot);
    /* Compares what a stage of this kind, of a phase or WHOLE, left, element by element. Other than
     * EPA_OK: it could not be compared. */
    enum epa_status (*check)(struct op_rank *, enum epa_stage_kind, uint32_t slot,
                             struct op_finding *);
    /* Why check() may compare a part of the outputs. NULL: it compares all. */
    const char *partly;
    /* Compares the outputs of the first phase, after the last stage, with their contents at the
     * time of check(). NULL: they need not stay. */
    enum epa_status (*check_kept)(struct op_rank *, uint32_t slot, struct op_finding *);
    /* Adds the iteration in `slot` to sums. */
    void (*traffic)(const struct op_rank *, uint32_t slot, struct op_traffic *sum);

    /* ---- the report ---- */

    uint32_t n_phases;
    struct op_phase phase[OP_PHASES];
    /* Statistics of inputs: OP_STATS_BYTES or fewer, zeros at first, added up by rank 0 over
     * iterations. NULL, all of them: there are none. */
    void (*stats_add)(void *stats, const struct experiment *, const struct op_source *,
                      uint64_t iteration);
    /* Lines under the table; nothing without iterations. */
    void (*stats_lines)(const void *stats, struct text *out);
    const char *stats_key; /* in JSON, where this is: */
    json_t *(*stats_json)(const void *stats, const struct op_source *);
    /* What `epa2a predict` counts, of a planned experiment, which may have more ranks than can run.
     * NULL: it is not known. */
    void (*load)(const struct experiment *, const struct op_source *, uint64_t iteration,
                 struct op_load load[OP_PHASES]);
    /* What is given to who uses the outputs: {"layout": "expert", ...}. Runs that give something
     * else are not held against each other unasked. NULL: all algorithms give the same. */
    json_t *(*delivers)(const struct experiment *, const struct epa_footprint *);
    /* Warnings, one a line, of a result with inputs of so many iterations. NULL: none. */
    void (*warn)(const struct experiment *, const struct op_source *, uint64_t iterations,
                 struct text *out);
};

/* NULL: this program does not know it. */
const struct operation *operation_of(enum epa_op);
/* By position, for lists; NULL ends. */
const struct operation *operation_at(uint32_t i);

/* "moe, allgather": names of those in a set of bits 1 << enum epa_op. */
void operation_names(uint32_t ops, struct text *out);

/* That of the experiment's algorithm; NULL: none was loaded, or it is not known. */
const struct operation *operation_of_experiment(const struct experiment *);
/* How many places each row or token of the experiment goes to. */
uint32_t operation_copies(const struct experiment *);

/* `tokens:` of a rank in an iteration, at most `most`. */
uint32_t op_tokens_of(const struct experiment *, uint32_t most, uint32_t rank, uint64_t iteration);

/* ---- for operations ---- */

/* One element more is wrong; the first one is reported, with rank, iteration, stage and where. */
EPA_PRINTF(2, 3) void op_wrong(struct op_finding *, const char *fmt, ...);

/* Of a call of the backend: where it failed, what it says and what could not be done. */
EPA_PRINTF(4, 5)
enum epa_status op_backend_done(struct epa_backend *, enum epa_status, struct epa_error *,
                                const char *fmt, ...);
/* Memory of the backend; behind it are OP_SPARE bytes more that nobody uses. */
enum epa_status op_alloc(struct epa_backend *, const char *what, uint64_t bytes, void **out,
                         struct epa_error *);

/* Of products of this dtype; for operation.measure. */
enum epa_status op_measure_peaks(struct op_rank *, enum epa_dtype, struct op_peaks *out,
                                 struct epa_error *);

/* No memory where there are no bytes. */
enum epa_status op_buffer_alloc(struct epa_backend *, const char *what, uint64_t bytes,
                                struct op_buffer *out, struct epa_error *);
void op_buffer_free(struct epa_backend *, struct op_buffer *);
/* The first `bytes` from here to there, or back. */
enum epa_status op_buffer_send(struct epa_backend *, const struct op_buffer *, uint64_t bytes);
enum epa_status op_buffer_read(struct epa_backend *, const struct op_buffer *, uint64_t bytes);

/* ---- a rank's side ---- */

enum epa_status op_create(const struct operation *, const struct op_params *, struct op_rank **out,
                          struct epa_error *);
void op_destroy(struct op_rank *); /* takes NULL */

/* Bytes of host memory that takes at most. */
uint64_t op_bytes(const struct operation *, const struct experiment *, const struct epa_footprint *,
                  enum epa_memory, uint32_t slots, bool checks);

/* Makes the inputs of `iteration` in a slot and poisons its outputs. Fails if the backend does. */
enum epa_status op_inputs(struct op_rank *, uint32_t slot, uint64_t iteration);

/* Checks what a stage left in a slot; adds to *compared and *wrong. EPA_ERR_MISMATCH: err has the
 * first wrong element, with iteration and rank. */
enum epa_status op_check(struct op_rank *, enum epa_stage_kind, uint32_t slot, uint64_t *compared,
                         uint64_t *wrong, struct epa_error *);

/* Iterations after which op_check_kept() is called: a fourth of them, as digests take time. */
static inline bool op_keeps(uint64_t iteration)
{
    return iteration % 4 == 0;
}

/* operation.check_kept, reported in the same way. */
enum epa_status op_check_kept(struct op_rank *, uint32_t slot, uint64_t *wrong, struct epa_error *);

/* The shapes of a problem as plan() wants them. */
struct epa_problem operation_problem(const struct experiment *);

/* What a file of captured routing holds, as text and as JSON (a new reference; NULL: there was no
 * memory). layer UINT32_MAX: the file has one; experts 0: as the file says. */
enum epa_status op_describe_routing(const char *path, uint32_t layer, uint32_t experts,
                                    struct text *out, json_t **json, struct epa_error *);

extern const struct operation op_moe, op_allgather, op_ag_gemm;

/* ---- gather.c: what allgather and ag_gemm have in common, counts of rows ---- */

/* The first of a slot's arrays: uint32_t [size], the rows of each rank. */
enum { GATHER_ROWS };

static inline struct op_array op_gather_array(const struct experiment *x)
{
    return (struct op_array){"rows", x->ranks * sizeof(uint32_t)};
}

static inline const uint32_t *op_gather_counts(const struct op_slot *s)
{
    return s->array[GATHER_ROWS].here;
}

/* Of all ranks. */
uint64_t op_gather_rows(const struct op_rank *, const struct op_slot *);

/* Every rank needs the rows of all others, `payload` bytes each; its own leave at least once. As
 * they are sent they have row_bytes; this rank sends `sent` of them, and control_bytes to each. */
struct op_bytes op_gather_bytes(const struct op_rank *, const struct op_slot *, uint64_t payload,
                                uint64_t row_bytes, uint64_t sent, uint64_t control_bytes);

/* ---- ag_gemm_check.c: what the matrices of ag_gemm hold, as a function of (seed, rank,
 * iteration), and the check of a row of C ---- */

struct gemm_values {
    uint64_t seed;
    uint32_t n, k;
    int dtype; /* of A and B */
    bool integers, bias;
};

/* Row `row` of A of a rank: k elements, and for FP8 its scales. */
void gemm_make_a(const struct gemm_values *, uint32_t rank, uint64_t iteration, uint32_t row,
                 void *out, float *scale);
/* Row `row` of B of a rank; the scales of all of its blocks; its bias. */
void gemm_make_b(const struct gemm_values *, uint32_t rank, uint32_t row, void *out);
void gemm_make_b_scale(const struct gemm_values *, uint32_t rank, float *out);
void gemm_make_bias(const struct gemm_values *, uint32_t rank, float *out);

/* Of one rank's C. */
struct gemm_reference;

/* rows: most that C can have. */
enum epa_status gemm_reference_create(const struct gemm_values *, uint32_t rank, uint64_t rows,
                                      struct gemm_reference **out, struct epa_error *);
void gemm_reference_destroy(struct gemm_reference *); /* takes NULL */
uint64_t gemm_reference_bytes(const struct gemm_values *, uint64_t rows);

/* A row of C [n], the product with row `row` of A of rank `source`: counts elements, or sums of
 * elements, that are wrong. */
void gemm_check_row(struct gemm_reference *, uint64_t iteration, uint32_t source, uint32_t row,
                    const uint16_t *c, struct op_finding *);

#endif
