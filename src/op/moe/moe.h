/* Mixture of experts: declarations that the files of this operation share: inputs and traffic
 * (inputs.c), views of delivered rows and checks (check.c, check_combine.c), synthetic experts
 * (experts.c) and the table (moe.c). Only these files and tests include this header; the core uses
 * op_moe. */
#ifndef OP_MOE_H
#define OP_MOE_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

#include <epa2a/status.h>
#include <epa2a/problem.h>

#include "base/dtype.h"
#include "base/random.h"
#include "base/text.h"
#include "op/moe/routing.h"
#include "kernels/libraries.h"
#include "op/op.h"
#include "config/experiment.h"

/* Weights of real experts are functions of (seed, global expert, matrix, row, column): any rank and the
 * checks make any part of them with the same bits. Tokens of expert.values: integers are made here, too,
 * since they must fit these weights.
 *
 * random: dense. Signs, two bits of the exponent and the whole mantissa are bits of a hash. So signs are
 * independent of magnitudes and of each other, which the bounds of reference.c require. Outputs have
 * about the size of tokens. FP8: the scale of a block has 23 random bits.
 *
 * integers: a row of W has up to 16 entries, small integers times a power of two, at hashed positions,
 * one in each sixteenth of the row. Tokens are integers from -7 to 7 times 1/8 or 1/4, with one factor
 * per group of channels that share a scale. Each sum then consists of few multiples of a common unit and
 * is exact in float32, in any order. FP8 scales must be powers of two; otherwise the sum over groups
 * would be rounded. Therefore each group of a token has a pilot channel with the value +-7, which makes
 * its scale a power of two (7 * (1/448 in float32) rounds to 1/64, and codes are 64 times the integer).
 * Without activation each group of the intermediate has a pilot, too: a row of W_up with one entry at a
 * pilot of x, which gives +-28 times the same 1 or 2. No other channel exceeds this value: other rows
 * have weights of +-1 and none at pilots of x, so their maximum is 16 * 7/4 with block scales up to 1. */

enum weights_matrix { WEIGHTS_UP, WEIGHTS_DOWN, WEIGHTS_MATRICES };

enum { WEIGHTS_ENTRIES = 16, WEIGHTS_BLOCK = 128 };

struct weights {
    uint64_t seed;
    uint32_t hidden;
    bool integers, pilots; /* pilots: the intermediate has pilots */
    uint32_t x_group;      /* channels of a token that share a scale, if tokens have scales */
    struct epa_mlp mlp;    /* shapes; pointers NULL */
};

/* Initialises the weights of an experiment with expert.kind: mlp. */
void weights_init(const struct experiment *, struct weights *out);

/* Returns the shape of the experts without pointers; ffn is 0 for synthetic experts. */
struct epa_mlp weights_shape(const struct experiment *);

static inline uint32_t weights_rows(const struct weights *w, enum weights_matrix m)
{
    return m == WEIGHTS_UP ? epa_mlp_up_rows(&w->mlp) : w->hidden;
}

static inline uint32_t weights_columns(const struct weights *w, enum weights_matrix m)
{
    return m == WEIGHTS_UP ? w->hidden : w->mlp.ffn;
}

/* Rows of a matrix form blocks of WEIGHTS_BLOCK. The last block of each projection, or of W_down, may
 * have fewer rows. */
static inline uint32_t weights_blocks(const struct weights *w, enum weights_matrix m)
{
    return m == WEIGHTS_UP ? epa_mlp_up_blocks(&w->mlp) : epa_mlp_blocks(w->hidden);
}

struct weights_block {
    uint32_t first, rows;
};

static inline struct weights_block weights_block(const struct weights *w, enum weights_matrix m,
                                                 uint32_t block)
{
    uint32_t rows = m == WEIGHTS_UP ? w->mlp.ffn : w->hidden, each = epa_mlp_blocks(rows);
    uint32_t first = block % each * WEIGHTS_BLOCK, left = rows - first;

    return (struct weights_block){block / each * rows + first,
                                  left < WEIGHTS_BLOCK ? left : WEIGHTS_BLOCK};
}

