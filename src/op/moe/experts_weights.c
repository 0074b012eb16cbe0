/* This rank's weights of real experts: in the backend's memory, as struct epa_mlp says, where an
 * algorithm computes the experts itself, or a device does; packed, where the host computes
 * them. */
#include "op/moe/moe.h"

#include <stdlib.h>
#include <string.h>

#include "epa2a/gemm.h"

enum {
    LINE = 64,
    BLOCK = WEIGHTS_BLOCK,
    STAGE_BYTES = 16 << 20, /* of weights on their way to a device */
};

uint64_t op_moe_weights_stage_bytes(const struct weights *w)
{
    return STAGE_BYTES + (uint64_t)BLOCK * (w->hidden + w->mlp.ffn) * 2;
}

/* A step over blocks of 128 rows of all local experts' matrices. */
struct making {
    const struct op_moe *op;
    struct mlp_weights to;
    uint64_t next;
    bool failed, refused; /* no memory; the library did not pack */
};

static uint64_t blocks_of(const struct weights *w, enum weights_matrix m)
{
    return weights_rows(w, m) / BLOCK;
}

/* 128 rows with their scales; `padded`: 64 channels, 64 zeros, and so on. */
static void make_block(const struct op_moe *op, uint32_t e, enum weights_matrix m, uint32_t block,
                       uint32_t columns, char *rows, float *scale)
{
    const struct weights *w = &op->weights;
    uint32_t expert = op->world.rank * op->local_experts + e, n = weights_columns(w, m);
    bool padded = columns != n;

    for (uint32_t i = 0; i < BLOCK; i++) {
        char *row = rows + (size_t)i * columns * weights_element(w);

        weights_row(w, expert, m, block * BLOCK + i, row);
        for (uint32_t k = n; padded && k > 0; k -= BLOCK / 2) {
            memmove(row + 2 * (k - BLOCK / 2), row + k - BLOCK / 2, BLOCK / 2);
            memset(row + 2 * (k - BLOCK / 2) + BLOCK / 2, 0, BLOCK / 2);
        }
    }
    if (w->mlp.dtype != EPA_FP8_E4M3)
        return;
    weights_scales(w, expert, m, block, scale);
    for (uint32_t g = columns / BLOCK; padded && g-- > 0;)
        scale[g] = scale[g / 2];
}

static void make_some(void *arg, uint32_t worker, uint32_t workers)
{
    struct making *k = arg;
    const struct op_moe *op = k->op;
    const struct weights *w = &op->weights;
    uint64_t up = blocks_of(w, WEIGHTS_UP), each = up + blocks_of(w, WEIGHTS_DOWN);
    uint64_t all = each * op->local_experts, i;
    uint32_t columns[] = {w->hidden, k->to.gemm != NULL ? k->to.down_columns : w->mlp.ffn};
    char *room = NULL;

    (void)workers;
    if (k->to.gemm != NULL) {
        size_t most = columns[0] > columns[1] ? columns[0] : columns[1];

        room = aligned_alloc(LINE, BLOCK * most * 2);
        if (room == NULL) {
            __atomic_store_n(&k->failed, true, __ATOMIC_RELAXED);
            return;
        }
    }
    /* Relaxed: who takes which block is all that hangs on it. */
    while ((i = __atomic_fetch_add(&k->next, 1, __ATOMIC_RELAXED)) < all) {
        enum weights_matrix m = i % each < up ? WEIGHTS_UP : WEIGHTS_DOWN;
        uint32_t e = (uint32_t)(i / each),
                 block = (uint32_t)(i % each - (m == WEIGHTS_UP ? 0 : up));
        uint64_t nth = e * blocks_of(w, m) + block; /* of this matrix, experts ascending */
        char *to = m == WEIGHTS_UP ? k->to.up : k->to.down;
        float *scale = m == WEIGHTS_UP ? k->to.up_scale : k->to.down_scale;

        to += nth * BLOCK * columns[m] * weights_element(w);
        make_block(op, e, m, block, columns[m], room != NULL ? room : to,
                   scale != NULL ? scale + nth * (columns[m] / BLOCK) : NULL);
        if (k->to.library != NULL) {
            if (onednn_pack(k->to.library, worker, m, room, to) != EPA_OK)
                __atomic_store_n(&k->refused, true, __ATOMIC_RELAXED);
        } else if (room != NULL) {
            k->to.gemm->pack_b(room, columns[m], BLOCK, columns[m], to);
        }
    }
    free(room);
}

