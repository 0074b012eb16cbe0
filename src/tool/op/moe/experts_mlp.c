/* Real experts on hosts: the grouped GEMM between dispatch and combine, with the kernels of gemm.h or
 * oneDNN (expert.library). It does not run if an algorithm or a device computes the experts.
 *
 * The host processes batches of rows, each filled with rows of one or more experts. A batch has several
 * steps; a step is a list of tasks that the rank's workers share:
 *
 *   gather    copies the rows of a panel to the order of the kernels, and quantises them for FP8 weights;
 *             oneDNN reads contiguous rows
 *   up        columns of the intermediate: both projections, activation, rounding
 *   down      columns of the outputs
 *   reduce    layout rank: weighted sum over a row's experts, like experts.c */
#include "op/moe/experts_mlp.h"

#include <stdlib.h>
#include <string.h>

#include "epa2a/gemm.h"
#include "epa2a/quant.h"
#include "kernels/libraries.h"
#include "kernels/rows.h"
#include "kernels/kernels.h"
#include "op/moe/area.h"
#include "op/moe/expert_weights.h"
#include "op/moe/moe_shape.h"
#include "op/moe/shares.h"

enum { ONEDNN_ROWS = 256, ONEDNN_COLUMNS = 128, ONEDNN_STEP = 32 };

enum {
    LINE = 64,
    BLOCK = WEIGHTS_BLOCK,
    TASK_ROWS = 256,  /* rows of the intermediate or of outputs per task */
    UP_COLUMNS = 128, /* columns of each projection per task */
    DOWN_COLUMNS = 256,
    BATCH_BYTES = 32 << 20, /* limit of gathered rows and their intermediate */
    REDUCE_ROWS = 16,       /* rows per task */
    MOST_PARTS = 64,        /* limit of epa_kernels.reduce */
};

_Static_assert((int)TASK_ROWS <= (int)ONEDNN_ROWS && UP_COLUMNS % (int)ONEDNN_COLUMNS == 0,
               "blocks of oneDNN");

/* Rows `first` to first + n - 1 of a local expert, at panel row `at` of the batch. */
struct segment {
    uint32_t expert, n;
    uint64_t first, at;
};

struct mlp_experts {
    struct pool pool; /* memory of weights and of a batch */
    const struct epa_kernels *kernels;
    void (*activate)(const struct gemm_tile_out *);
    struct mlp_weights w;

    /* A batch; `rows` is a multiple of the rows of a panel. */
    uint64_t rows;
    void *a, *mid;              /* panels of rows, and of the intermediate */
    float *a_scale, *mid_scale; /* FP8: [rows][groups of hidden, of ffn] */
    struct segment *segment;    /* [local experts + rows / panel] */
    uint32_t n_segments;
    float *c;                 /* [workers][TASK_ROWS][UP_COLUMNS * 2] */
    uint32_t workers, failed; /* failed: a product of the library failed */
    struct area outputs;      /* layout rank: [entries][hidden] */

    /* The present step. */
    struct op_moe *op;
    const struct view *view;
    uint16_t *y, *reduced; /* outputs of entries; layout rank: reduced outputs of rows */
    uint64_t next, tasks;
    uint32_t task_rows,
        task_columns; /* tasks of a segment: rows per task, and tasks over columns */
    void (*task)(struct mlp_experts *, uint64_t task, uint32_t worker);
};

/* ---- memory of the host's experts ---- */

/* Returns the rows of a batch: at most all rows, with an incomplete panel per expert. */
static uint64_t batch_rows(const struct weights *w, uint64_t entries, uint32_t experts)
{
    uint64_t row = ((uint64_t)w->hidden + w->mlp.ffn) * 2, n = BATCH_BYTES / row;
    uint64_t most = entries + (uint64_t)experts * EPA_GEMM_ROWS;

    n = n < most ? n : most;
    n = n / EPA_GEMM_ROWS * EPA_GEMM_ROWS;
    return n < TASK_ROWS ? TASK_ROWS : n;
}

