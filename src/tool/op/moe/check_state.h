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

/* Reference row of a token: in dtype, or FP8 with scales; and its values in float. */
struct check_row {
    uint16_t *x;
    uint8_t *q;
    float *scale, *value;
};

/* Work space of a thread of check_combine.c, [hidden] unless stated. [2]: both ends of intervals;
 * synthetic experts use the first only. */
struct check_space {
    struct check_row row;
    float *synthetic;                  /* output of a synthetic expert */
    uint16_t *sent;                    /* an expert output before quantisation */
    uint8_t *sent_q;                   /* the same as FP8 codes */
    float *quantised[2];               /* values of its codes */
    float *total[2], *part[2];         /* sums in the specified order */
    double *sum[2], *size;             /* exact sum, and sum of the magnitudes */
    uint32_t *order;                   /* [topk]: kept choices in the order of addition */
    struct reference *reference;       /* of real experts, for `rows` rows; created at first use */
    struct reference_row *expert_rows; /* [rows]: rows of one expert */
    uint32_t rows, wrong_token;        /* token of the block that `err` describes */
    struct epa_error err;              /* EPA_OK: the thread has found no wrong element */
};

/* Result of the comparison of a token. */
struct check_result {
    uint64_t compared, wrong;
    struct op_share share;
};

struct moe_check {
    struct pool pool; /* memory of all arrays below, except the arrays of `more` */
    /* Routing of all ranks in `iteration`, and 1 + the received entry of each choice. */
    uint64_t iteration;
    uint32_t *tokens;    /* [size] */
    int32_t *expert;     /* [size][max_tokens][topk] */
    float *weight;       /* [size][max_tokens][topk] */
    uint32_t *filed;     /* [size][max_tokens][topk] */
    struct range *range; /* [local experts] */

    float decode[256]; /* the value of each FP8 code */

    /* check_combine.c: a block of tokens. */
    uint32_t block_tokens, *token;
    struct check_result *result; /* [tokens] */
    /* Real experts: outputs, and tokens in the input format of the up projection. */
    float *output[2];             /* [tokens][topk][hidden] */
    float *block_x, *block_scale; /* [tokens][hidden], and [hidden / weights.x_group] */

    struct check_space own; /* of the rank's thread */
    /* Of further threads, allocated at first use: not counted by op_moe_check_bytes(), since without
     * memory fewer threads run. */
    struct check_space *more;
    struct pool more_pool;
    uint32_t n_more;
};

uint64_t op_moe_check_bytes(const struct problem_params *);
void op_moe_check_destroy(struct moe_check *);

/* Allocates op->check at first use, and loads the routing of an iteration. check_choice() is the index of
 * choice 0 of a token. */
enum epa_status check_begin(struct op_moe *, uint64_t iteration, struct epa_error *);
size_t check_choice(const struct op_moe *, uint32_t rank, uint32_t token);

/* Sets *out to the expected received row of a token. */
void check_load_row(const struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t token,
                    const struct check_row *out);

/* Returns the number of threads, 1 to `wanted`, for which work space exists. Allocates the space of
 * further threads, for the host's ranks together at most CHECK_MORE_BYTES. */
enum { CHECK_MORE_BYTES = 128 << 20 };
uint32_t check_threads(struct op_moe *, uint32_t wanted);
struct check_space *check_space(struct op_moe *, uint32_t thread);

#endif