/* FP8: number of scales of a row of blocks. */
static inline uint32_t weights_scales_of_row(const struct weights *w, enum weights_matrix m)
{
    return epa_mlp_blocks(weights_columns(w, m));
}

static inline size_t weights_element(const struct weights *w)
{
    return w->mlp.dtype == EPA_FP8_E4M3 ? 1 : 2;
}

/* Returns the bytes of the weights and scales of `experts` experts. */
uint64_t weights_bytes(const struct weights *, uint32_t experts);

/* Makes a row in the type of the weights. */
void weights_row(const struct weights *, uint32_t expert, enum weights_matrix, uint32_t row,
                 void *out);
/* FP8: makes the scales [columns / 128] of the blocks that begin at row `block` * 128. */
void weights_scales(const struct weights *, uint32_t expert, enum weights_matrix, uint32_t block,
                    float *out);
/* integers: lists the non-zero entries of a row in order of columns, without the scale of their block.
 * Returns their number. */
uint32_t weights_entries(const struct weights *, uint32_t expert, enum weights_matrix, uint32_t row,
                         uint32_t column[WEIGHTS_ENTRIES], float value[WEIGHTS_ENTRIES]);

/* integers: common units of tokens, of products of the first projection, and of products of both
 * projections. All sums are multiples of them. */
#define WEIGHTS_UNIT_X 0x1p-3
#define WEIGHTS_UNIT_UP 0x1p-2
#define WEIGHTS_UNIT_DOWN 0x1p-3
/* integers: weights of the routing are non-zero multiples of this unit. */
#define WEIGHTS_UNIT_ROUTING 0x1p-6f

/* integers: makes a token; `key` selects its random stream. */
void weights_token(const struct weights *, uint64_t key, bool f16, uint16_t *out);

/* ---- functions of the table; op.h describes them ---- */

enum epa_status op_moe_refuse(const struct experiment *, const struct epa_footprint *,
                              struct epa_error *);
uint64_t op_moe_most_tokens(const struct experiment *);
uint32_t op_moe_arrays(const struct experiment *, uint64_t tokens, struct op_array *out);
enum epa_status op_moe_init(struct op_rank *, const struct op_params *, struct epa_error *);
void op_moe_finish(struct op_rank *);
uint64_t op_moe_bytes(const struct experiment *, const struct epa_footprint *, enum epa_memory,
                      uint32_t slots, bool checks);
/* Makes x (or x_fp8 and x_scale, with x NULL), expert, weight and tokens. */
uint32_t op_moe_inputs(struct op_rank *, struct op_slot *);
void op_moe_traffic(const struct op_rank *, uint32_t slot, struct op_traffic *sum);
/* Adds to a struct routing_stats, which is initially zero. */
void op_moe_stats_add(void *stats, const struct experiment *, const struct op_source *,
                      uint64_t iteration);
void op_moe_load(const struct experiment *, const struct op_source *, uint64_t iteration,
                 struct op_load load[OP_PHASES]);
/* Computes the expert outputs y of `slot` (in_place or separate) from recv. No effect if the algorithm
 * computes the experts. */
enum epa_status op_moe_experts(struct op_rank *, uint32_t slot, struct epa_error *);

/* ---- the checks; a stage of kind WHOLE has the outputs of a combine ---- */

enum epa_status op_moe_check_dispatch(struct op_rank *, uint32_t slot, struct op_finding *);
enum epa_status op_moe_check_out(struct op_rank *, uint32_t slot, struct op_finding *);
/* After combine: checks that the views of dispatch still contain the values that op_moe_check_dispatch()
 * read. */
enum epa_status op_moe_check_views(struct op_rank *, uint32_t slot, struct op_finding *);

/* ---- state of a rank ---- */

/* Arrays of a slot, [max_tokens] each: the inputs of an algorithm and, last, its output. */
enum {
    ARRAY_X,
    ARRAY_X_FP8,
    ARRAY_X_SCALE,
    ARRAY_EXPERT,
    ARRAY_WEIGHT,
    ARRAY_FACTOR,
    ARRAY_OUT,
    ARRAYS
};

