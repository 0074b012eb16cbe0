/* Real experts on hosts: the grouped GEMM between dispatch and combine, with the kernels of gemm.h or
 * oneDNN.
 *
 * The host processes batches of rows, each filled with rows of one or more experts. A batch has several
 * steps; a step is a list of tasks that the rank's workers share:
 *
 *   gather    copies the rows of a panel to the order of the kernels, and quantises them for FP8 and INT8 weights;
 *             oneDNN reads contiguous rows
 *   up        columns of the intermediate: both projections, activation, rounding
 *   quantise  INT8: rows of the intermediate
 *   down      columns of the outputs
 *   reduce    layout rank: weighted sum over a row's experts */
#include "experts/host_experts.h"

#include <stdlib.h>
#include <string.h>

#include <epa2a/quant.h>

#include "base/dtype.h"
#include "base/pool.h"
#include "experts/shares.h"
#include "kernels/kernels.h"
#include "kernels/libraries.h"
#include "kernels/rows.h"

enum { ONEDNN_ROWS = 256, ONEDNN_COLUMNS = 128, ONEDNN_STEP = 32 };

enum {
    LINE = 64,
    BLOCK = MLP_BLOCK,
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

struct host_experts {
    struct pool pool; /* memory of weights and of a batch */
    const struct epa_kernels *kernels;
    const struct gemm_rows *row_kernels;
    struct mlp_weights w;

    /* A batch; `rows` is a multiple of the rows of a panel. */
    uint64_t rows;
    void *a, *mid;              /* panels of rows, and of the intermediate */
    float *a_scale, *mid_scale; /* FP8: [rows][groups of hidden, of ffn]; INT8: [rows] */
    void *codes; /* INT8: panels of the quantised intermediate; `mid` is [rows][ffn] */
    char *line;  /* INT8: [workers][line_bytes]: a row in dtype, and its codes */
    size_t line_bytes;
    struct segment *segment; /* [local experts + rows / panel] */
    uint32_t n_segments;
    float *c;                 /* [workers][TASK_ROWS][UP_COLUMNS * 2] */
    uint32_t workers, failed; /* failed: a product of the library failed */
    /* Layout rank. */
    uint16_t *outputs; /* [outputs_room][hidden] */
    uint64_t outputs_room;
    struct shares shares;

    struct epa_backend *backend;
    struct mlp_shape shape;
    enum epa_layout layout;
    enum epa_dtype recv_dtype;
    uint32_t local;   /* number of experts of this rank */
    uint32_t x_group; /* channels of a row that share a scale */
    void (*after_task)(void *arg);
    void *arg;
    char name[64];

    /* The present step. */
    const struct epa_moe *moe;
    uint16_t *y, *reduced; /* outputs of entries; layout rank: reduced outputs of rows */
    uint64_t next, tasks;
    uint32_t task_rows,
        task_columns; /* tasks of a segment: rows per task, and tasks over columns */
    void (*task)(struct host_experts *, uint64_t task, uint32_t worker);
};

/* ---- memory ---- */

/* Returns the rows of a batch: at most all rows, with an incomplete panel per expert. */
static uint64_t batch_rows(const struct mlp_shape *s, uint64_t entries, uint32_t experts)
{
    uint64_t row = ((uint64_t)s->hidden + s->mlp.ffn) * 2, n = BATCH_BYTES / row;
    uint64_t most = entries + (uint64_t)experts * EPA_GEMM_ROWS;

    n = n < most ? n : most;
    n = n / EPA_GEMM_ROWS * EPA_GEMM_ROWS;
    return n < TASK_ROWS ? TASK_ROWS : n;
}

/* Bytes of a packed block of the library, which pads columns for its instructions. */
static size_t library_block_bytes(const struct mlp_shape *s, enum mlp_matrix m)
{
    enum { PADDED_TO = 64 };

    return (size_t)BLOCK * ((mlp_columns(s, m) + PADDED_TO - 1) / PADDED_TO * PADDED_TO) *
           sizeof(uint16_t);
}

static struct mlp_shape shape_of(const struct host_experts_params *p)
{
    return (struct mlp_shape){.hidden = p->experts.moe->hidden, .mlp = p->experts.moe->mlp};
}

/* Returns the number of scales of an input row of a product. */
static size_t row_scales(const struct mlp_shape *s, enum mlp_matrix m, uint32_t x_group)
{
    if (s->mlp.dtype == EPA_INT8)
        return 1;
    return m == MLP_UP ? s->hidden / x_group : s->mlp.ffn / s->mlp.fp8_group_size;
}

/* Allocates weights, a batch and the memory of the workers from the pool. */
static void allocate_experts(const struct host_experts_params *params, uint32_t workers,
                             struct host_experts *x)
{
    const struct mlp_shape shape = shape_of(params), *s = &shape;
    uint32_t local = params->experts.experts, x_group = params->experts.moe->fp8_group_size;
    struct pool *p = &x->pool;
    size_t bytes[MLP_MATRICES], scales[MLP_MATRICES];