/* Returns true if the options select oneDNN; auto selects the own kernels, which were never slower. */
static bool is_by_library(const struct experiment *x)
{
    return x->expert.library == EXPERT_LIBRARY_ONEDNN;
}

/* Bytes of a packed block of the library, which pads columns for its instructions. */
static size_t library_block_bytes(const struct weights *w, enum weights_matrix m)
{
    enum { PADDED_TO = 64 };

    return (size_t)BLOCK * ((weights_columns(w, m) + PADDED_TO - 1) / PADDED_TO * PADDED_TO) *
           sizeof(uint16_t);
}

/* Allocates weights, a batch and the memory of the workers from the pool. */
static void allocate_experts(const struct weights *w, uint64_t entries, uint32_t local,
                             uint32_t workers, bool by_library, struct mlp_experts *x)
{
    struct pool *p = &x->pool;
    size_t bytes[WEIGHTS_MATRICES], scales[WEIGHTS_MATRICES];

    for (enum weights_matrix m = WEIGHTS_UP; m < WEIGHTS_MATRICES; m++) {
        bytes[m] = (size_t)weights_rows(w, m) * weights_columns(w, m) * weights_element(w);
        scales[m] = (size_t)weights_blocks(w, m) * weights_scales_of_row(w, m);
        if (by_library)
            bytes[m] = weights_blocks(w, m) * library_block_bytes(w, m);
    }
    x->workers = workers;
    x->rows = batch_rows(w, entries, local);
    x->w.up = pool_alloc(p, local * bytes[WEIGHTS_UP], 1);
    x->w.down = pool_alloc(p, local * bytes[WEIGHTS_DOWN], 1);
    x->a = pool_alloc(p, epa_gemm_a_bytes((uint32_t)x->rows, w->hidden), 1);
    x->mid = pool_alloc(p, epa_gemm_a_bytes((uint32_t)x->rows, w->mlp.ffn), 1);
    x->segment = pool_alloc(p, local + x->rows / EPA_GEMM_ROWS + 1, sizeof(*x->segment));
    x->c = pool_alloc(p, (size_t)workers * TASK_ROWS * UP_COLUMNS * 2, sizeof(float));
    if (w->mlp.dtype != EPA_FP8_E4M3)
        return;
    x->w.up_scale = pool_alloc(p, local * scales[WEIGHTS_UP], sizeof(float));
    x->w.down_scale = pool_alloc(p, local * scales[WEIGHTS_DOWN], sizeof(float));
    x->a_scale = pool_alloc(p, x->rows * (w->hidden / w->x_group), sizeof(float));
    x->mid_scale = pool_alloc(p, x->rows * (w->mlp.ffn / w->mlp.fp8_group_size), sizeof(float));
}

static void count_workers(void *arg, uint32_t worker, uint32_t workers)
{
    if (worker == 0)
        *(uint32_t *)arg = workers;
}

static enum epa_status host_create(struct op_moe *op, struct epa_error *err)
{
    const struct weights *w = &op->weights;
    uint32_t workers = 1;
    struct mlp_experts *x = memory_alloc(1, sizeof(*x));

