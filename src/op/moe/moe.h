/* Mixture of experts: what the chapters of this operation share, which are its inputs and
 * traffic (inputs.c), what an algorithm delivered (check.c), the synthetic experts
 * (experts.c), the checks (check.c, check_combine.c) and its table (moe.c). No others
 * include it, tests aside: the core sees op_moe. */
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

/* Weights of real experts as a function of (seed, global expert, matrix, row, column): any
 * rank, and the checks, make any part of them, with the same bits. Tokens of
 * expert.values: integers are here too, as they fit these weights.
 *
 * random: dense. Signs, two bits of the exponent and all of the mantissa are of a hash, so
 * signs are independent of magnitudes and of each other, which the bounds of reference.c use;
 * outputs have about the size of tokens. FP8: the scale of a block has 23 random bits.
 *
 * integers: a row of W has up to 16 entries, small integers times a power of two, at hashed
 * places, one in each sixteenth of the row. Tokens are integers from -7 to 7 times 1/8 or 1/4, one
 * or the other for each scale's group of channels. Each sum is then a sum of few multiples of a
 * common unit: exact in float32, in any order. For FP8 scales have to be powers of two, as
 * otherwise the sum over groups would be rounded: a group of a token has a pilot channel, which is
 * +-7, so that its scale is a power of two (7 * (1/448 in float32) rounds to 1/64, and codes are
 * 64 times the integer); without activation each group of the intermediate has a pilot too, a
 * row of W_up whose one entry, at a pilot of x, gives +-28 times the same 1 or 2, which no
 * other channel exceeds: those have weights of +-1 and none at pilots of x, so 16 * 7/4 is
 * their most, where blocks have no scale above 1. */

enum weights_matrix { WEIGHTS_UP, WEIGHTS_DOWN, WEIGHTS_MATRICES };

enum { WEIGHTS_ENTRIES = 16, WEIGHTS_BLOCK = 128 };

struct weights {
    uint64_t seed;
    uint32_t hidden;
    bool integers, pilots; /* pilots: of the intermediate */
    uint32_t x_group;      /* channels of a token that share a scale, where it has any */
    struct epa_mlp mlp;    /* shapes; pointers NULL */
};

/* Of an experiment with expert.kind: mlp. */
void weights_init(const struct experiment *, struct weights *out);

/* The same, without pointers; ffn is 0 where experts are synthetic. */
struct epa_mlp weights_shape(const struct experiment *);

static inline uint32_t weights_rows(const struct weights *w, enum weights_matrix m)
{
    return m == WEIGHTS_UP ? epa_mlp_up_rows(&w->mlp) : w->hidden;
}

static inline uint32_t weights_columns(const struct weights *w, enum weights_matrix m)
{
    return m == WEIGHTS_UP ? w->hidden : w->mlp.ffn;
}

/* Rows of a matrix are in blocks of WEIGHTS_BLOCK. The last block of each projection, or of W_down,
 * may have fewer rows. */
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

/* FP8: scales of a row of blocks. */
static inline uint32_t weights_scales_of_row(const struct weights *w, enum weights_matrix m)
{
    return epa_mlp_blocks(weights_columns(w, m));
}

static inline size_t weights_element(const struct weights *w)
{
    return w->mlp.dtype == EPA_FP8_E4M3 ? 1 : 2;
}

/* Bytes of `experts` experts' weights with their scales. */
uint64_t weights_bytes(const struct weights *, uint32_t experts);

/* A row in the weights' type. */
void weights_row(const struct weights *, uint32_t expert, enum weights_matrix, uint32_t row,
                 void *out);
/* FP8: scales of the blocks of rows `block` * 128 on: [columns / 128]. */
void weights_scales(const struct weights *, uint32_t expert, enum weights_matrix, uint32_t block,
                    float *out);
/* integers: the entries of a row that are not 0, columns ascending, without the scale of
 * their block. Returns how many. */
uint32_t weights_entries(const struct weights *, uint32_t expert, enum weights_matrix, uint32_t row,
                         uint32_t column[WEIGHTS_ENTRIES], float value[WEIGHTS_ENTRIES]);

/* integers: what there is no smaller part of. Tokens, products of the first and of both
 * projections, all sums of them: multiples of these. */
#define WEIGHTS_UNIT_X 0x1p-3
#define WEIGHTS_UNIT_UP 0x1p-2
#define WEIGHTS_UNIT_DOWN 0x1p-3
/* Weights of the routing are multiples of this then, and not 0. */
#define WEIGHTS_UNIT_ROUTING 0x1p-6f

