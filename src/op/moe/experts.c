/* The synthetic expert: multiplies each row by a factor that tells which expert
 * answered. Fast, by kernels, as it runs between the stages of every iteration; the
 * checks do not use it. Layout rank: a row's answer is the weighted sum over the experts
 * that want it. Rows of a device come and expert outputs go a window at a time, so that memory of
 * the host does not grow with what a rank receives; only rows in use are written. */
#include "op/moe/moe.h"

#include <string.h>

#include "base/dtype.h"
#include "epa2a/quant.h"

/* Expert outputs on their way from a view to y. */
struct outputs {
    struct op_moe *op;
    struct view *v;
    uint16_t *there; /* y; where the backend is the host, expert outputs are made in it */
    uint16_t *here;  /* NULL then; else those to the rows of the window */
    uint64_t room;   /* rows in a window */
};

static enum epa_status outputs_init(struct op_moe *op, struct view *v, void *y, struct outputs *out,
                                    struct epa_error *err)
{
    uint64_t row = v->m.hidden * sizeof(uint16_t);
    enum epa_status status;

    *out = (struct outputs){.op = op, .v = v, .there = y, .room = UINT64_MAX};
    if (op->backend->memory == EPA_MEMORY_HOST)
        return EPA_OK;
    out->room = row < WINDOW_BYTES ? WINDOW_BYTES / row : 1;
    status = op_moe_area(&op->window, "expert outputs on their way", out->room * row, err);
    out->here = op->window.data;
    return status;
}

static uint16_t *output_at(const struct outputs *a, uint64_t row)
{
    uint64_t hidden = a->v->m.hidden;

    return a->here == NULL ? a->there + row * hidden : a->here + (row - a->v->rows.first) * hidden;
}

/* The backend has taken what it is to write when it returns. */
static enum epa_status write_outputs(const struct outputs *a, uint64_t first, uint64_t n,
                                     struct epa_error *err)
{
    struct epa_backend *b = a->op->backend;
    uint64_t hidden = a->v->m.hidden;
    enum epa_status status;

    if (a->here == NULL)
        return EPA_OK;
    status = b->ops->write(b, a->there + first * hidden, output_at(a, first),
                           n * hidden * sizeof(uint16_t));
    if (status == EPA_OK)
        return EPA_OK;
    b->ops->explain(b, err);
    return epa_fail(err, status, "the expert outputs of %llu rows could not be written",
                    (unsigned long long)n);
}

static const struct epa_kernels *kernels_of(const struct op_moe *op)
{
    return epa_kernels_get((enum epa_dtype)op->x->moe.dtype, NULL);
}

/* The answer of one of this rank's experts to a received row. */
static void output_row(const struct op_moe *op, const struct view *v, uint64_t row,
                       uint32_t local_expert, uint16_t *y)
{
    const struct epa_kernels *kernels = kernels_of(op);
    const struct epa_moe *m = &v->m;
    uint64_t at = row - v->rows.first;
    const char *data = v->rows.data + at * m->recv_stride;
    float factor = op_moe_factor(op, op->world.rank * op->local_experts + local_expert);

    if (op->footprint.recv_dtype == EPA_FP8_E4M3) {
        const void *scale = v->rows.scale + at * m->scale_stride;

        kernels->output_fp8((const uint8_t *)data, scale, m->hidden, m->fp8_group_size, factor, y);
    } else {
        kernels->output((const void *)data, m->hidden, factor, y);
    }
}

static enum epa_status output_expert(const struct outputs *a, uint32_t e, struct epa_error *err)
{
    uint64_t row = a->v->m.recv_start[e], end = row + a->v->m.recv_count[e], n;
    enum epa_status status = EPA_OK;

    for (; row < end && status == EPA_OK; row += n) {
        n = end - row < a->room ? end - row : a->room;
        status = op_moe_read_rows(a->op, a->v, row, n, err);
        if (status != EPA_OK)
            return status;
        for (uint64_t i = row; i < row + n; i++)
            output_row(a->op, a->v, i, e, output_at(a, i));
        status = write_outputs(a, row, n, err);
    }
    return status;
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
    /* Each first has moved on to the next row's; back again. */
    memmove(first + 1, first, v->rows_end * sizeof(*first));
    first[0] = 0;
    return EPA_OK;
}

