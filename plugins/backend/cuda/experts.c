/* Real experts on a GPU (epa2a/backend.h): the two products of gemm_experts.h, with further kernels
 * if rows differ from the weights in type or several experts share a row. No step waits for the
 * host, so a recorded graph uses the current counts at each replay. */
#include "experts.h"

#include "experts_rows.h"
#include "state.h"
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/gemm_experts.h"

/* Weights are packed if the copy takes at most 1 / PACK_PART of the free memory. */
enum { PACK_PART = 4 };

/* Mean rows per expert from which `more` of struct gemm_args is faster. */
enum { MORE_ROWS = 112 };

enum { UP, DOWN, PRODUCTS };

struct epa_experts {
    struct cuda *c;
    struct epa_moe moe;  /* shapes and weights */
    const float *factor; /* NULL: real experts */
    uint32_t experts;
    uint64_t rows, entries; /* maxima */
    bool rank_layout, in_fp8, fp8;
    bool gathers; /* a kernel copies or converts rows before the products */
    struct gemm_args product[PRODUCTS];
    struct rows_args around;
    char *packed[PRODUCTS]; /* packed weights, or NULL */
    char *x, *a, *outputs;  /* packed rows: one expert after the other */
    float *x_scale, *a_scale, *row_weight;
    uint32_t *row_entries, *row_entry;
    char name[64];
};

static enum epa_status allocate(struct epa_experts *x, uint64_t n, size_t bytes, void *out)
{
    return x->c->base.ops->alloc(&x->c->base, n * bytes, out);
}

static uint32_t up_rows(const struct epa_experts *x)
{
    return epa_mlp_up_rows(&x->moe.mlp);
}

/* Maximum of received entries: the choices of all ranks. */
static uint64_t most_entries(const struct epa_experts_params *p)
{
    const struct epa_moe *m = p->moe;
    uint64_t ranks = m->experts / p->experts, choices = m->topk < p->experts ? m->topk : p->experts;
    uint64_t all = ranks * m->max_tokens * choices;

    return all < p->recv_entries ? all : p->recv_entries;
}

/* ---- set-up ---- */

/* Allocates the sums of layout rank. */
static enum epa_status allocate_sums(struct epa_experts *x)
{
    enum epa_status status = allocate(x, x->entries * x->moe.hidden, 2, &x->outputs);

    if (status == EPA_OK)
        status = allocate(x, x->rows, sizeof(uint32_t), &x->row_entries);
    if (status == EPA_OK)
        status = allocate(x, x->rows * x->around.most, sizeof(uint32_t), &x->row_entry);
    if (status == EPA_OK)
        status = allocate(x, x->rows * x->around.most, sizeof(float), &x->row_weight);
    return status;
}

static enum epa_status allocate_rows(struct epa_experts *x)
{
    const struct epa_moe *m = &x->moe;
    const struct epa_mlp *mlp = &m->mlp;
    uint64_t n = x->entries;
    size_t bytes = x->fp8 ? 1 : 2;
    enum epa_status status = allocate(x, n * mlp->ffn, bytes, &x->a);

    if (status == EPA_OK && x->fp8)
        status = allocate(x, n * (mlp->ffn / mlp->fp8_group_size), sizeof(float), &x->a_scale);
    if (status == EPA_OK && x->gathers)
        status = allocate(x, n * m->hidden, bytes, &x->x);
    if (status == EPA_OK && x->gathers && x->fp8)
        status = allocate(x, n * (m->hidden / m->fp8_group_size), sizeof(float), &x->x_scale);
    return status;
}

/* Packs the weights, unless the second copy would take too much of the free memory. */
static enum epa_status pack_weights(struct epa_experts *x)
{
    const void *weights[PRODUCTS] = {x->moe.mlp.up, x->moe.mlp.down};
    const uint32_t value = x->fp8 ? 1 : 2;
    const uint32_t row_bytes[PRODUCTS] = {x->moe.hidden * value, x->moe.mlp.ffn * value};
    struct gemm_packing p[PRODUCTS];
    size_t available = 0, all = 0;
    uint64_t bytes = 0;
    enum epa_status status = EPA_OK;