/* integers: a token; key: its own stream. */
void weights_token(const struct weights *, uint64_t key, bool f16, uint16_t *out);

/* ---- in the table; op.h says what they do ---- */

enum epa_status op_moe_refuse(const struct experiment *, const struct epa_footprint *,
                              struct epa_error *);
uint64_t op_moe_most_tokens(const struct experiment *);
uint32_t op_moe_arrays(const struct experiment *, uint64_t tokens, struct op_array *out);
enum epa_status op_moe_init(struct op_rank *, const struct op_params *, struct epa_error *);
void op_moe_finish(struct op_rank *);
uint64_t op_moe_bytes(const struct experiment *, const struct epa_footprint *, enum epa_memory,
                      uint32_t slots, bool checks);
/* x (or x_fp8 and x_scale, x is NULL then), expert, weight, tokens. */
uint32_t op_moe_inputs(struct op_rank *, struct op_slot *);
void op_moe_traffic(const struct op_rank *, uint32_t slot, struct op_traffic *sum);
/* To a struct routing_stats, all zeros to begin with. */
void op_moe_stats_add(void *stats, const struct experiment *, const struct op_source *,
                      uint64_t iteration);
void op_moe_load(const struct experiment *, const struct op_source *, uint64_t iteration,
                 struct op_load load[OP_PHASES]);
/* Fills y (in_place or apart) of `slot` from recv, as the reference says. Nothing where the
 * algorithm does the experts' work itself. */
enum epa_status op_moe_experts(struct op_rank *, uint32_t slot, struct epa_error *);

/* ---- the checks; a stage of kind WHOLE left what a combine leaves ---- */

enum epa_status op_moe_check_dispatch(struct op_rank *, uint32_t slot, struct op_finding *);
enum epa_status op_moe_check_out(struct op_rank *, uint32_t slot, struct op_finding *);
/* After combine: whether the views of dispatch still hold what op_moe_check_dispatch() read. */
enum epa_status op_moe_check_views(struct op_rank *, uint32_t slot, struct op_finding *);

/* ---- a rank's side ---- */

/* Of a slot: what an algorithm reads and, last, writes: [max_tokens] each. */
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

/* An entry of a row, layout rank. */
struct share {
    uint32_t entry;  /* where it is in the lists of a view */
    uint32_t expert; /* local number */
};

/* Memory of the host that grows to what is asked for; what was in it is lost then. */
struct area {
    void *data;
    size_t bytes;
};

/* Rows, or entries, `first` to first + n - 1. */
struct run {
    uint64_t first, n;
};

/* Received rows where the host can read them. Strides are those of the algorithm. */
struct row_view {
    const char *data, *scale, *origin;
};

/* What an algorithm delivered, readable by the host. On a device only what is in use is copied, for
 * checks, so that entries here follow one another, experts ascending, whatever gaps there are over
 * there. */
struct view {
    struct epa_moe m; /* recv_count, recv_start, recv_row and recv_weight are here */
    uint64_t iteration;
    const uint64_t *first; /* [local experts]: the first entry of each in recv_row,
                              recv_weight and, layout expert, in rows */
    uint64_t entries;      /* in use */
    uint64_t rows_end;     /* layout rank: past the last row in use */
    uint32_t n_runs;       /* op_moe.run: entries in use, over there */
    struct row_view rows;
};

/* The row of an entry, as the algorithm counts, and which one of `rows` that is once all
 * are read. */
struct row_ref {
    uint64_t row, here;
};

enum { STAGED = 7 };

/* The views of the last dispatch in a slot that was checked and found right. */
struct kept {
    uint64_t iteration, digest;
    bool known;
};

struct op_moe {
    struct op_rank r; /* first */
    struct epa_moe_footprint footprint;
    uint32_t local_experts;
    bool hard_values;
    void **y; /* [slots] of the backend; made at first use: an algorithm may offer y_space */
    struct op_buffer factor; /* float [experts]; read by synthetic experts of a device */

    struct weights weights;      /* of real experts; mlp.ffn 0: they are synthetic */
    struct epa_mlp mlp;          /* with this rank's weights in the backend's memory, where somebody
                               there reads them */
    void *mlp_memory[4];         /* of the backend: what it points to */
    struct mlp_experts *experts; /* experts_mlp.c: what the host computes them with */
    struct epa_experts *device_experts; /* and what a device does; one of both, or none */

