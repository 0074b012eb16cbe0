/* What the op_moe*.c share: the problem of one rank, and how to see what an algorithm
 * delivered. No others include it. */
#ifndef OP_MOE_STATE_H
#define OP_MOE_STATE_H

#include "moe/op_moe.h"

/* Memory of the backend (`there`), and where the host works on it (`here`): the same place
 * where the backend is the host. */
struct buffer {
    void *there, *here;
};

struct slot {
    struct epa_problem problem;
    uint64_t iteration;
    struct buffer x, x_fp8, x_scale, expert, weight, out;
    struct buffer y; /* made at first use: an algorithm may offer y_space */
    struct moe_traffic traffic;
};

/* An entry of a row, layout rank. */
struct share {
    uint32_t entry, expert; /* expert: local number */
};

enum { STAGED = 7 };

struct op_moe {
    const struct experiment *x;
    const struct routing_source *source;
    struct epa_world world;
    struct epa_footprint footprint;
    struct epa_backend *backend;
    uint32_t local_experts;
    bool hard_values;
    uint32_t n_slots;
    struct slot *slot;

    uint16_t *row;    /* [hidden]; for inputs that are quantised */
    int32_t *expert;  /* [max_tokens][topk]; another rank's, for traffic */
    float *weight;    /* [max_tokens][topk] */
    uint8_t *reached; /* [size] */

    /* Layout rank: entries by row. */
    uint32_t *row_first;   /* [recv_rows + 1] */
    struct share *share;   /* [recv_entries] */
    uint16_t *answer;      /* [topk][hidden] */
    const uint16_t **part; /* [topk] */
    float *part_weight;    /* [topk] */

    struct {
        void *data;
        size_t bytes;
    } staged[STAGED]; /* copies for the host of what a device backend holds */

    struct check *check; /* op_moe_check.h; made at its first use */
};

static inline uint64_t hidden_groups(const struct op_moe *op)
{
    return op->x->moe.hidden / op->x->moe.group;
}

/* Rows that recv and y may have. */
static inline uint64_t op_moe_rows(const struct epa_footprint *f)
{
    return f->layout == EPA_LAYOUT_EXPERT ? f->recv_entries : f->recv_rows;
}

enum epa_status op_moe_alloc(struct op_moe *, const char *what, uint64_t bytes,
                             struct buffer *out, struct epa_error *);

/* The token as any rank sees it: [hidden] bf16. */
void op_moe_token(const struct op_moe *, uint32_t rank, uint64_t iteration, uint32_t token,
                  uint16_t *out);

/* The problem of a slot after dispatch with its views readable by the host, pointers set
 * and ranges within what plan() promised; else EPA_ERR_MISMATCH says which is not. Good
 * until the next call. */
enum epa_status op_moe_view(struct op_moe *, const struct slot *, struct epa_moe *out,
                            struct epa_error *);

/* `out` of a slot, all max_tokens rows, for the host. */
enum epa_status op_moe_out(struct op_moe *, const struct slot *, const uint16_t **out,
                           struct epa_error *);

uint64_t op_moe_check_bytes(const struct experiment *);
void op_moe_check_destroy(struct check *);

#endif