/* An entry of a row in layout rank. */
struct share {
    uint32_t entry;  /* index in the lists of a view */
    uint32_t expert; /* local number */
};

/* Growable host buffer; the contents are lost on growth. */
struct area {
    void *data;
    size_t bytes;
};

/* Rows or entries `first` to first + n - 1. */
struct run {
    uint64_t first, n;
};

/* Received rows in host memory, with the strides of the algorithm. */
struct row_view {
    const char *data, *scale, *origin;
};

/* The rows that an algorithm delivered, readable by the host. From a device the checks copy used entries
 * only, so entries of the view are contiguous in order of experts, although the device memory may have
 * gaps. */
struct view {
    struct epa_moe m; /* recv_count, recv_start, recv_row and recv_weight are in host memory */
    uint64_t iteration;
    const uint64_t *first; /* [local experts]: first entry of each expert in recv_row,
                              recv_weight and, in layout expert, in rows */
    uint64_t entries;      /* number of used entries */
    uint64_t rows_end;     /* layout rank: end of the used rows */
    uint32_t n_runs;       /* number of op_moe.run: runs of used entries in device memory */
    struct row_view rows;
};

/* The row of an entry: its number for the algorithm, and its index in `rows` of a view. */
struct row_ref {
    uint64_t row, here;
};

enum { STAGED = 7 };

/* Digest of the views of the last dispatch in a slot, if its check succeeded. */
struct kept {
    uint64_t iteration, digest;
    bool known;
};

struct op_moe {
    struct op_rank r; /* first */
    struct epa_moe_footprint footprint;
    uint32_t local_experts;
    bool hard_values;
    void **y; /* [slots]: backend memory, allocated at first use unless y_space exists */
    struct op_buffer factor; /* float [experts]: input of the synthetic experts of a device */

    struct weights weights; /* of real experts; mlp.ffn 0: synthetic experts */
    struct epa_mlp mlp;     /* points to this rank's weights in backend memory, if an algorithm or
                               a device reads them */
    void *mlp_memory[4];    /* backend memory of mlp */
    struct mlp_experts *experts; /* experts_mlp.c: experts on the host, or NULL */
    struct epa_experts
        *device_experts; /* experts on a device, or NULL; at most one of both is set */

    struct pool scratch; /* memory of the arrays below except areas */
    uint16_t *row;       /* [hidden]: an input before quantisation */

    /* Layout rank: entries by row. */
    uint32_t *row_first;   /* [recv_rows + 1] */
    struct area share;     /* a struct share per used entry */
    uint16_t *output;      /* [topk][hidden] */
    const uint16_t **part; /* [topk] */
    float *part_weight;    /* [topk] */

    /* Host copies of device memory. */
    struct area staged[STAGED];
    struct run *run; /* [local experts] */
    uint64_t *first; /* [local experts] */

    struct check *check; /* allocated at first use */
    struct kept *kept;   /* [slots] */
};

static inline struct op_moe *op_moe_of(const struct op_rank *rank)
{
    return (struct op_moe *)(uintptr_t)rank;
}

/* Tokens, expert outputs and sums are f16, not bf16. */
static inline bool is_f16(const struct op_moe *op)
{
    return op->r.x->moe.dtype == EPA_F16;
}

static inline uint64_t hidden_groups(const struct op_moe *op)
{
    return op->r.x->moe.hidden / op->r.x->moe.fp8_group_size;
}

/* Returns the factor of a synthetic expert in an iteration, exact in each dtype. It depends on the seed,
 * which is unknown to plugins, so a combine cannot compute the expert outputs itself. */
static inline float op_moe_factor(const struct op_moe *op, uint64_t iteration, uint32_t expert)
{
    uint64_t draw = random_key(op->r.x->seed, RANDOM_FACTOR, 0, iteration);

    return op->r.x->expert.kind == EXPERT_RANK
               ? 1.0f + (float)(expert / op->local_experts)
               : expert_factor(expert + (uint32_t)(draw % EXPERT_FACTORS));
}

