/* This rank's weights of real experts: in backend memory in the format of struct epa_mlp if an algorithm
 * or a device computes the experts; packed if the host computes them. */
#include "op/moe/expert_weights.h"

#include <stdlib.h>

#include "base/memory.h"
enum {
    STAGE_BYTES = 64 << 20, /* host buffer for copies of weights to a device */
};

uint64_t op_moe_weights_stage_bytes(const struct weights *w)
{
    return STAGE_BYTES + (uint64_t)(MLP_BLOCK + 1) * (w->shape.hidden + w->shape.mlp.ffn) * 2;
}

/* Makes the rows of a block with their scales. */
static void make_block(const void *arg, uint32_t e, enum mlp_matrix m, uint32_t block, void *rows,
                       float *scale)
{
    const struct op_moe *op = arg;
    const struct weights *w = &op->weights;
    uint32_t expert = op->r.world.rank * op->local_experts + e;
    struct mlp_block b = mlp_block_at(&w->shape, m, block);

    for (uint32_t i = 0; i < b.rows; i++)
        weights_row(w, expert, m, b.first + i,
                    (char *)rows + (size_t)i * mlp_columns(&w->shape, m) * mlp_element(&w->shape));
    if (mlp_has_scales(&w->shape))
        weights_scales(w, expert, m, block, scale);
}

struct mlp_source op_moe_weights_source(const struct op_moe *op)
{
    return (struct mlp_source){make_block, op};
}

/* Blocks of a matrix that threads make in host memory. */
struct making {
    const struct op_moe *op;
    enum mlp_matrix m;
    uint64_t first; /* number of the first block, over all local experts */
    char *rows;
    float *scales;
    uint32_t n, next; /* next: counter from which threads take blocks */
};

/* Returns the number of rows before a block of all local experts. */
static uint64_t rows_before(const struct weights *w, enum mlp_matrix m, uint64_t block)
{
    uint64_t each = mlp_blocks(&w->shape, m);

    return block / each * mlp_rows(&w->shape, m) +
           mlp_block_at(&w->shape, m, (uint32_t)(block % each)).first;
}

static void make_blocks(void *arg, uint32_t thread)
{
    struct making *k = arg;
    const struct weights *w = &k->op->weights;
    size_t row = (size_t)mlp_columns(&w->shape, k->m) * mlp_element(&w->shape);
    uint64_t each = mlp_blocks(&w->shape, k->m), begin = rows_before(w, k->m, k->first);

    (void)thread;
    /* Relaxed: the counter only distributes blocks to threads. */
    for (uint32_t i; (i = __atomic_fetch_add(&k->next, 1, __ATOMIC_RELAXED)) < k->n;) {
        uint64_t block = k->first + i;

        make_block(k->op, (uint32_t)(block / each), k->m, (uint32_t)(block % each),
                   k->rows + (rows_before(w, k->m, block) - begin) * row,
                   k->scales + i * epa_mlp_blocks(mlp_columns(&w->shape, k->m)));
    }
}

/* Makes a matrix of all local experts in host memory and copies it to the backend. Not for INT8. */
static enum epa_status write_matrix(struct op_moe *op, enum mlp_matrix m, char *to, char *scale,
                                    char *room, struct epa_error *err)
{
    const struct weights *w = &op->weights;
    size_t row = (size_t)mlp_columns(&w->shape, m) * mlp_element(&w->shape),
           block = MLP_BLOCK * row;
    size_t groups = epa_mlp_blocks(mlp_columns(&w->shape, m)), line = groups * sizeof(float);
    uint64_t n = STAGE_BYTES / (block + line) > 0 ? STAGE_BYTES / (block + line) : 1;
    uint64_t all = (uint64_t)mlp_blocks(&w->shape, m) * op->local_experts;
    float *scales = (float *)(void *)(room + n * block);
    enum epa_status status = EPA_OK;

    for (uint64_t done = 0; done < all && status == EPA_OK; done += n) {
        uint64_t take = all - done < n ? all - done : n;
        uint64_t bytes = (rows_before(w, m, done + take) - rows_before(w, m, done)) * row;

        crew_run(&op->r.crew, make_blocks,
                 &(struct making){op, m, done, room, scales, (uint32_t)take, 0});
        status = op->r.backend->ops->write(op->r.backend, to, room, bytes);
        to += bytes;
        if (status == EPA_OK && scale != NULL)
            status =
                op->r.backend->ops->write(op->r.backend, scale + done * line, scales, take * line);
    }
    return op_backend_done(op->r.backend, status, err, "cannot write the experts' weights");
}

enum epa_status op_moe_weights_place(struct op_moe *op, struct epa_error *err)
{
    const struct weights *w = &op->weights;
    bool scales = mlp_has_scales(&w->shape);
    const char *const what[] = {"W_up", "W_down", "scales of W_up", "scales of W_down"};
    uint64_t bytes[4];
    void **at = op->mlp_memory;
    enum epa_status status = EPA_OK;
    char *room;

    for (enum mlp_matrix m = MLP_UP; m < MLP_MATRICES; m++) {
        bytes[m] = (uint64_t)op->local_experts * mlp_rows(&w->shape, m) *
                   mlp_columns(&w->shape, m) * mlp_element(&w->shape);
        bytes[MLP_MATRICES + m] = op->local_experts * mlp_scales(&w->shape, m) * sizeof(float);
    }
    for (uint32_t i = 0; i < (scales ? 4 : 2) && status == EPA_OK; i++)
        status = op_alloc(op->r.backend, what[i], bytes[i], &at[i], err);
    if (status != EPA_OK)
        return status;
    op->mlp.up = at[0];
    op->mlp.down = at[1];
    op->mlp.up_scale = at[2];
    op->mlp.down_scale = at[3];
    if (op->r.backend->memory == EPA_MEMORY_HOST) {
        const struct mlp_source source = op_moe_weights_source(op);

        return mlp_weights_make(
            op->r.backend, &w->shape, op->local_experts, &source,
            &(struct mlp_weights){
                .up = at[0], .down = at[1], .up_scale = at[2], .down_scale = at[3]},
            err);
    }
    room = memory_alloc(1, op_moe_weights_stage_bytes(w));
    status = write_matrix(op, MLP_UP, at[0], at[2], room, err);
    if (status == EPA_OK)
        status = write_matrix(op, MLP_DOWN, at[1], at[3], room, err);
    free(room);
    return status;
}
