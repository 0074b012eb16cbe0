/* Mixture of experts: state of a rank, and views of delivered rows. Only files of this folder and tests
 * include this header; the core uses op_moe. */
#ifndef OP_MOE_STATE_H
#define OP_MOE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/problem.h>

#include "base/dtype.h"
#include "base/pool.h"
#include "base/random.h"
#include "experts/host_experts.h"
#include "experts/shares.h"
#include "op/moe/weights.h"
#include "op/op.h"

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

enum { STAGED = 8 };

/* Digest of the views of the last dispatch in a slot, if its check succeeded. */
struct kept {
    uint64_t iteration, digest;
    bool known;
};

struct op_moe {
    struct op_rank r; /* first */
    struct epa_moe_footprint footprint;
    uint32_t local_experts;
    void **y; /* [slots]: backend memory, allocated at first use unless y_space exists */
    struct op_buffer factor; /* float [experts]: input of the synthetic experts of a device */

    struct weights weights; /* of real experts; mlp.ffn 0: synthetic experts */
    struct epa_mlp mlp;     /* points to this rank's weights in backend memory, if an algorithm or
                               a device reads them */
    void *mlp_memory[4];    /* backend memory of mlp */
    struct host_experts *experts; /* experts on the host, or NULL */
    struct epa_experts
        *device_experts; /* experts on a device, or NULL; at most one of both is set */

    struct pool scratch; /* memory of the arrays below except areas */
    uint16_t *row;       /* [hidden]: an input before quantisation */

    /* Layout rank. */
    struct shares shares;
    uint16_t *output;      /* [topk][hidden] */
    const uint16_t **part; /* [topk] */
    float *part_weight;    /* [topk] */

    /* Host copies of device memory. */
    struct area staged[STAGED];
    struct run *run; /* [local experts] */
    uint64_t *first; /* [local experts] */

    struct moe_check *check; /* allocated at first use */
    struct kept *kept;       /* [slots] */
};

static inline struct op_moe *op_moe_of(const struct op_rank *rank)
{
    return (struct op_moe *)(uintptr_t)rank;
}

/* Tokens, expert outputs and sums are f16, not bf16. */
static inline bool is_f16(const struct op_moe *op)
{
    return op->r.params->moe.dtype == EPA_F16;
}

static inline uint64_t hidden_groups(const struct op_moe *op)
{
    return op->r.params->moe.hidden / op->r.params->moe.fp8_group_size;
}

/* Returns the factor of a synthetic expert in an iteration, exact in each dtype. It depends on the seed,
 * which is unknown to plugins, so a combine cannot compute the expert outputs itself. */
static inline float op_moe_factor(const struct op_moe *op, uint64_t iteration, uint32_t expert)
{
    uint64_t draw = random_key(op->r.params->seed, RANDOM_FACTOR, 0, iteration);

    return op->r.params->expert.kind == EXPERT_RANK
               ? 1.0f + (float)(expert / op->local_experts)
               : expert_factor(expert + (uint32_t)(draw % EXPERT_FACTORS));
}

/* Maximum number of rows of recv and y. */
static inline uint64_t op_moe_rows(const struct epa_moe_footprint *f)
{
    return f->layout == EPA_LAYOUT_EXPERT ? f->recv_entries : f->recv_rows;
}

static inline struct row_ref op_moe_row_ref(const struct view *v, uint32_t local_expert, uint64_t i)
{
    uint64_t at = v->first[local_expert] + i;

    if (v->m.recv_row != NULL)
        return (struct row_ref){v->m.recv_row[at], v->m.recv_row[at]};
    return (struct row_ref){v->m.recv_start[local_expert] + i, at};
}

#endif