/* Writes the factors [experts] of an iteration. */
void op_moe_factors(const struct op_moe *, uint64_t iteration, float *out);

/* Makes the routing of a rank. With op->hard_values every fourth iteration has weights of both signs up
 * to 4, unless the experiment sets routing.weights. */
void op_moe_route(const struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t tokens,
                  int32_t *expert, float *weight);

/* Maximum number of rows of recv and y. */
static inline uint64_t op_moe_rows(const struct epa_moe_footprint *f)
{
    return f->layout == EPA_LAYOUT_EXPERT ? f->recv_entries : f->recv_rows;
}

/* Grows the area to at least `bytes`. */
enum epa_status op_moe_area(struct area *, const char *what, uint64_t bytes, struct epa_error *err);

/* Makes a token of any rank: [hidden] in dtype. */
void op_moe_token(const struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t token,
                  uint16_t *out);

static inline struct row_ref op_moe_row_ref(const struct view *v, uint32_t local_expert, uint64_t i)
{
    uint64_t at = v->first[local_expert] + i;

    if (v->m.recv_row != NULL)
        return (struct row_ref){v->m.recv_row[at], v->m.recv_row[at]};
    return (struct row_ref){v->m.recv_start[local_expert] + i, at};
}

/* Makes the view of a slot after dispatch. Checks that pointers are set and ranges are within the limits
 * of plan(); EPA_ERR_MISMATCH names a violation. The view is valid until the next call. */
enum epa_status op_moe_view(struct op_moe *, const struct op_slot *, struct view *out,
                            struct epa_error *err);

/* ---- real experts: weights (experts.c), and the host's GEMM (experts_mlp.c) ---- */

/* Destination of the weights of all local experts. Format: packed for `library`; packed for `gemm` if
 * `library` is NULL; the format of struct epa_mlp if both are NULL. */
enum { ONEDNN_ROWS = 256, ONEDNN_COLUMNS = 128, ONEDNN_STEP = 32 };

struct mlp_weights {
    const struct epa_gemm *gemm;
    /* If set, gemm is set, too, and each block of WEIGHTS_BLOCK rows is packed separately, with zeros for
     * missing rows. */
    struct onednn *library;
    void *up, *down;
    float *up_scale, *down_scale;
};

/* Makes the weights in host memory with the rank's workers. */
enum epa_status op_moe_weights_make(struct op_moe *, const struct mlp_weights *,
                                    struct epa_error *);
/* Makes the weights in backend memory and sets op->mlp. */
enum epa_status op_moe_weights_place(struct op_moe *, struct epa_error *);
/* Host memory of op_moe_weights_place() with a device backend. */
uint64_t op_moe_weights_stage_bytes(const struct weights *);

/* Creates this rank's weights and the experts of its backend. Creates neither if the algorithm computes
 * the experts, or for synthetic experts on hosts. */
enum epa_status op_moe_mlp_create(struct op_moe *, struct epa_error *);
void op_moe_mlp_destroy(struct op_moe *);
struct op_weights op_moe_mlp_bytes(const struct experiment *, const struct epa_footprint *,
                                   enum epa_memory);
/* Computes the outputs of the entries of a view, or in layout rank of its rows, to y. */
enum epa_status op_moe_mlp_run(struct op_moe *, const struct view *, uint16_t *y,
                               struct epa_error *);

void op_moe_mlp_by(const struct op_rank *, char *out, size_t room);

/* Layout rank: sorts the entries of a view by row and expert into op->row_first and op->share. */
enum epa_status op_moe_sort_shares(struct op_moe *, const struct view *, struct epa_error *);

uint64_t op_moe_check_bytes(const struct experiment *);
void op_moe_check_destroy(struct check *);

/* Declarations for the checks of dispatch and combine: the reference row and the reports of findings. */

/* ---- outputs of real experts (reference.c) ---- */

struct reference;

