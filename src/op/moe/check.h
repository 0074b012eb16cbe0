/* What the checks of dispatch and combine share: the reference row, and how findings are
 * counted and reported. */
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
    float *block_x, *block_scale; /* [tokens][hidden], and [hidden / 128] */
    struct reference_row *row;    /* [tokens]; rows of one expert */
};

/* Makes op->check where it is not there yet. */
enum epa_status check_create(struct op_moe *, struct epa_error *);

/* Sets x, q, scale and value of op->check to what this token is on arrival. */
void check_load_row(struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t token);

/* The arrays of check_combine.c, and bytes that it takes beside them. */
void check_combine_lay_out(const struct experiment *, struct check *);
uint64_t check_combine_bytes(const struct experiment *);

#endif