    op->experts = x;
    x->op = op;
    x->w.gemm = epa_gemm_get((enum epa_dtype)w->mlp.dtype, NULL);
    x->kernels = epa_kernels_get((enum epa_dtype)op->r.x->moe.dtype, NULL);
    x->activate = gemm_rows_get()->activate;
    (void)op->r.backend->ops->parallel(op->r.backend, count_workers, &workers);
    if (is_by_library(op->r.x)) {
        const struct onednn_product product[] = {
            [WEIGHTS_UP] = {ONEDNN_COLUMNS, w->hidden, UP_COLUMNS, ONEDNN_ROWS, ONEDNN_STEP, true},
            [WEIGHTS_DOWN] = {ONEDNN_COLUMNS, w->mlp.ffn, DOWN_COLUMNS, ONEDNN_ROWS, ONEDNN_STEP,
                              true}};
        enum epa_status status = onednn_create(product, 2, workers, &x->w.library, err);

        for (uint32_t i = 0; i < 2 && status == EPA_OK; i++)
            if (onednn_packed_bytes(x->w.library, i) > library_block_bytes(w, i))
                status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                                  "expert.library: onednn: %s packs weights to more bytes",
                                  onednn_name(x->w.library));
        if (status != EPA_OK)
            return status;
    }
    allocate_experts(w, op->footprint.recv_entries, op->local_experts, workers,
                     is_by_library(op->r.x), x);
    if (x->pool.failed)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the experts' weights: %llu bytes",
                        (unsigned long long)x->pool.bytes);
    /* Padding rows of a panel may have any finite values: zeros here, old rows later. */
    memset(x->a, 0, epa_gemm_a_bytes((uint32_t)x->rows, w->hidden));
    memset(x->mid, 0, epa_gemm_a_bytes((uint32_t)x->rows, w->mlp.ffn));
    if (x->a_scale != NULL) {
        memset(x->a_scale, 0, x->rows * (w->hidden / w->x_group) * sizeof(float));
        memset(x->mid_scale, 0, x->rows * (w->mlp.ffn / w->mlp.fp8_group_size) * sizeof(float));
    }
    return op_moe_weights_make(op, &x->w, err);
}

static void host_destroy(struct mlp_experts *x)
{
    if (x == NULL)
        return;
    onednn_destroy(x->w.library);
    pool_free(&x->pool);
    free(x->outputs.data);
    free(x);
}

/* ---- the steps ---- */

static void work_on_tasks(void *arg, uint32_t worker, uint32_t workers)
{
    struct mlp_experts *x = arg;
    uint64_t i;

    (void)workers;
    /* Relaxed: the counter only distributes tasks; parallel() orders steps. */
    while ((i = __atomic_fetch_add(&x->next, 1, __ATOMIC_RELAXED)) < x->tasks)
        x->task(x, i, worker);
}

static enum epa_status run_tasks(struct mlp_experts *x,
                                 void (*task)(struct mlp_experts *, uint64_t, uint32_t),
                                 uint64_t tasks)
{
    struct epa_backend *backend = x->op->r.backend;
    enum epa_status status = EPA_OK;

    x->task = task;
    x->tasks = tasks;
    x->next = 0;
    if (tasks > 1)
        status = backend->ops->parallel(backend, work_on_tasks, x);
    else
        work_on_tasks(x, 0, 1);
    return x->failed != 0 ? EPA_ERR_SYSTEM : status;
}

static uint64_t tasks_in(const struct mlp_experts *x, const struct segment *s)
{
    return (uint64_t)(s->n + x->task_rows - 1) / x->task_rows * x->task_columns;
}

/* Returns the segment of a task, and its row and column. Rows vary fastest, so that the weights of a task
 * are still in the cache for the next one. */
static const struct segment *segment_of(const struct mlp_experts *x, uint64_t task, uint32_t *row,
                                        uint32_t *column)
{
    const struct segment *s = x->segment;
    uint32_t blocks;

    for (uint64_t n; task >= (n = tasks_in(x, s)); s++)
        task -= n;
    blocks = (s->n + x->task_rows - 1) / x->task_rows;
    *row = (uint32_t)(task % blocks) * x->task_rows;
    *column = (uint32_t)(task / blocks);
    return s;
}

/* Runs a step for all segments of a batch. */
static enum epa_status run_step(struct mlp_experts *x,
                                void (*task)(struct mlp_experts *, uint64_t, uint32_t),
                                uint32_t rows, uint32_t columns)
{
    uint64_t tasks = 0;

    x->task_rows = rows;
    x->task_columns = columns;
    for (uint32_t i = 0; i < x->n_segments; i++)
        tasks += tasks_in(x, &x->segment[i]);
    return run_tasks(x, task, tasks);
}

