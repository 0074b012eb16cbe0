/* State of the checks of a rank. */
#ifndef OP_MOE_CHECK_STATE_H
#define OP_MOE_CHECK_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "op/moe/moe_state.h"
#include "op/moe/reference.h"

struct range {
    uint64_t start, end;
    uint32_t expert;
};

struct moe_check {
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

uint64_t op_moe_check_bytes(const struct problem_params *);
void op_moe_check_destroy(struct moe_check *);

/* Allocates op->check at first use, and loads the routing of an iteration. check_choice() is the index of
 * choice 0 of a token. */
enum epa_status check_begin(struct op_moe *, uint64_t iteration, struct epa_error *);
size_t check_choice(const struct op_moe *, uint32_t rank, uint32_t token);

/* Sets x, q, scale and value of op->check to the expected received row of a token. */
void check_load_row(struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t token);

#endif