    for (enum mlp_matrix m = MLP_UP; m < MLP_MATRICES; m++) {
        bytes[m] =
            epa_gemm_b_bytes((enum epa_dtype)s->mlp.dtype, mlp_rows(s, m), mlp_columns(s, m));
        scales[m] = mlp_scales(s, m);
        if (params->onednn)
            bytes[m] = mlp_blocks(s, m) * library_block_bytes(s, m);
    }
    x->workers = workers;
    x->rows = batch_rows(s, params->experts.recv_entries, local);
    x->w.up = pool_alloc(p, local * bytes[MLP_UP], 1);
    x->w.down = pool_alloc(p, local * bytes[MLP_DOWN], 1);
    x->a = pool_alloc(p, epa_gemm_a_bytes((uint32_t)x->rows, s->hidden), 1);
    x->mid = pool_alloc(p, epa_gemm_a_bytes((uint32_t)x->rows, s->mlp.ffn), 1);
    x->segment = pool_alloc(p, local + x->rows / EPA_GEMM_ROWS + 1, sizeof(*x->segment));
    x->c = pool_alloc(p, (size_t)workers * TASK_ROWS * UP_COLUMNS * 2, sizeof(float));
    if (!mlp_has_scales(s))
        return;
    x->w.up_scale = pool_alloc(p, local * scales[MLP_UP], sizeof(float));
    x->w.down_scale = pool_alloc(p, local * scales[MLP_DOWN], sizeof(float));
    x->a_scale = pool_alloc(p, x->rows * row_scales(s, MLP_UP, x_group), sizeof(float));
    x->mid_scale = pool_alloc(p, x->rows * row_scales(s, MLP_DOWN, x_group), sizeof(float));
    if (s->mlp.dtype != EPA_INT8)
        return;
    x->codes = pool_alloc(p, epa_gemm_panel_at(EPA_INT8, (uint32_t)x->rows, s->mlp.ffn), 1);
    x->line_bytes = 3 * (s->hidden > s->mlp.ffn ? s->hidden : s->mlp.ffn);
    x->line = pool_alloc(p, workers * x->line_bytes, 1);
}

uint64_t host_experts_bytes(const struct host_experts_params *p, uint32_t workers)
{
    struct host_experts all = {.pool = {.counting = true}};
    uint64_t outputs = p->experts.layout == EPA_LAYOUT_RANK ? p->experts.recv_entries : 0;

    allocate_experts(p, workers, &all);
    return all.pool.bytes + outputs * p->experts.moe->hidden * sizeof(uint16_t);
}

void host_experts_destroy(struct host_experts *x)
{
    if (x == NULL)
        return;
    onednn_destroy(x->w.library);
    pool_free(&x->pool);
    shares_free(&x->shares);
    free(x->outputs);
    free(x);
}

static void count_workers(void *arg, uint32_t worker, uint32_t workers)
{
    if (worker == 0)
        *(uint32_t *)arg = workers;
}

/* ---- creation ---- */

/* Layout rank: allocates memory for the largest number of entries. An allocation in a call could not
 * fail without the other ranks. Unused pages take no memory. */
static enum epa_status create_shares(struct host_experts *x, const struct host_experts_params *p,
                                     struct epa_error *err)
{
    uint64_t entries = p->experts.recv_entries;
    size_t bytes = entries * x->shape.hidden * sizeof(*x->outputs);

    x->outputs = malloc(bytes);
    if (x->outputs == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for expert outputs: %zu bytes", bytes);
    x->outputs_room = entries;
    return shares_reserve(&x->shares, p->experts.recv_rows, entries, err);
}

static enum epa_status create_library(struct host_experts *x, struct epa_error *err)
{
    const struct mlp_shape *s = &x->shape;
    const struct onednn_product product[] = {
        [MLP_UP] = {ONEDNN_COLUMNS, s->hidden, UP_COLUMNS, ONEDNN_ROWS, ONEDNN_STEP, true},
        [MLP_DOWN] = {ONEDNN_COLUMNS, s->mlp.ffn, DOWN_COLUMNS, ONEDNN_ROWS, ONEDNN_STEP, true}};
    enum epa_status status = onednn_create(product, 2, x->workers, &x->w.library, err);