/* Copies a received row to panel row `at`. */
static void gather_row(struct mlp_experts *x, uint64_t here, uint64_t at)
{
    const struct view *v = x->view;
    const struct epa_moe *m = &v->m;
    const struct op_moe *op = x->op;
    const void *row = v->rows.data + here * m->recv_stride;
    const void *scale = v->rows.scale + here * m->scale_stride;
    uint32_t hidden = m->hidden, group = op->weights.x_group, groups = hidden / group;
    bool quantised = op->footprint.recv_dtype == EPA_FP8_E4M3;

    if (op->weights.mlp.dtype != EPA_FP8_E4M3) {
        if (x->w.library != NULL && quantised)
            x->kernels->output_fp8(row, scale, hidden, m->fp8_group_size, 1,
                                   (uint16_t *)x->a + at * hidden);
        else if (x->w.library != NULL)
            memcpy((uint16_t *)x->a + at * hidden, row, hidden * sizeof(uint16_t));
        else if (quantised)
            x->w.gemm->pack_a_fp8(row, scale, m->fp8_group_size, hidden, x->a, (uint32_t)at);
        else
            x->w.gemm->pack_a(row, hidden, x->a, (uint32_t)at);
        return;
    }
    if (quantised) {
        memcpy(x->a_scale + at * groups, scale, groups * sizeof(float));
        x->w.gemm->pack_a_fp8(row, NULL, group, hidden, x->a, (uint32_t)at);
        return;
    }
    for (uint32_t g = 0; g < groups; g++) {
        /* One group at a time, so that its codes fit the stack. */
        uint8_t q[BLOCK];
        uint16_t codes[BLOCK];

        x->kernels->quantise((const uint16_t *)row + g * group, group, group, NULL, q,
                             x->a_scale + at * groups + g);
        for (uint32_t i = 0; i < group; i++)
            codes[i] = bf16_of_float(float_of_e4m3(q[i]));
        for (uint32_t i = 0; i < group; i += EPA_GEMM_STEP)
            memcpy((char *)x->a + epa_gemm_a_at((uint32_t)at, g * group + i, hidden), codes + i,
                   64);
    }
}

static uint32_t rows_of_task(const struct mlp_experts *x, const struct segment *s, uint32_t row)
{
    return s->n - row < x->task_rows ? s->n - row : x->task_rows;
}

static void gather_panel(struct mlp_experts *x, uint64_t task, uint32_t worker)
{
    uint32_t row, none;
    const struct segment *s = segment_of(x, task, &row, &none);
    uint64_t end = row + rows_of_task(x, s, row);

    (void)worker;
    for (uint64_t i = row; i < end; i++)
        gather_row(x, op_moe_row_ref(x->view, s->expert, s->first + i).here, s->at + i);
}

/* Multiplies with the library, whose weights are packed in blocks, from block `block` on (an index over
 * all experts). C has room for whole blocks. */
static void multiply_by_library(struct mlp_experts *x, uint32_t worker, enum weights_matrix matrix,
                                const void *a, uint32_t m, uint64_t block, uint32_t n, float *c)
{
    size_t bytes = onednn_packed_bytes(x->w.library, matrix);
    const char *b = (const char *)(matrix == WEIGHTS_UP ? x->w.up : x->w.down) + block * bytes;

    for (uint32_t i = 0; i < n; i += ONEDNN_COLUMNS, b += bytes)
        if (onednn_multiply(x->w.library, worker, matrix, a, m, b, c + i) != EPA_OK)
            __atomic_store_n(&x->failed, 1, __ATOMIC_RELAXED);
}

/* Computes C for columns n0 to n0 + n - 1 of an expert's packed matrix. n0 is the first column of a
 * block. */