struct reference_params {
    const struct weights *weights;
    bool f16;              /* intermediate and outputs are rounded to f16; false: to bf16 */
    bool rounded;          /* outputs are rounded; false: they stay float32 */
    uint32_t fp8_sum_bits; /* as in epa_moe_footprint */
    uint32_t rows;         /* maximum number of rows of a call below */
};

/* A row in the input format of the up projection, [hidden]: values of dtype, or codes with a scale per
 * weights.x_group channels (NULL: native weights); and the destinations of its outputs, [hidden] each. */
struct reference_row {
    const float *x, *scale;
    float *low, *high;
};

/* Returns NULL without memory. */
struct reference *reference_create(const struct reference_params *);
void reference_destroy(struct reference *); /* accepts NULL */

/* Computes the outputs of n rows of one expert. An interval from -infinity to infinity means that the
 * output is unknown, since an earlier value may have overflowed. */
void reference_expert(struct reference *, uint32_t expert, uint32_t n,
                      const struct reference_row *);

/* Returns the bytes that reference_create() allocates. */
uint64_t reference_bytes(const struct weights *, uint32_t rows);

/* Returns the multiply-adds of a row, so that callers can limit their time. */
double reference_cost(const struct weights *);

/* Quantises a group of n values, each in an interval from low to high, to FP8 codes and a scale. */
struct reference_scale {
    float low, high;
};
struct reference_scale reference_quantise(const float *low, const float *high, uint32_t n,
                                          float *q_low, float *q_high);

/* ---- checks ---- */

struct range {
    uint64_t start, end;
    uint32_t expert;
};

struct check {
    struct pool pool; /* memory of all arrays below */
    /* Routing of all ranks in `iteration`, and 1 + the received entry of each choice. */
    uint64_t iteration;
    uint32_t *tokens;    /* [size] */
    int32_t *expert;     /* [size][max_tokens][topk] */
    float *weight;       /* [size][max_tokens][topk] */
    uint32_t *filed;     /* [size][max_tokens][topk] */
    struct range *range; /* [local experts] */

    /* Reference row: in dtype, or FP8 with scales; and its values in float. */
    uint16_t *x;
    uint8_t *q;
    float *scale, *value;

    float decode[256]; /* the value of each FP8 code */

    /* check_combine.c. [2]: both ends of intervals; synthetic experts use the first only. */
    float *output[2];          /* [hidden] of a synthetic expert; real: [tokens][topk][hidden] */
    uint16_t *sent;            /* [hidden]: an expert output before quantisation */
    uint8_t *sent_q;           /* [hidden] */
    float *quantised[2];       /* [hidden] */
    float *total[2], *part[2]; /* [hidden]: sums in the specified order */
    double *sum[2], *size;     /* [hidden]: exact sum, and sum of the magnitudes */
    uint32_t *order;           /* [topk]: kept choices in the order of addition */
    /* Real experts: a block of tokens in the input format of the up projection. */
    struct reference *reference;
    uint32_t block_tokens, *token;
    float *block_x, *block_scale; /* [tokens][hidden], and [hidden / weights.x_group] */
    struct reference_row *row;    /* [tokens]: rows of one expert */
};

/* Allocates op->check at first use, and loads the routing of an iteration. check_choice() is the index of
 * choice 0 of a token. */
enum epa_status check_begin(struct op_moe *, uint64_t iteration, struct epa_error *);
size_t check_choice(const struct op_moe *, uint32_t rank, uint32_t token);

/* Sets x, q, scale and value of op->check to the expected received row of a token. */
void check_load_row(struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t token);

/* Allocates the arrays of check_combine.c from the pool; and bytes of its other memory. */
void check_combine_lay_out(const struct experiment *, struct check *);
uint64_t check_combine_bytes(const struct experiment *);

/* ---- moe.c ---- */

/* Returns true if `value` is valid for `key` of the experiment; otherwise writes the reason. */
bool op_moe_takes(const struct experiment *, const char *key, uint64_t value, char *why,
                  size_t room);

#endif
