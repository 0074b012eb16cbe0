/* Synthetic experts on hosts: each multiplies its rows by its factor. They use kernels for speed, since
 * they run between the stages of every iteration; the checks do not use them. Layout rank: the output of a
 * row is the weighted sum over its experts. Only used rows are written. */
#include "op/moe/experts.h"

#include <stdlib.h>
#include <string.h>

#include "epa2a/gemm.h"
#include "epa2a/quant.h"
#include "kernels/libraries.h"
#include "op/moe/check.h"
#include "op/moe/experts_mlp.h"
#include "op/moe/inputs.h"

static const struct epa_kernels *kernels_of(const struct op_moe *op)
{
    return epa_kernels_get((enum epa_dtype)op->r.x->moe.dtype, NULL);
}

/* Computes the output of one of this rank's experts for a received row. */
static void output_row(const struct op_moe *op, const struct epa_kernels *kernels,
                       const struct view *v, uint64_t row, uint32_t local_expert, uint16_t *y)
{
    const struct epa_moe *m = &v->m;
    const char *data = v->rows.data + row * m->recv_stride;
    float factor =
        op_moe_factor(op, v->iteration, op->r.world.rank * op->local_experts + local_expert);

    if (op->footprint.recv_dtype == EPA_FP8_E4M3) {
        const void *scale = v->rows.scale + row * m->scale_stride;

        kernels->output_fp8((const uint8_t *)data, scale, m->hidden, m->fp8_group_size, factor, y);
    } else {
        kernels->output((const void *)data, m->hidden, factor, y);
    }
}

/* A counting sort. */
enum epa_status op_moe_sort_shares(struct op_moe *op, const struct view *v, struct epa_error *err)
{
    const struct epa_moe *m = &v->m;
    uint32_t *first = op->row_first, sum = 0;
    enum epa_status status =
        op_moe_area(&op->share, "entries by row", v->entries * sizeof(struct share), err);
    struct share *share = op->share.data;

    if (status != EPA_OK)
        return status;
    memset(first, 0, (v->rows_end + 1) * sizeof(*first));
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++)
            first[m->recv_row[v->first[e] + i] + 1]++;
    for (uint64_t row = 0; row <= v->rows_end; row++) {
        sum += first[row];
        first[row] = sum;
    }
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++) {
            uint32_t entry = (uint32_t)v->first[e] + i;

            share[first[m->recv_row[entry]]++] = (struct share){.entry = entry, .expert = e};
        }
    /* The sort has advanced each `first` to the next row; moves them back. */
    memmove(first + 1, first, v->rows_end * sizeof(*first));
    first[0] = 0;
    return EPA_OK;
}

/* Computes the weighted sum of the outputs of this rank's experts for each row. */
static enum epa_status output_shares(struct op_moe *op, const struct view *v, uint16_t *y,
                                     struct epa_error *err)
{
    const struct epa_kernels *kernels = kernels_of(op);
    const struct epa_moe *m = &v->m;
    enum epa_status status = op_moe_sort_shares(op, v, err);

    for (uint64_t row = 0; row < v->rows_end && status == EPA_OK; row++) {
        const struct share *share = (const struct share *)op->share.data + op->row_first[row];
        uint32_t n = op->row_first[row + 1] - op->row_first[row];

        if (n > m->topk)
            return epa_fail(err, EPA_ERR_MISMATCH,
                            "rank %u: %u entries share row %llu; a token has %u choices",
                            op->r.world.rank, n, (unsigned long long)row, m->topk);
        for (uint32_t i = 0; i < n; i++) {
            uint16_t *output = op->output + (size_t)i * m->hidden;

            output_row(op, kernels, v, row, share[i].expert, output);
            op->part[i] = output;
            op->part_weight[i] = m->recv_weight[share[i].entry];
        }
        if (n > 0)
            kernels->reduce(op->part, op->part_weight, n, m->hidden, EPA_STORE_CACHED,
                            y + row * m->hidden);
    }
    return status;
}

/* Sends the factors to the synthetic experts of a device. */
static enum epa_status send_factors(struct op_moe *op, uint64_t iteration)
{
    if (op->weights.mlp.ffn != 0)
        return EPA_OK;
    op_moe_factors(op, iteration, op->factor.here);
    return op_buffer_send(op->r.backend, &op->factor, op->r.x->moe.experts * sizeof(float));
}

enum epa_status op_moe_experts(struct op_rank *rank, uint32_t slot, struct epa_error *err)
{
    struct op_moe *op = op_moe_of(rank);
    const struct op_slot *s = &op->r.slot[slot];
    struct epa_moe *moe = &op->r.slot[slot].problem.u.moe;
    uint64_t bytes = op_moe_rows(&op->footprint) * moe->hidden * sizeof(uint16_t);
    bool apart = op->r.x->expert.output == OUTPUT_SEPARATE || moe->y_space == NULL;
    const struct epa_kernels *kernels;
    struct view v;
    uint16_t *y;
    enum epa_status status = EPA_OK;

    if (op->footprint.fused)
        return EPA_OK;
    if (op->y[slot] == NULL && apart && bytes != 0)
        status = op_alloc(op->r.backend, "expert outputs", bytes, &op->y[slot], err);
    if (status != EPA_OK)
        return status;
    y = apart ? op->y[slot] : moe->y_space;
    moe->y = y;
    if (op->device_experts != NULL) { /* the device reads the lists itself */
        status = send_factors(op, s->iteration);
        if (status == EPA_OK)
            status = op->r.backend->ops->experts_run(op->device_experts, moe, y);
        if (status != EPA_OK)
            op->r.backend->ops->explain(op->r.backend, err);
        return status;
    }
    status = op_moe_view(op, s, &v, err);
    if (status != EPA_OK)
        return status;
    if (op->mlp.ffn != 0)
        return op_moe_mlp_run(op, &v, y, err);
    if (op->footprint.layout == EPA_LAYOUT_RANK)
        return output_shares(op, &v, y, err);
    kernels = kernels_of(op);
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint64_t i = v.m.recv_start[e]; i < v.m.recv_start[e] + v.m.recv_count[e]; i++)
            output_row(op, kernels, &v, i, e, y + i * moe->hidden);
    return EPA_OK;
}

/* ---- weights ---- */

/* This rank's weights of real experts: in backend memory in the format of struct epa_mlp if an algorithm
 * or a device computes the experts; packed if the host computes them. */

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