static void multiply_columns(struct mlp_experts *x, uint32_t worker, const struct segment *s,
                             uint32_t row, uint32_t m, bool up, uint32_t n0, uint32_t n, float *c)
{
    const struct weights *w = &x->op->weights;
    enum weights_matrix matrix = up ? WEIGHTS_UP : WEIGHTS_DOWN;
    uint32_t k = weights_columns(w, matrix), projection = up ? w->mlp.ffn : w->hidden;
    size_t at = (size_t)s->at + row, first = (size_t)s->expert * weights_rows(w, matrix) + n0;
    uint64_t block = (uint64_t)s->expert * weights_blocks(w, matrix) +
                     n0 / projection * epa_mlp_blocks(projection) + n0 % projection / BLOCK;
    const float *a_scale = up ? x->a_scale : x->mid_scale;
    const float *b_scale = up ? x->w.up_scale : x->w.down_scale;
    struct epa_gemm_call call = {
        .a = (const char *)(up ? x->a : x->mid) + epa_gemm_a_at((uint32_t)at, 0, k),
        .b = (const char *)(up ? x->w.up : x->w.down) + first * k * weights_element(w),
        .m = m,
        .n = n,
        .k = k,
        .c = c,
        .ldc = up ? UP_COLUMNS : DOWN_COLUMNS};

    if (w->mlp.dtype == EPA_FP8_E4M3) {
        call.group = up ? w->x_group : w->mlp.fp8_group_size;
        call.a_scale_stride = k / call.group;
        call.a_scale = a_scale + at * call.a_scale_stride;
        call.b_scale = b_scale + block * weights_scales_of_row(w, matrix);
    }
    if (x->w.library != NULL)
        multiply_by_library(x, worker, matrix, call.a, m, block, n, c);
    else
        x->w.gemm->multiply(&call);
}

static float *scratch_of(const struct mlp_experts *x, uint32_t worker)
{
    return x->c + (size_t)worker * TASK_ROWS * UP_COLUMNS * 2;
}

static void up_task(struct mlp_experts *x, uint64_t task, uint32_t worker)
{
    uint32_t row, column;
    const struct segment *s = segment_of(x, task, &row, &column);
    const struct epa_mlp *mlp = &x->op->weights.mlp;
    bool swiglu = mlp->activation == EPA_ACTIVATION_SWIGLU;
    uint32_t m = rows_of_task(x, s, row), k = column * UP_COLUMNS;
    uint32_t n = mlp->ffn - k < UP_COLUMNS ? mlp->ffn - k : UP_COLUMNS;
    float *c = scratch_of(x, worker), *other = c + (size_t)TASK_ROWS * UP_COLUMNS;

    multiply_columns(x, worker, s, row, m, true, k, n, c);
    if (swiglu)
        multiply_columns(x, worker, s, row, m, true, mlp->ffn + k, n, other);
    x->activate(&(struct gemm_tile_out){.gate = c,
                                        .up = swiglu ? other : NULL,
                                        .ld = UP_COLUMNS,
                                        .m = m,
                                        .n = n,
                                        .k = mlp->ffn,
                                        .k0 = k,
                                        .row = (uint32_t)s->at + row,
                                        .weights = (enum epa_dtype)mlp->dtype,
                                        .dtype = (enum epa_dtype)mlp->dtype,
                                        .group = mlp->fp8_group_size,
                                        .plain = x->w.library != NULL,
                                        .to = x->mid,
                                        .scale = x->mid_scale});
}

static void down_task(struct mlp_experts *x, uint64_t task, uint32_t worker)
{
    uint32_t row, column;
    const struct segment *s = segment_of(x, task, &row, &column);
    uint32_t hidden = x->op->weights.hidden, m = rows_of_task(x, s, row);
    uint32_t h = column * DOWN_COLUMNS;
    uint32_t n = hidden - h < DOWN_COLUMNS ? hidden - h : DOWN_COLUMNS;
    float *c = scratch_of(x, worker);

    multiply_columns(x, worker, s, row, m, false, h, n, c);
    for (uint32_t i = 0; i < m; i++) {
        uint64_t entry = x->view->first[s->expert] + s->first + row + i;

        x->kernels->round(c + (size_t)i * DOWN_COLUMNS, NULL, n, x->y + entry * hidden + h);
    }
}