    for (int i = 0; i < PRODUCTS; i++) {
        const struct gemm_args *g = &x->product[i];

        p[i] = (struct gemm_packing){g->k_blocks, g->weight_rows, g->second,
                                     g->tiles,    g->step,        row_bytes[i]};
        bytes += gemm_packed_bytes(&p[i], x->experts);
    }
    status = cuda_check(x->c, cudaMemGetInfo(&available, &all), "cudaMemGetInfo");
    if (status != EPA_OK || bytes > available / x->c->sharers / PACK_PART)
        return status;
    for (int i = 0; i < PRODUCTS && status == EPA_OK; i++) {
        status = allocate(x, gemm_packed_bytes(&p[i], x->experts), 1, &x->packed[i]);
        if (status == EPA_OK)
            status = cuda_check(
                x->c, gemm_pack(x->packed[i], weights[i], &p[i], x->experts, x->c->base.stream),
                "gemm_pack");
        x->product[i].packed = x->packed[i];
    }
    return status == EPA_OK ? cuda_sync(&x->c->base) : status;
}

static uint32_t blocks_of_k(uint32_t bytes)
{
    return (bytes + GEMM_BLOCK - 1) / GEMM_BLOCK;
}

/* Sets the arguments that are the same in every call. */
static void set_products(struct epa_experts *x)
{
    const struct epa_moe *m = &x->moe;
    const struct epa_mlp *mlp = &m->mlp;
    bool swiglu = mlp->activation == EPA_ACTIVATION_SWIGLU;
    uint32_t bytes = x->fp8 ? 1 : 2;
    /* With a mean of MORE_ROWS rows, some experts have slightly more than 128 rows. */
    bool more = x->fp8 && (uint64_t)m->max_tokens * m->topk >= MORE_ROWS * (uint64_t)x->experts;

    x->product[UP] = (struct gemm_args){
        .experts = x->experts,
        .k_blocks = blocks_of_k(m->hidden * bytes),
        .weight_rows = up_rows(x),
        .weight_blocks = epa_mlp_up_blocks(mlp),
        .second = swiglu ? mlp->ffn : GEMM_BOX,
        .step = swiglu ? GEMM_BOX : 2 * GEMM_BOX,
        .columns = mlp->ffn,
        .in_packed = x->gathers,
        .out_packed = true,
        .row_group = x->fp8 ? m->fp8_group_size : GEMM_FP8_GROUP,
        .weight_scale = mlp->up_scale,
        .out = x->a,
        .out_stride = (size_t)mlp->ffn * bytes,
        .out_scale = x->a_scale,
        .out_group = x->fp8 ? mlp->fp8_group_size : GEMM_FP8_GROUP,
    };
    x->product[DOWN] = (struct gemm_args){
        .experts = x->experts,
        .k_blocks = blocks_of_k(mlp->ffn * bytes),
        .weight_rows = m->hidden,
        .weight_blocks = epa_mlp_blocks(m->hidden),
        .second = GEMM_BOX,
        .step = 2 * GEMM_BOX,
        .columns = m->hidden,
        .in_packed = true,
        .out_packed = x->rank_layout,
        .row_scale = x->a_scale,
        .row_group = x->product[UP].out_group,
        .weight_scale = mlp->down_scale,
        .out_stride = (size_t)m->hidden * 2,
        .out_group = GEMM_FP8_GROUP,
        .early = true,
    };
    x->product[UP].row_groups = m->hidden / x->product[UP].row_group;
    x->product[DOWN].row_groups = mlp->ffn / x->product[DOWN].row_group;
    x->product[DOWN].row_scale_stride = x->product[DOWN].row_groups;
    for (int i = 0; i < PRODUCTS; i++) {
        struct gemm_args *g = &x->product[i];

        g->tiles = (g->columns + g->step - 1) / g->step;
        g->more = more;
    }
}

static enum epa_status make_maps(struct epa_experts *x)
{
    const struct epa_moe *m = &x->moe;
    const struct epa_mlp *mlp = &m->mlp;
    size_t bytes = x->fp8 ? 1 : 2;