    struct pool scratch; /* the arrays below, areas aside */
    uint16_t *row;       /* [hidden]; for inputs that are quantised */

    /* Layout rank: entries by row. */
    uint32_t *row_first;   /* [recv_rows + 1] */
    struct area share;     /* struct share for each entry in use */
    uint16_t *output;      /* [topk][hidden] */
    const uint16_t **part; /* [topk] */
    float *part_weight;    /* [topk] */

    /* A device's: copies for the host of what it holds. */
    struct area staged[STAGED];
    struct run *run; /* [local experts] */
    uint64_t *first; /* [local experts] */

    struct check *check; /* made at its first use */
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

/* The factor of a synthetic expert in an iteration, exact in each dtype. It depends on the seed,
 * which plugins do not get: combine cannot compute the expert outputs itself. */
static inline float op_moe_factor(const struct op_moe *op, uint64_t iteration, uint32_t expert)
{
    uint64_t draw = random_key(op->r.x->seed, RANDOM_FACTOR, 0, iteration);

    return op->r.x->expert.kind == EXPERT_RANK
               ? 1.0f + (float)(expert / op->local_experts)
               : expert_factor(expert + (uint32_t)(draw % EXPERT_FACTORS));
}

/* [experts], of an iteration. */
void op_moe_factors(const struct op_moe *, uint64_t iteration, float *out);

/* The routing of a rank. With op->hard_values, every fourth iteration has weights of both signs
 * up to 4, unless the experiment sets routing.weights. */
void op_moe_route(const struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t tokens,
                  int32_t *expert, float *weight);

/* Rows that recv and y may have. */
static inline uint64_t op_moe_rows(const struct epa_moe_footprint *f)
{
    return f->layout == EPA_LAYOUT_EXPERT ? f->recv_entries : f->recv_rows;
}

/* Room for at least `bytes`. */
enum epa_status op_moe_area(struct area *, const char *what, uint64_t bytes, struct epa_error *err);

/* The token as any rank sees it: [hidden] in dtype. */
void op_moe_token(const struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t token,
                  uint16_t *out);

static inline struct row_ref op_moe_row_ref(const struct view *v, uint32_t local_expert, uint64_t i)
{
    uint64_t at = v->first[local_expert] + i;

    if (v->m.recv_row != NULL)
        return (struct row_ref){v->m.recv_row[at], v->m.recv_row[at]};
    return (struct row_ref){v->m.recv_start[local_expert] + i, at};
}

/* The problem of a slot after dispatch, readable by the host, pointers set and ranges within what
 * plan() promised; else EPA_ERR_MISMATCH says which is not. Good until the next call. */
enum epa_status op_moe_view(struct op_moe *, const struct op_slot *, struct view *out,
                            struct epa_error *err);

/* ---- real experts: weights (experts.c), and the host's GEMM (experts_mlp.c) ---- */

/* Where weights of all local experts go. Packed for `library`, or, where that is NULL, for `gemm`;
 * both NULL: as struct epa_mlp says. */
enum { ONEDNN_ROWS = 256, ONEDNN_COLUMNS = 128, ONEDNN_STEP = 32 };

struct mlp_weights {
    const struct epa_gemm *gemm;
    /* Not NULL: gemm is not NULL either, and each block of WEIGHTS_BLOCK rows is packed by itself,
     * with zeros for the rows that it lacks. */
    struct onednn *library;
    void *up, *down;
    float *up_scale, *down_scale;
};

/* Makes them in memory of the host, by the rank's workers. */
enum epa_status op_moe_weights_make(struct op_moe *, const struct mlp_weights *,
                                    struct epa_error *);
/* Makes them in memory of the backend, which op->mlp points to then. */
enum epa_status op_moe_weights_place(struct op_moe *, struct epa_error *);
/* Memory of the host that takes, where the backend is another. */
uint64_t op_moe_weights_stage_bytes(const struct weights *);

/* This rank's weights, and what its backend computes its experts with. Nothing where they are the
 * algorithm's, or synthetic and of hosts. */
enum epa_status op_moe_mlp_create(struct op_moe *, struct epa_error *);
void op_moe_mlp_destroy(struct op_moe *);
struct op_weights op_moe_mlp_bytes(const struct experiment *, const struct epa_footprint *,
                                   enum epa_memory);
/* Outputs of the entries of a view to y, or, layout rank, of its rows. */
enum epa_status op_moe_mlp_run(struct op_moe *, const struct view *, uint16_t *y,
                               struct epa_error *);

void op_moe_mlp_by(const struct op_rank *, char *out, size_t room);

/* Layout rank: op->row_first and op->share, the entries of a view by row, experts ascending. */
enum epa_status op_moe_sort_shares(struct op_moe *, const struct view *, struct epa_error *);

uint64_t op_moe_check_bytes(const struct experiment *);
void op_moe_check_destroy(struct check *);

/* What the checks of dispatch and combine share: the reference row, and how findings are
 * counted and reported. */

/* ---- outputs of real experts (reference.c) ---- */

struct reference;

struct reference_params {
    const struct weights *weights;
    bool f16;              /* what the intermediate and outputs are rounded to; else bf16 */
    bool rounded;          /* outputs are; else they stay float32 */
    uint32_t fp8_sum_bits; /* as in epa_moe_footprint */
    uint32_t rows;         /* at most, of one call below */
};

/* A row as the up projection reads it, [hidden]: values of dtype, or codes with a scale for each
 * weights.x_group channels (NULL: native weights); and where its outputs go, [hidden] each. */
struct reference_row {
    const float *x, *scale;
    float *low, *high;
};

/* NULL: no memory. */
struct reference *reference_create(const struct reference_params *);
void reference_destroy(struct reference *); /* takes NULL */

/* Outputs of n rows of one expert. An interval from -infinity to infinity: not known, as
 * something before it may have overflowed. */
void reference_expert(struct reference *, uint32_t expert, uint32_t n,
                      const struct reference_row *);

/* Bytes that create takes. */
uint64_t reference_bytes(const struct weights *, uint32_t rows);

/* Multiply-adds of a row: what a caller bounds its time by. */
double reference_cost(const struct weights *);

/* A group of n values, each somewhere from low to high, quantised to FP8: codes, and its
 * scale. */
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
    struct pool pool; /* all of the arrays */
    /* Routing of all ranks in `iteration`, and the entry + 1 filed under each choice. */
    uint64_t iteration;
    uint32_t *tokens;    /* [size] */
    int32_t *expert;     /* [size][max_tokens][topk] */
    float *weight;       /* [size][max_tokens][topk] */
    uint32_t *filed;     /* [size][max_tokens][topk] */
    struct range *range; /* [local experts] */