/* Fills a batch from entry `*i` of expert `*e` on, and advances both. */
static void fill_batch(struct mlp_experts *x, uint32_t *e, uint64_t *i)
{
    const struct epa_moe *m = &x->view->m;
    uint64_t at = 0;

    x->n_segments = 0;
    while (*e < x->op->local_experts && at < x->rows) {
        uint64_t left = m->recv_count[*e] - *i, n = left < x->rows - at ? left : x->rows - at;

        if (n > 0)
            x->segment[x->n_segments++] =
                (struct segment){.expert = *e, .n = (uint32_t)n, .first = *i, .at = at};
        at += (n + EPA_GEMM_ROWS - 1) / EPA_GEMM_ROWS * EPA_GEMM_ROWS;
        *i += n;
        if (*i < m->recv_count[*e])
            break;
        *e += 1;
        *i = 0;
    }
}

static enum epa_status run_batches(struct mlp_experts *x)
{
    const struct weights *w = &x->op->weights;
    enum epa_status status = EPA_OK;
    uint32_t e = 0;
    uint64_t i = 0;

    while (e < x->op->local_experts && status == EPA_OK) {
        fill_batch(x, &e, &i);
        if (x->n_segments == 0)
            continue;
        status = run_step(x, gather_panel, EPA_GEMM_ROWS, 1);
        if (status == EPA_OK)
            status = run_step(x, up_task, TASK_ROWS, (w->mlp.ffn + UP_COLUMNS - 1) / UP_COLUMNS);
        if (status == EPA_OK)
            status =
                run_step(x, down_task, TASK_ROWS, (w->hidden + DOWN_COLUMNS - 1) / DOWN_COLUMNS);
    }
    return status;
}

/* Layout rank: weighted sums of the outputs of each row's entries to x->reduced. */
static void reduce_rows(struct mlp_experts *x, uint64_t task, uint32_t worker)
{
    const struct op_moe *op = x->op;
    const struct epa_moe *m = &x->view->m;
    uint64_t first = task * REDUCE_ROWS, end = first + REDUCE_ROWS;
    const uint16_t *part[MOST_PARTS];
    float weight[MOST_PARTS];

    (void)worker;
    end = end < x->view->rows_end ? end : x->view->rows_end;
    for (uint64_t row = first; row < end; row++) {
        const struct share *share = (const struct share *)op->share.data + op->row_first[row];
        uint32_t n = op->row_first[row + 1] - op->row_first[row];

        for (uint32_t i = 0; i < n; i++) {
            part[i] = x->y + (size_t)share[i].entry * m->hidden;
            weight[i] = m->recv_weight[share[i].entry];
        }
        if (n > 0)
            x->kernels->reduce(part, weight, n, m->hidden, EPA_STORE_CACHED,
                               x->reduced + row * m->hidden);
    }
}

enum epa_status op_moe_mlp_run(struct op_moe *op, const struct view *v, uint16_t *y,
                               struct epa_error *err)
{
    struct mlp_experts *x = op->experts;
    bool by_rank = op->footprint.layout == EPA_LAYOUT_RANK;
    uint64_t end = 0;
    enum epa_status status = EPA_OK;

    for (uint32_t e = 0; e < op->local_experts; e++)
        if (v->m.recv_count[e] != 0 && v->first[e] + v->m.recv_count[e] > end)
            end = v->first[e] + v->m.recv_count[e];
    if (by_rank)
        status = op_moe_area(&x->outputs, "expert outputs", end * v->m.hidden * sizeof(*y), err);
    if (status == EPA_OK && by_rank)
        status = op_moe_sort_shares(op, v, err);
    if (status != EPA_OK)
        return status;
    x->view = v;
    x->y = by_rank ? x->outputs.data : y;
    x->reduced = y;
    status = run_batches(x);
    if (status == EPA_OK && by_rank)
        status = run_tasks(x, reduce_rows, (v->rows_end + REDUCE_ROWS - 1) / REDUCE_ROWS);
    if (x->failed != 0)
        return epa_fail(err, status, "%s: a product of the experts failed",
                        onednn_name(x->w.library));
    if (status != EPA_OK)
        op->r.backend->ops->explain(op->r.backend, err);
    return status;
}