    if (gemm_map_weights(&x->product[UP].weights, mlp->dtype, mlp->up,
                         (uint64_t)x->experts * up_rows(x), m->hidden, GEMM_BOX) &&
        gemm_map_weights(&x->product[DOWN].weights, mlp->dtype, mlp->down,
                         (uint64_t)x->experts * m->hidden, mlp->ffn, GEMM_BOX) &&
        gemm_map_rows(&x->product[DOWN].rows, mlp->dtype, x->a, x->entries, mlp->ffn,
                      mlp->ffn * bytes) &&
        (!x->gathers || gemm_map_rows(&x->product[UP].rows, mlp->dtype, x->x, x->entries, m->hidden,
                                      m->hidden * bytes)))
        return EPA_OK;
    return epa_fail(&x->c->last, EPA_ERR_UNSUPPORTED,
                    "cuda: the driver makes no tensor maps of the experts' weights; it is too old "
                    "for CUDA 12");
}

static enum epa_status make(struct epa_experts *x)
{
    enum epa_status status = x->rank_layout ? allocate_sums(x) : EPA_OK;

    if (status == EPA_OK && x->factor == NULL)
        status = allocate_rows(x);
    if (status != EPA_OK || x->factor != NULL)
        return status;
    set_products(x);
    status = make_maps(x);
    return status == EPA_OK ? pack_weights(x) : status;
}

static enum epa_status check_device(struct cuda *c, uint32_t experts)
{
    int major = 0, minor = 0;
    enum epa_status status = cuda_check(
        c, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->base.device),
        "cudaDeviceGetAttribute");

    if (status == EPA_OK)
        status = cuda_check(
            c, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, c->base.device),
            "cudaDeviceGetAttribute");
    if (status == EPA_OK && (major != 9 || minor != 0))
        return epa_fail(&c->last, EPA_ERR_UNSUPPORTED,
                        "cuda: kernels of real experts are for compute capability 9.0; GPU %d has "
                        "%d.%d",
                        c->base.device, major, minor);
    if (status == EPA_OK && experts > GEMM_EXPERTS)
        return epa_fail(&c->last, EPA_ERR_UNSUPPORTED,
                        "cuda: %u real experts on a GPU; its kernels count the rows of %d at most",
                        experts, GEMM_EXPERTS);
    return status;
}

enum epa_status cuda_experts_create(struct epa_backend *base, const struct epa_experts_params *p,
                                    struct epa_experts **out, struct epa_error *err)
{
    struct cuda *c = cuda_fresh(base);
    struct epa_experts *x =
        aligned_alloc(_Alignof(struct epa_experts), sizeof(*x)); /* tensor maps need it */
    enum epa_status status;

    if (x == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "cuda: no memory for experts");
    memset(x, 0, sizeof(*x));
    x->c = c;
    x->moe = *p->moe;
    x->factor = p->factor;
    x->experts = p->experts;
    x->rows = p->recv_rows;
    x->entries = most_entries(p);
    x->rank_layout = p->layout == EPA_LAYOUT_RANK;
    x->in_fp8 = p->recv_dtype == EPA_FP8_E4M3;
    x->fp8 = x->moe.mlp.dtype == EPA_FP8_E4M3;
    x->gathers = x->rank_layout || x->in_fp8 != x->fp8;
    x->around.most = x->moe.topk < p->experts ? x->moe.topk : p->experts;
    status = cuda_enter_eager(c, "experts_create");
    if (status == EPA_OK && x->factor == NULL)
        status = check_device(c, p->experts);
    if (status == EPA_OK)
        status = make(x);
    if (status != EPA_OK) {
        base->ops->explain(base, err);
        cuda_experts_destroy(x);
        return status;
    }
    snprintf(x->name, sizeof(x->name), "%s",
             x->factor != NULL         ? "a kernel of epa2a"
             : x->packed[DOWN] != NULL ? "wgmma kernels of epa2a, weights packed"
                                       : "wgmma kernels of epa2a");
    *out = x;
    return EPA_OK;
}

const char *cuda_experts_name(const struct epa_experts *x)
{
    return x->name;
}

void cuda_experts_destroy(struct epa_experts *x)
{
    if (x == NULL)
        return;
    void *all[] = {x->packed[UP], x->packed[DOWN], x->x,          x->a,           x->outputs,
                   x->x_scale,    x->a_scale,      x->row_weight, x->row_entries, x->row_entry};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        x->c->base.ops->free(&x->c->base, all[i]);
    free(x);
}