    /* The reference row: in dtype, or FP8 with scales; and its values in float. */
    uint16_t *x;
    uint8_t *q;
    float *scale, *value;

    float decode[256]; /* the value of each FP8 code */

    /* check_combine.c. [2]: both ends of intervals; of synthetic experts, the first alone. */
    float *output[2];          /* [hidden] of one expert; of real ones [tokens][topk][hidden] */
    uint16_t *sent;            /* [hidden]; an expert output as it is quantised */
    uint8_t *sent_q;           /* [hidden] */
    float *quantised[2];       /* [hidden] */
    float *total[2], *part[2]; /* [hidden]; sums in the order that is laid down */
    double *sum[2], *size;     /* [hidden]; the exact sum and that of magnitudes */
    uint32_t *order;           /* [topk]; kept choices as they are added */
    /* Real experts: a block of tokens as the up projection reads them. */
    struct reference *reference;
    uint32_t block_tokens, *token;
    float *block_x, *block_scale; /* [tokens][hidden], and [hidden / weights.x_group] */
    struct reference_row *row;    /* [tokens]; rows of one expert */
};

/* Makes op->check where it is not there yet, and loads the routing of an iteration. Choice 0 of a
 * token is at check_choice() in its arrays. */
enum epa_status check_begin(struct op_moe *, uint64_t iteration, struct epa_error *);
size_t check_choice(const struct op_moe *, uint32_t rank, uint32_t token);

/* Sets x, q, scale and value of op->check to what this token is on arrival. */
void check_load_row(struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t token);

/* The arrays of check_combine.c, and bytes that it takes beside them. */
void check_combine_lay_out(const struct experiment *, struct check *);
uint64_t check_combine_bytes(const struct experiment *);

/* ---- moe.c ---- */

/* Whether the experiment could have `value` at `key`, as the check of its file says; else why not.
 */
bool op_moe_takes(const struct experiment *, const char *key, uint64_t value, char *why,
                  size_t room);

#endif