/* ---- creation and use ---- */

static enum epa_status device_create(struct op_moe *op, struct epa_error *err)
{
    const struct epa_backend_ops *ops = op->r.backend->ops;
    const float *factor = (const float *)op->factor.there + op->r.world.rank * op->local_experts;
    struct epa_problem problem;

    if (ops->experts_create == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "backend '%s' computes no experts: use an algorithm that computes them",
                        op->r.x->backend.plugin->name);
    op_moe_shape(op->r.x, &problem);
    problem.u.moe.mlp = op->mlp;
    return ops->experts_create(op->r.backend,
                               &(struct epa_experts_params){
                                   .moe = &problem.u.moe,
                                   .experts = op->local_experts,
                                   .recv_rows = op->footprint.recv_rows,
                                   .recv_entries = op->footprint.recv_entries,
                                   .layout = op->footprint.layout,
                                   .recv_dtype = op->footprint.recv_dtype,
                                   .factor = op->mlp.ffn == 0 ? factor : NULL,
                               },
                               &op->device_experts, err);
}

enum epa_status op_moe_mlp_create(struct op_moe *op, struct epa_error *err)
{
    bool host = op->r.backend->memory == EPA_MEMORY_HOST, fused = op->footprint.fused;
    enum epa_status status = EPA_OK;

    op->mlp = op->weights.mlp;
    if (host && !fused)
        return op->mlp.ffn == 0 ? EPA_OK : host_create(op, err);
    if (op->mlp.ffn != 0)
        status = op_moe_weights_place(op, err);
    return status != EPA_OK || fused ? status : device_create(op, err);
}

void op_moe_mlp_by(const struct op_rank *rank, char *out, size_t room)
{
    const struct op_moe *op = op_moe_of(rank);

    if (op->device_experts != NULL && op->mlp.ffn != 0)
        snprintf(out, room, "%s", op->r.backend->ops->experts_name(op->device_experts));
    else if (op->experts != NULL)
        snprintf(out, room, "%s%s",
                 op->experts->w.library != NULL ? onednn_name(op->experts->w.library)
                                                : op->experts->w.gemm->isa,
                 op->experts->w.library != NULL ? "" : " kernels");
    else
        out[0] = '\0';
}

void op_moe_mlp_destroy(struct op_moe *op)
{
    if (op->device_experts != NULL)
        op->r.backend->ops->experts_destroy(op->device_experts);
    for (uint32_t i = 0; i < 4; i++)
        if (op->mlp_memory[i] != NULL)
            op->r.backend->ops->free(op->r.backend, op->mlp_memory[i]);
    host_destroy(op->experts);
}

struct op_weights op_moe_mlp_bytes(const struct experiment *x,
                                   const struct epa_footprint *footprint, enum epa_memory memory)
{
    const struct epa_moe_footprint *f = &footprint->u.moe;
    uint32_t local = x->moe.experts / x->ranks;
    struct op_weights out = {0};
    struct weights w;

    if (x->expert.kind != EXPERT_MLP)
        return out;
    weights_init(x, &w);
    if (!f->fused && memory == EPA_MEMORY_HOST) {
        struct mlp_experts all = {.pool = {.counting = true}};

        allocate_experts(&w, f->recv_entries, local, backend_of(x) != NULL ? threads_of(x) : 1,
                         is_by_library(x), &all);
        out.host = all.pool.bytes;
        if (f->layout == EPA_LAYOUT_RANK)
            out.host += f->recv_entries * x->moe.hidden * sizeof(uint16_t);
    } else if (memory == EPA_MEMORY_HOST) {
        out.host = weights_bytes(&w, local);
    } else {
        out.device = weights_bytes(&w, local);
        out.host = op_moe_weights_stage_bytes(&w);
    }
    return out;
}