    for (uint32_t i = 0; i < 2 && status == EPA_OK; i++)
        if (onednn_packed_bytes(x->w.library, i) > library_block_bytes(s, i))
            status = epa_fail_key(err, EPA_ERR_UNSUPPORTED, "expert.library",
                                  "expert.library: onednn: %s packs weights to more bytes",
                                  onednn_name(x->w.library));
    return status;
}

static enum epa_status create_memory(struct host_experts *x, const struct host_experts_params *p,
                                     struct epa_error *err)
{
    const struct mlp_shape *s = &x->shape;

    allocate_experts(p, x->workers, x);
    if (x->pool.failed)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the experts' weights: %llu bytes",
                        (unsigned long long)x->pool.bytes);
    /* Padding rows of a panel may have any finite values: zeros here, old rows later. */
    memset(x->a, 0, epa_gemm_a_bytes((uint32_t)x->rows, s->hidden));
    memset(x->mid, 0, epa_gemm_a_bytes((uint32_t)x->rows, s->mlp.ffn));
    if (x->a_scale != NULL) {
        memset(x->a_scale, 0, x->rows * row_scales(s, MLP_UP, x->x_group) * sizeof(float));
        memset(x->mid_scale, 0, x->rows * row_scales(s, MLP_DOWN, x->x_group) * sizeof(float));
    }
    if (x->codes != NULL)
        memset(x->codes, 0, epa_gemm_panel_at(EPA_INT8, (uint32_t)x->rows, s->mlp.ffn));
    if (x->layout == EPA_LAYOUT_RANK) {
        enum epa_status status = create_shares(x, p, err);

        if (status != EPA_OK)
            return status;
    }
    return mlp_weights_make(x->backend, s, x->local, &p->source, &x->w, err);
}

enum epa_status host_experts_create(struct epa_backend *backend,
                                    const struct host_experts_params *p, struct host_experts **out,
                                    struct epa_error *err)
{
    struct host_experts *x = calloc(1, sizeof(*x));
    enum epa_status status = EPA_OK;