/* ---- a call ---- */

/* Lets the products read received rows in place. */
static enum epa_status map_received(struct epa_experts *x, const struct epa_moe *m)
{
    struct gemm_args *up = &x->product[UP];

    up->row_scale = m->recv_scale;
    up->row_scale_stride = m->scale_stride / sizeof(float);
    if (((uintptr_t)m->recv | m->recv_stride) % 16 == 0 && m->scale_stride % sizeof(float) == 0 &&
        gemm_map_rows(&up->rows, x->moe.mlp.dtype, m->recv, m->recv_rows, m->hidden,
                      m->recv_stride))
        return EPA_OK;
    return epa_fail(&x->c->last, EPA_ERR_UNSUPPORTED,
                    "cuda: experts read rows that begin at multiples of 16 bytes, not every %zu",
                    m->recv_stride);
}

static void set_around(struct epa_experts *x, const struct epa_moe *m, void *y)
{
    x->around = (struct rows_args){
        .experts = x->experts,
        .hidden = m->hidden,
        .entries = (uint32_t)x->entries,
        .recv_entries = m->recv_entries,
        .count = m->recv_count,
        .start = m->recv_start,
        .recv_row = m->recv_row,
        .recv = m->recv,
        .recv_stride = m->recv_stride,
        .recv_scale = (const char *)m->recv_scale,
        .scale_stride = m->scale_stride,
        .group = m->fp8_group_size,
        .f16 = m->dtype == EPA_F16,
        .in_fp8 = x->in_fp8,
        .out_fp8 = x->fp8,
        .packed = x->x,
        .packed_scale = x->x_scale,
        .factor = x->factor,
        .recv_weight = m->recv_weight,
        .outputs = x->outputs,
        .row_entries = x->row_entries,
        .row_entry = x->row_entry,
        .row_weight = x->row_weight,
        .most = x->around.most,
        .rows = (uint32_t)m->recv_rows,
        .y = y,
    };
}

static enum epa_status multiply(struct epa_experts *x, const struct epa_moe *m, void *y)
{
    struct cuda *c = x->c;
    const struct epa_mlp *mlp = &x->moe.mlp;
    uint32_t blocks = c->base.multiprocessors, dtype = (uint32_t)mlp->dtype;
    enum gemm_out_type plain = m->dtype == EPA_F16 ? GEMM_OUT_F16 : GEMM_OUT_BF16;
    enum epa_status status = EPA_OK;

    for (int i = 0; i < PRODUCTS; i++) {
        x->product[i].count = m->recv_count;
        x->product[i].start = m->recv_start;
    }
    x->product[DOWN].out = x->rank_layout ? x->outputs : y;
    x->product[UP].row_scale = x->x_scale;
    x->product[UP].row_scale_stride = x->product[UP].row_groups;
    if (x->gathers)
        status = cuda_check(c, rows_pack(&x->around, 8 * blocks, c->base.stream), "rows_pack");
    else
        status = map_received(x, m);
    if (status == EPA_OK)
        status = cuda_check(c,
                            gemm_launch(&x->product[UP], (int)dtype, x->fp8 ? GEMM_OUT_FP8 : plain,
                                        mlp->activation == EPA_ACTIVATION_SWIGLU, blocks,
                                        c->base.stream),
                            "gemm_launch");
    if (status == EPA_OK)
        status = cuda_check(
            c, gemm_launch(&x->product[DOWN], (int)dtype, plain, false, blocks, c->base.stream),
            "gemm_launch");
    return status;
}

enum epa_status cuda_experts_run(struct epa_experts *x, const struct epa_moe *m, void *y)
{
    struct cuda *c = cuda_fresh(&x->c->base);
    uint32_t blocks = c->base.multiprocessors;
    enum epa_status status = cuda_enter(c);

    set_around(x, m, y);
    if (status == EPA_OK && x->factor != NULL)
        status =
            cuda_check(c, rows_multiply(&x->around, 8 * blocks, c->base.stream), "rows_multiply");
    else if (status == EPA_OK)
        status = multiply(x, m, y);
    if (status == EPA_OK && x->rank_layout)
        status = cuda_check(c, rows_add_up(&x->around, 8 * blocks, c->base.stream), "rows_add_up");
    return status;
}