enum epa_status op_moe_weights_make(struct op_moe *op, const struct mlp_weights *to,
                                    struct epa_error *err)
{
    const struct epa_backend_ops *ops = op->backend->ops;
    struct making k = {.op = op, .to = *to};
    enum epa_status status = EPA_OK;

    if (op->backend->memory == EPA_MEMORY_HOST)
        status = ops->parallel(op->backend, make_some, &k);
    else
        make_some(&k, 0, 1);
    if (status != EPA_OK)
        ops->explain(op->backend, err);
    if (k.failed)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory to pack the experts' weights");
    if (k.refused)
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s: packing the experts' weights failed",
                          onednn_name(to->library));
    return status;
}

/* A matrix of all local experts, by way of the host. */
static enum epa_status write_matrix(struct op_moe *op, enum weights_matrix m, char *to, char *scale,
                                    char *room, struct epa_error *err)
{
    const struct weights *w = &op->weights;
    uint32_t columns = weights_columns(w, m);
    size_t block = (size_t)BLOCK * columns * weights_element(w);
    uint64_t n = STAGE_BYTES / (block + columns) > 0 ? STAGE_BYTES / (block + columns) : 1;
    uint64_t all = blocks_of(w, m) * op->local_experts;
    size_t line = columns / BLOCK * sizeof(float);
    float *scales = (float *)(void *)(room + n * block);
    enum epa_status status = EPA_OK;

    for (uint64_t done = 0; done < all && status == EPA_OK; done += n) {
        uint64_t take = all - done < n ? all - done : n;

        for (uint64_t i = 0; i < take; i++)
            make_block(op, (uint32_t)((done + i) / blocks_of(w, m)), m,
                       (uint32_t)((done + i) % blocks_of(w, m)), columns, room + i * block,
                       scales + i * (columns / BLOCK));
        status = op->backend->ops->write(op->backend, to + done * block, room, take * block);
        if (status == EPA_OK && scale != NULL)
            status = op->backend->ops->write(op->backend, scale + done * line, scales, take * line);
    }
    if (status == EPA_OK)
        return EPA_OK;
    op->backend->ops->explain(op->backend, err);
    return epa_fail(err, status, "the experts' weights could not be written");
}

enum epa_status op_moe_weights_place(struct op_moe *op, struct epa_error *err)
{
    const struct weights *w = &op->weights;
    bool fp8 = w->mlp.dtype == EPA_FP8_E4M3;
    uint64_t up = (uint64_t)op->local_experts * epa_mlp_up_rows(&w->mlp) * w->hidden;
    uint64_t down = (uint64_t)op->local_experts * w->hidden * w->mlp.ffn, e = weights_element(w);
    void **at = op->mlp_memory;
    enum epa_status status = op_moe_alloc(op, "W_up", up * e, &at[0], err);
    char *room;

    if (status == EPA_OK)
        status = op_moe_alloc(op, "W_down", down * e, &at[1], err);
    if (status == EPA_OK && fp8)
        status = op_moe_alloc(op, "scales of W_up", up / (BLOCK * BLOCK) * 4, &at[2], err);
    if (status == EPA_OK && fp8)
        status = op_moe_alloc(op, "scales of W_down", down / (BLOCK * BLOCK) * 4, &at[3], err);
    if (status != EPA_OK)
        return status;
    op->mlp.up = at[0];
    op->mlp.down = at[1];
    op->mlp.up_scale = at[2];
    op->mlp.down_scale = at[3];
    if (op->backend->memory == EPA_MEMORY_HOST)
        return op_moe_weights_make(
            op,
            &(struct mlp_weights){
                .up = at[0], .down = at[1], .up_scale = at[2], .down_scale = at[3]},
            err);
    room = malloc(op_moe_weights_stage_bytes(w));
    if (room == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the experts' weights on their way");
    status = write_matrix(op, WEIGHTS_UP, at[0], at[2], room, err);
    if (status == EPA_OK)
        status = write_matrix(op, WEIGHTS_DOWN, at[1], at[3], room, err);
    free(room);
    return status;
}