    if (x == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the experts");
    x->backend = backend;
    x->shape = shape_of(p);
    x->layout = p->experts.layout;
    x->recv_dtype = p->experts.recv_dtype;
    x->local = p->experts.experts;
    x->x_group = p->experts.moe->fp8_group_size;
    x->after_task = p->after_task;
    x->arg = p->arg;
    x->workers = 1;
    x->w.gemm = epa_gemm_get((enum epa_dtype)x->shape.mlp.dtype, NULL);
    x->kernels = epa_kernels_get((enum epa_dtype)p->experts.moe->dtype, NULL);
    x->row_kernels = gemm_rows_get();
    (void)backend->ops->parallel(backend, count_workers, &x->workers);
    if (p->onednn)
        status = create_library(x, err);
    if (status == EPA_OK)
        status = create_memory(x, p, err);
    if (status != EPA_OK) {
        host_experts_destroy(x);
        return status;
    }
    if (x->w.library != NULL)
        snprintf(x->name, sizeof(x->name), "%s", onednn_name(x->w.library));
    else
        snprintf(x->name, sizeof(x->name), "%s kernels", x->w.gemm->isa);
    *out = x;
    return EPA_OK;
}

const char *host_experts_name(const struct host_experts *x)
{
    return x->name;
}

/* ---- the steps ---- */

static void work_on_tasks(void *arg, uint32_t worker, uint32_t workers)
{
    struct host_experts *x = arg;
    uint64_t i;

    (void)workers;
    /* Relaxed: the counter only distributes tasks; parallel() orders steps. */
    while ((i = __atomic_fetch_add(&x->next, 1, __ATOMIC_RELAXED)) < x->tasks) {
        x->task(x, i, worker);
        if (worker == 0 && x->after_task != NULL)
            x->after_task(x->arg);
    }
}

static enum epa_status run_tasks(struct host_experts *x,
                                 void (*task)(struct host_experts *, uint64_t, uint32_t),
                                 uint64_t tasks)
{
    struct epa_backend *backend = x->backend;
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

static uint64_t tasks_in(const struct host_experts *x, const struct segment *s)
{
    return (uint64_t)(s->n + x->task_rows - 1) / x->task_rows * x->task_columns;
}

/* Returns the segment of a task, and its row and column. Rows vary fastest, so that the weights of a task
 * are still in the cache for the next one. */
static const struct segment *segment_of(const struct host_experts *x, uint64_t task, uint32_t *row,
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
static enum epa_status run_step(struct host_experts *x,
                                void (*task)(struct host_experts *, uint64_t, uint32_t),
                                uint32_t rows, uint32_t columns)
{
    uint64_t tasks = 0;

    x->task_rows = rows;
    x->task_columns = columns;
    for (uint32_t i = 0; i < x->n_segments; i++)
        tasks += tasks_in(x, &x->segment[i]);
    return run_tasks(x, task, tasks);
}

static void *line_of(const struct host_experts *x, uint32_t worker)
{
    return x->line + worker * x->line_bytes;
}

/* INT8: quantises a row of n elements of dtype to row `at` of panels. */
static void pack_codes(struct host_experts *x, uint32_t worker, const uint16_t *words, uint32_t n,
                       void *panels, float *scale, uint64_t at)
{
    int8_t *q = (int8_t *)line_of(x, worker) + x->line_bytes / 3 * 2;

    scale[at] = x->row_kernels->quantise_int8(words, (enum epa_dtype)x->moe->dtype, n, q);
    x->w.gemm->pack_a(q, n, panels, (uint32_t)at);
}

/* Copies a received row to panel row `at`. */
static void gather_row(struct host_experts *x, uint64_t here, uint64_t at, uint32_t worker)
{
    const struct epa_moe *m = x->moe;
    const void *row = (const char *)m->recv + here * m->recv_stride;
    uint32_t hidden = m->hidden, group = x->x_group, groups = hidden / group;
    bool quantised = x->recv_dtype == EPA_FP8_E4M3;
    const void *scale = quantised ? (const char *)m->recv_scale + here * m->scale_stride : NULL;

    if (x->shape.mlp.dtype == EPA_INT8) {
        uint16_t *words = line_of(x, worker);

        if (quantised)
            x->kernels->output_fp8(row, scale, hidden, m->fp8_group_size, 1, words);
        pack_codes(x, worker, quantised ? words : row, hidden, x->a, x->a_scale, at);
        return;
    }
    if (x->shape.mlp.dtype != EPA_FP8_E4M3) {
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

static uint32_t rows_of_task(const struct host_experts *x, const struct segment *s, uint32_t row)
{
    return s->n - row < x->task_rows ? s->n - row : x->task_rows;
}

static void gather_panel(struct host_experts *x, uint64_t task, uint32_t worker)
{
    uint32_t row, none;
    const struct segment *s = segment_of(x, task, &row, &none);
    const struct epa_moe *m = x->moe;
    uint64_t end = row + rows_of_task(x, s, row), first = m->recv_start[s->expert] + s->first;

    for (uint64_t i = row; i < end; i++)
        gather_row(x, m->recv_row != NULL ? m->recv_row[first + i] : first + i, s->at + i, worker);
}

/* INT8: quantises rows of the intermediate. */
static void quantise_panel(struct host_experts *x, uint64_t task, uint32_t worker)
{
    uint32_t row, none, ffn = x->shape.mlp.ffn;
    const struct segment *s = segment_of(x, task, &row, &none);
    uint64_t at = s->at + row, end = at + rows_of_task(x, s, row);

    for (; at < end; at++)
        pack_codes(x, worker, (const uint16_t *)x->mid + at * ffn, ffn, x->codes, x->mid_scale, at);
}

/* Multiplies with the library, whose weights are packed in blocks, from block `block` on (an index over
 * all experts). C has room for whole blocks. */
static void multiply_by_library(struct host_experts *x, uint32_t worker, enum mlp_matrix matrix,
                                const void *a, uint32_t m, uint64_t block, uint32_t n, float *c)
{
    size_t bytes = onednn_packed_bytes(x->w.library, matrix);
    const char *b = (const char *)(matrix == MLP_UP ? x->w.up : x->w.down) + block * bytes;

    for (uint32_t i = 0; i < n; i += ONEDNN_COLUMNS, b += bytes)
        if (onednn_multiply(x->w.library, worker, matrix, a, m, b, c + i) != EPA_OK)
            __atomic_store_n(&x->failed, 1, __ATOMIC_RELAXED);
}

/* Computes C for columns n0 to n0 + n - 1 of an expert's packed matrix. n0 is the first column of a
 * block. */
static void multiply_columns(struct host_experts *x, uint32_t worker, const struct segment *s,
                             uint32_t row, uint32_t m, bool up, uint32_t n0, uint32_t n, float *c)
{
    const struct mlp_shape *w = &x->shape;
    enum mlp_matrix matrix = up ? MLP_UP : MLP_DOWN;
    uint32_t k = mlp_columns(w, matrix), projection = up ? w->mlp.ffn : w->hidden;
    enum epa_dtype dtype = (enum epa_dtype)w->mlp.dtype;
    size_t at = (size_t)s->at + row;
    const char *b = (const char *)(up ? x->w.up : x->w.down) +
                    epa_gemm_b_bytes(dtype, mlp_rows(w, matrix), k) * s->expert;
    const void *a = up ? x->a : dtype == EPA_INT8 ? x->codes : x->mid;
    uint64_t block = (uint64_t)s->expert * mlp_blocks(w, matrix) +
                     n0 / projection * epa_mlp_blocks(projection) + n0 % projection / BLOCK;
    const float *a_scale = up ? x->a_scale : x->mid_scale;
    const float *b_scale = up ? x->w.up_scale : x->w.down_scale;
    struct epa_gemm_call call = {.a = (const char *)a + epa_gemm_panel_at(dtype, (uint32_t)at, k),
                                 .b = b + epa_gemm_b_bytes(dtype, n0, k),
                                 .m = m,
                                 .n = n,
                                 .k = k,
                                 .c = c,
                                 .ldc = up ? UP_COLUMNS : DOWN_COLUMNS};

    if (w->mlp.dtype == EPA_FP8_E4M3) {
        call.group = up ? x->x_group : w->mlp.fp8_group_size;
        call.a_scale_stride = k / call.group;
        call.a_scale = a_scale + at * call.a_scale_stride;
        call.b_scale = b_scale + block * epa_mlp_blocks(k);
    } else if (w->mlp.dtype == EPA_INT8) {
        call.a_scale_stride = 1;
        call.a_scale = a_scale + at;
        call.b_scale = b_scale + (size_t)s->expert * mlp_rows(w, matrix) + n0;
    }
    if (x->w.library != NULL)
        multiply_by_library(x, worker, matrix, call.a, m, block, n, c);
    else
        x->w.gemm->multiply(&call);
}

static float *scratch_of(const struct host_experts *x, uint32_t worker)
{
    return x->c + (size_t)worker * TASK_ROWS * UP_COLUMNS * 2;
}

static void up_task(struct host_experts *x, uint64_t task, uint32_t worker)
{
    uint32_t row, column;
    const struct segment *s = segment_of(x, task, &row, &column);
    const struct epa_mlp *mlp = &x->shape.mlp;
    bool swiglu = mlp->activation == EPA_ACTIVATION_SWIGLU;
    uint32_t m = rows_of_task(x, s, row), k = column * UP_COLUMNS;
    uint32_t n = mlp->ffn - k < UP_COLUMNS ? mlp->ffn - k : UP_COLUMNS;
    float *c = scratch_of(x, worker), *other = c + (size_t)TASK_ROWS * UP_COLUMNS;

    multiply_columns(x, worker, s, row, m, true, k, n, c);
    if (swiglu)
        multiply_columns(x, worker, s, row, m, true, mlp->ffn + k, n, other);
    x->row_kernels->activate(&(struct gemm_tile_out){
        .gate = c,
        .up = swiglu ? other : NULL,
        .ld = UP_COLUMNS,
        .m = m,
        .n = n,
        .k = mlp->ffn,
        .k0 = k,
        .row = (uint32_t)s->at + row,
        .weights = (enum epa_dtype)mlp->dtype,
        .dtype = (enum epa_dtype)(mlp->dtype == EPA_INT8 ? x->moe->dtype : mlp->dtype),
        .group = mlp->fp8_group_size,
        .plain = x->w.library != NULL || mlp->dtype == EPA_INT8,
        .to = x->mid,
        .scale = x->mid_scale});
}

static void down_task(struct host_experts *x, uint64_t task, uint32_t worker)
{
    uint32_t row, column;
    const struct segment *s = segment_of(x, task, &row, &column);
    uint32_t hidden = x->shape.hidden, m = rows_of_task(x, s, row);
    uint32_t h = column * DOWN_COLUMNS;
    uint32_t n = hidden - h < DOWN_COLUMNS ? hidden - h : DOWN_COLUMNS;
    float *c = scratch_of(x, worker);

    multiply_columns(x, worker, s, row, m, false, h, n, c);
    for (uint32_t i = 0; i < m; i++) {
        uint64_t entry = x->moe->recv_start[s->expert] + s->first + row + i;

        x->kernels->round(c + (size_t)i * DOWN_COLUMNS, NULL, n, x->y + entry * hidden + h);
    }
}

/* Fills a batch from entry `*i` of expert `*e` on, and advances both. */
static void fill_batch(struct host_experts *x, uint32_t *e, uint64_t *i)
{
    const struct epa_moe *m = x->moe;
    uint64_t at = 0;

    x->n_segments = 0;
    while (*e < x->local && at < x->rows) {
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

static enum epa_status run_batches(struct host_experts *x)
{
    const struct mlp_shape *w = &x->shape;
    enum epa_status status = EPA_OK;
    uint32_t e = 0;
    uint64_t i = 0;

    while (e < x->local && status == EPA_OK) {
        fill_batch(x, &e, &i);
        if (x->n_segments == 0)
            continue;
        status = run_step(x, gather_panel, EPA_GEMM_ROWS, 1);
        if (status == EPA_OK)
            status = run_step(x, up_task, TASK_ROWS, (w->mlp.ffn + UP_COLUMNS - 1) / UP_COLUMNS);
        if (status == EPA_OK && w->mlp.dtype == EPA_INT8)
            status = run_step(x, quantise_panel, EPA_GEMM_ROWS, 1);
        if (status == EPA_OK)
            status =
                run_step(x, down_task, TASK_ROWS, (w->hidden + DOWN_COLUMNS - 1) / DOWN_COLUMNS);
    }
    return status;
}

/* Layout rank: weighted sums of the outputs of each row's entries to x->reduced. */
static void reduce_rows(struct host_experts *x, uint64_t task, uint32_t worker)
{
    const struct epa_moe *m = x->moe;
    const struct shares *s = &x->shares;
    uint64_t first = task * REDUCE_ROWS, end = first + REDUCE_ROWS;
    const uint16_t *part[MOST_PARTS];
    float weight[MOST_PARTS];

    (void)worker;
    end = end < s->rows_end ? end : s->rows_end;
    for (uint64_t row = first; row < end; row++) {
        const struct share *share = s->share + s->first[row];
        uint32_t n = s->first[row + 1] - s->first[row];

        for (uint32_t i = 0; i < n; i++) {
            part[i] = x->y + (size_t)share[i].entry * m->hidden;
            weight[i] = m->recv_weight[share[i].entry];
        }
        if (n > 0)
            x->kernels->reduce(part, weight, n, m->hidden, EPA_STORE_CACHED,
                               x->reduced + row * m->hidden);
    }
}

/* Layout rank: sorts the entries. */
static enum epa_status prepare_shares(struct host_experts *x, struct epa_error *err)
{
    const struct epa_moe *m = x->moe;
    uint64_t end = 0;

    for (uint32_t e = 0; e < x->local; e++)
        if (m->recv_count[e] != 0 && m->recv_start[e] + m->recv_count[e] > end)
            end = m->recv_start[e] + m->recv_count[e];
    if (end > x->outputs_room)
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "the algorithm delivers entries up to %llu, but plan() announces %llu",
                        (unsigned long long)end, (unsigned long long)x->outputs_room);
    return shares_sort(&x->shares, m, m->recv_start, x->local, err);
}

enum epa_status host_experts_run(struct host_experts *x, const struct epa_moe *moe, void *y,
                                 struct epa_error *err)
{
    bool by_rank = x->layout == EPA_LAYOUT_RANK;
    enum epa_status status = EPA_OK;

    x->moe = moe;
    if (by_rank)
        status = prepare_shares(x, err);
    if (status != EPA_OK)
        return status;
    x->y = by_rank ? x->outputs : y;
    x->reduced = y;
    status = run_batches(x);
    if (status == EPA_OK && by_rank)
        status = run_tasks(x, reduce_rows, (x->shares.rows_end + REDUCE_ROWS - 1) / REDUCE_ROWS);
    if (x->failed != 0)
        return epa_fail(err, status, "%s: a product of the experts failed",
                        onednn_name(x->w.library));
    if (status != EPA_OK)
        x->backend->ops->explain(x->backend, err);
    return status;
}