/* How many entries are in a row. */
static uint32_t shares_of(const struct op_moe *op, uint64_t row)
{
    return op->row_first[row + 1] - op->row_first[row];
}

/* What this rank's experts answer to a row, weighted and added up. */
static enum epa_status output_shares(const struct outputs *a, uint64_t row, struct epa_error *err)
{
    struct op_moe *op = a->op;
    const struct epa_moe *m = &a->v->m;
    const struct share *share = (const struct share *)op->share.data + op->row_first[row];
    uint32_t n = shares_of(op, row);

    if (n > m->topk)
        return epa_fail(err, EPA_ERR_MISMATCH,
                        "rank %u: %u entries share row %llu; a token has %u choices",
                        op->world.rank, n, (unsigned long long)row, m->topk);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t *output = op->output + (size_t)i * m->hidden;

        output_row(op, a->v, row, share[i].expert, output);
        op->part[i] = output;
        op->part_weight[i] = m->recv_weight[share[i].entry];
    }
    kernels_of(op)->reduce(op->part, op->part_weight, n, m->hidden, EPA_STORE_CACHED,
                           output_at(a, row));
    return EPA_OK;
}

/* Rows row to end - 1 with the holes among them, which stay as they are. */
static enum epa_status output_window(const struct outputs *a, uint64_t row, uint64_t end,
                                     struct epa_error *err)
{
    enum epa_status status = op_moe_read_rows(a->op, a->v, row, end - row, err);
    uint64_t first = row;

    for (; row < end && status == EPA_OK; row++) {
        if (shares_of(a->op, row) != 0) {
            status = output_shares(a, row, err);
            continue;
        }
        if (row != first)
            status = write_outputs(a, first, row - first, err);
        first = row + 1;
    }
    if (status == EPA_OK && row != first)
        status = write_outputs(a, first, row - first, err);
    return status;
}

static enum epa_status output_rows(const struct outputs *a, struct epa_error *err)
{
    uint64_t end = a->v->rows_end;
    enum epa_status status = op_moe_sort_shares(a->op, a->v, err);

    for (uint64_t row = 0; row < end && status == EPA_OK;) {
        uint64_t n = end - row < a->room ? end - row : a->room;

        if (shares_of(a->op, row) == 0) {
            row++;
            continue;
        }
        status = output_window(a, row, row + n, err);
        row += n;
    }
    return status;
}

enum epa_status op_moe_experts(struct op_rank *rank, uint32_t slot, struct epa_error *err)
{
    struct op_moe *op = op_moe_of(rank);
    struct slot *s = &op->slot[slot];
    struct epa_moe *moe = &s->problem.u.moe;
    uint64_t bytes = op_moe_rows(&op->footprint) * moe->hidden * sizeof(uint16_t);
    bool apart = op->x->expert.output == OUTPUT_SEPARATE || moe->y_space == NULL;
    struct outputs a;
    struct view v;
    enum epa_status status = EPA_OK;

    if (op->footprint.fused)
        return EPA_OK;
    if (s->y == NULL && apart && bytes != 0)
        status = op_moe_alloc(op, "expert outputs", bytes, &s->y, err);
    if (status != EPA_OK)
        return status;
    moe->y = apart ? s->y : moe->y_space;
    if (op->device_experts != NULL) { /* which reads the lists itself */
        status =
            op->backend->ops->experts_run(op->device_experts, moe, apart ? s->y : moe->y_space);
        if (status != EPA_OK)
            op->backend->ops->explain(op->backend, err);
        return status;
    }
    status = op_moe_view(op, s, &v, err);
    if (status != EPA_OK)
        return status;
    if (op->mlp.ffn != 0)
        return op_moe_mlp_run(op, &v, apart ? s->y : moe->y_space, err);
    status = outputs_init(op, &v, apart ? s->y : moe->y_space, &a, err);
    if (op->footprint.layout == EPA_LAYOUT_RANK)
        return status == EPA_OK ? output_rows(&a, err) : status;
    for (uint32_t e = 0; e < op->local_experts && status == EPA_OK; e++)
        status = output_expert(&a, e, err);
    return status;
}
