/* What the checks of dispatch and combine share: the reference row, and how findings are
 * counted and told. */
#ifndef MOE_CHECK_H
#define MOE_CHECK_H

#include "base/text.h"
#include "op/moe/moe.h"
#include "op/moe/weights.h"

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
 * 128 channels (NULL: native weights); and where its outputs go, [hidden] each. */
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
    bool loaded;
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

    float *output;       /* [hidden]; of one expert to the reference row */
    uint16_t *sent;      /* [hidden]; an expert output as it is quantised */
    uint8_t *sent_q;     /* [hidden] */
    float *total, *part; /* [hidden]; sums in the order that is laid down */
    double *sum, *size;  /* [hidden]; the exact sum and that of magnitudes */
    uint32_t *order;     /* [topk]; kept choices as they are added */

    struct mlp_check *mlp; /* check_mlp.c; made at its first use */
};

/* What a check has found. */
struct finding {
    const struct op_moe *op;
    const char *stage;
    uint64_t iteration, compared, wrong;
    struct epa_error *err;
};

/* Makes op->check where it is not there yet. */
enum epa_status check_create(struct op_moe *, struct epa_error *);

/* Sets x, q, scale and value of op->check to what this token is on arrival. */
void check_load_row(struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t token);

/* One element more is wrong; the first one is reported, with iteration, stage and rank before
 * these words. */
EPA_PRINTF(2, 3) void finding_wrong(struct finding *, const char *fmt, ...);

/* ---- check_combine.c ---- */

/* Whether the outputs of a rank's experts are reduced to one, and those are added up rank by
 * rank. */
bool check_adds_by_rank(const struct op_moe *);

/* Puts the kept choices of a token in the order in which they are added. Returns how
 * many. */
uint32_t check_order(const struct op_moe *, const int32_t *expert, uint32_t *order);

/* An element of `out` is not between low and high. */
void check_wrong(struct finding *, uint32_t token, uint32_t h, uint16_t is, float low, float high,
                 uint32_t terms);

/* ---- check_mlp.c ---- */

/* `out` of the first `tokens` tokens, with op->expert and op->weight theirs. Wrong elements are
 * findings; EPA_ERR_NOMEM. */
enum epa_status check_mlp_tokens(struct op_moe *, const struct slot *, uint32_t tokens,
                                 const uint16_t *out, struct finding *);
void check_mlp_destroy(struct mlp_check *); /* takes NULL */
uint64_t check_mlp_bytes(const struct experiment *);

/* ---- */

/* Adds to the caller's sums; EPA_ERR_MISMATCH if anything was wrong. */
enum epa_status finding_end(const struct finding *, uint64_t *compared, uint64_t *wrong);

#endif
