/* This rank's weights of real experts: in backend memory in the format of struct epa_mlp if an algorithm
 * or a device computes the experts; packed if the host computes them. */
#include "op/moe/expert_weights.h"

#include <stdlib.h>
#include <string.h>

#include "epa2a/gemm.h"
#include "kernels/libraries.h"

enum {
    LINE = 64,
    BLOCK = WEIGHTS_BLOCK,
    STAGE_BYTES = 16 << 20, /* host buffer for copies of weights to a device */
};

uint64_t op_moe_weights_stage_bytes(const struct weights *w)
{
    return STAGE_BYTES + (uint64_t)(BLOCK + 1) * (w->hidden + w->mlp.ffn) * 2;
}

/* State of a step over the blocks of rows of all local experts' matrices. */
struct making {
    const struct op_moe *op;
    struct mlp_weights to;
    uint64_t next;
    bool failed, refused; /* no memory; the library failed to pack */
};

/* Makes the rows of a block with their scales. */
static void make_block(const struct op_moe *op, uint32_t e, enum weights_matrix m, uint32_t block,
                       char *rows, float *scale)
{
    const struct weights *w = &op->weights;
    uint32_t expert = op->r.world.rank * op->local_experts + e;
    struct weights_block b = weights_block(w, m, block);

    for (uint32_t i = 0; i < b.rows; i++)
        weights_row(w, expert, m, b.first + i,
                    rows + (size_t)i * weights_columns(w, m) * weights_element(w));
    if (w->mlp.dtype == EPA_FP8_E4M3)
        weights_scales(w, expert, m, block, scale);
}

/* Packs a block with the library; `rows` has room for WEIGHTS_BLOCK rows. */
static enum epa_status pack_by_library(const struct making *k, uint32_t worker,
                                       enum weights_matrix m, uint32_t rows, char *room,
                                       uint64_t nth)
{
    size_t row = (size_t)weights_columns(&k->op->weights, m) * weights_element(&k->op->weights);
    char *to = m == WEIGHTS_UP ? k->to.up : k->to.down;

    memset(room + rows * row, 0, (BLOCK - rows) * row);
    return onednn_pack(k->to.library, worker, m, room,
                       to + nth * onednn_packed_bytes(k->to.library, m));
}

static void make_some(void *arg, uint32_t worker, uint32_t workers)
{
    struct making *k = arg;
    const struct op_moe *op = k->op;
    const struct weights *w = &op->weights;
    uint64_t up = weights_blocks(w, WEIGHTS_UP), each = up + weights_blocks(w, WEIGHTS_DOWN);
    uint64_t all = each * op->local_experts, i;
    char *room = NULL;

    (void)workers;
    if (k->to.gemm != NULL) {
        size_t most = w->hidden > w->mlp.ffn ? w->hidden : w->mlp.ffn;

        room = aligned_alloc(LINE, BLOCK * most * 2);
        if (room == NULL) {
            __atomic_store_n(&k->failed, true, __ATOMIC_RELAXED);
            return;
        }
    }
    /* Relaxed: the counter only distributes blocks to workers. */
    while ((i = __atomic_fetch_add(&k->next, 1, __ATOMIC_RELAXED)) < all) {
        enum weights_matrix m = i % each < up ? WEIGHTS_UP : WEIGHTS_DOWN;
        uint32_t e = (uint32_t)(i / each), columns = weights_columns(w, m),
                 block = (uint32_t)(i % each - (m == WEIGHTS_UP ? 0 : up));
        uint64_t nth = e * weights_blocks(w, m) + block; /* index over experts and blocks */
        struct weights_block b = weights_block(w, m, block);
        char *to = m == WEIGHTS_UP ? k->to.up : k->to.down;
        float *scale = m == WEIGHTS_UP ? k->to.up_scale : k->to.down_scale;

        to += ((uint64_t)e * weights_rows(w, m) + b.first) * columns * weights_element(w);
        make_block(op, e, m, block, room != NULL ? room : to,
                   scale != NULL ? scale + nth * weights_scales_of_row(w, m) : NULL);
        if (k->to.library != NULL) {
            if (pack_by_library(k, worker, m, b.rows, room, nth) != EPA_OK)
                __atomic_store_n(&k->refused, true, __ATOMIC_RELAXED);
        } else if (room != NULL) {
            k->to.gemm->pack_b(room, columns, b.rows, columns, to);
        }
    }
    free(room);
}

enum epa_status op_moe_weights_make(struct op_moe *op, const struct mlp_weights *to,
                                    struct epa_error *err)
{
    const struct epa_backend_ops *ops = op->r.backend->ops;
    struct making k = {.op = op, .to = *to};
    enum epa_status status = ops->parallel(op->r.backend, make_some, &k);

    if (status != EPA_OK)
        ops->explain(op->r.backend, err);
    if (k.failed)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory to pack the experts' weights");
    if (k.refused)
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s: packing the experts' weights failed",
                          onednn_name(to->library));
    return status;
}

/* Makes a matrix of all local experts in host memory and copies it to the backend. */
static enum epa_status write_matrix(struct op_moe *op, enum weights_matrix m, char *to, char *scale,
                                    char *room, struct epa_error *err)
{
    const struct weights *w = &op->weights;
    size_t row = (size_t)weights_columns(w, m) * weights_element(w), block = BLOCK * row;
    size_t groups = weights_scales_of_row(w, m), line = groups * sizeof(float);
    uint64_t n = STAGE_BYTES / (block + line) > 0 ? STAGE_BYTES / (block + line) : 1;
    uint64_t all = (uint64_t)weights_blocks(w, m) * op->local_experts;
    float *scales = (float *)(void *)(room + n * block);
    enum epa_status status = EPA_OK;

    for (uint64_t done = 0; done < all && status == EPA_OK; done += n) {
        uint64_t take = all - done < n ? all - done : n, bytes = 0;

        for (uint64_t i = 0; i < take; i++) {
            uint32_t nth = (uint32_t)((done + i) % weights_blocks(w, m));

            make_block(op, (uint32_t)((done + i) / weights_blocks(w, m)), m, nth, room + bytes,
                       scales + i * groups);
            bytes += weights_block(w, m, nth).rows * row;
        }
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
    bool fp8 = w->mlp.dtype == EPA_FP8_E4M3;
    const char *const what[] = {"W_up", "W_down", "scales of W_up", "scales of W_down"};
    uint64_t bytes[4];
    void **at = op->mlp_memory;
    enum epa_status status = EPA_OK;
    char *room;

    for (enum weights_matrix m = WEIGHTS_UP; m < WEIGHTS_MATRICES; m++) {
        bytes[m] = (uint64_t)op->local_experts * weights_rows(w, m) * weights_columns(w, m) *
                   weights_element(w);
        bytes[WEIGHTS_MATRICES + m] = (uint64_t)op->local_experts * weights_blocks(w, m) *
                                      weights_scales_of_row(w, m) * sizeof(float);
    }
    for (uint32_t i = 0; i < (fp8 ? 4 : 2) && status == EPA_OK; i++)
        status = op_alloc(op->r.backend, what[i], bytes[i], &at[i], err);
    if (status != EPA_OK)
        return status;
    op->mlp.up = at[0];
    op->mlp.down = at[1];
    op->mlp.up_scale = at[2];
    op->mlp.down_scale = at[3];
    if (op->r.backend->memory == EPA_MEMORY_HOST)
        return op_moe_weights_make(
            op,
            &(struct mlp_weights){
                .up = at[0], .down = at[1], .up_scale = at[2], .down_scale = at[3]},
            err);
    room = memory_alloc(1, op_moe_weights_stage_bytes(w));
    status = write_matrix(op, WEIGHTS_UP, at[0], at[2], room, err);
    if (status == EPA_OK)
        status = write_matrix(op, WEIGHTS_DOWN, at[1], at[3], room, err);
    free(room);
    return status;
}
