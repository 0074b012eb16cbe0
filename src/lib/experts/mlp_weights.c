/* Weights of the experts of a rank in host memory: the workers of the rank write and pack blocks of
 * rows. */
#include "experts/mlp_weights.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/libraries.h"

enum { LINE = 64 };

/* ---- the source in memory ---- */

static void copy_block(const void *arg, uint32_t expert, enum mlp_matrix m, uint32_t block,
                       void *rows, float *scale)
{
    const struct mlp_shape *s = arg;
    const struct epa_mlp *mlp = &s->mlp;
    struct mlp_block b = mlp_block_at(s, m, block);
    size_t row = mlp_columns(s, m) * mlp_element(s), first = mlp_scale_at(s, m, block);
    const char *from = m == MLP_UP ? mlp->up : mlp->down;
    const float *from_scale = m == MLP_UP ? mlp->up_scale : mlp->down_scale;

    memcpy(rows, from + ((size_t)expert * mlp_rows(s, m) + b.first) * row, b.rows * row);
    if (scale != NULL)
        memcpy(scale, from_scale + expert * mlp_scales(s, m) + first,
               (mlp_scale_at(s, m, block + 1) - first) * sizeof(*scale));
}

struct mlp_source mlp_source_of_memory(const struct mlp_shape *shape)
{
    return (struct mlp_source){copy_block, shape};
}

/* ---- making ---- */

/* State of a step over the blocks of rows of all local experts' matrices. */
struct making {
    const struct mlp_shape *shape;
    const struct mlp_source *source;
    const struct mlp_weights *to;
    uint32_t experts;
    uint64_t next;
    bool failed, refused; /* no memory; the library failed to pack */
};

/* Packs a block with the library; `rows` has room for MLP_BLOCK rows. */
static enum epa_status pack_by_library(const struct making *k, uint32_t worker, enum mlp_matrix m,
                                       uint32_t rows, char *room, uint64_t nth)
{
    size_t row = (size_t)mlp_columns(k->shape, m) * mlp_element(k->shape);
    char *to = m == MLP_UP ? k->to->up : k->to->down;

    memset(room + rows * row, 0, (MLP_BLOCK - rows) * row);
    return onednn_pack(k->to->library, worker, m, room,
                       to + nth * onednn_packed_bytes(k->to->library, m));
}

static void make_blocks(void *arg, uint32_t worker, uint32_t workers)
{
    struct making *k = arg;
    const struct mlp_shape *s = k->shape;
    uint64_t up = mlp_blocks(s, MLP_UP), each = up + mlp_blocks(s, MLP_DOWN);
    uint64_t all = each * k->experts, i;
    char *room = NULL;

    (void)workers;
    if (k->to->gemm != NULL) {
        size_t most = s->hidden > s->mlp.ffn ? s->hidden : s->mlp.ffn;

        room = aligned_alloc(LINE, MLP_BLOCK * most * 2);
        if (room == NULL) {
            __atomic_store_n(&k->failed, true, __ATOMIC_RELAXED);
            return;
        }
    }
    /* Relaxed: the counter only distributes blocks to workers. */
    while ((i = __atomic_fetch_add(&k->next, 1, __ATOMIC_RELAXED)) < all) {
        enum mlp_matrix m = i % each < up ? MLP_UP : MLP_DOWN;
        uint32_t e = (uint32_t)(i / each), columns = mlp_columns(s, m),
                 block = (uint32_t)(i % each - (m == MLP_UP ? 0 : up));
        uint64_t nth = e * mlp_blocks(s, m) + block; /* index over experts and blocks */
        struct mlp_block b = mlp_block_at(s, m, block);
        char *to = m == MLP_UP ? k->to->up : k->to->down;
        float *scale = m == MLP_UP ? k->to->up_scale : k->to->down_scale;

        if (k->to->gemm != NULL)
            to += epa_gemm_b_bytes(k->to->gemm->dtype, mlp_rows(s, m), columns) * e +
                  epa_gemm_b_bytes(k->to->gemm->dtype, b.first, columns);
        else
            to += ((uint64_t)e * mlp_rows(s, m) + b.first) * columns * mlp_element(s);
        k->source->block(k->source->arg, e, m, block, room != NULL ? room : to,
                         scale != NULL ? scale + e * mlp_scales(s, m) + mlp_scale_at(s, m, block)
                                       : NULL);
        if (k->to->library != NULL) {
            if (pack_by_library(k, worker, m, b.rows, room, nth) != EPA_OK)
                __atomic_store_n(&k->refused, true, __ATOMIC_RELAXED);
        } else if (room != NULL) {
            k->to->gemm->pack_b(room, columns, b.rows, columns, to);
        }
    }
    free(room);
}

enum epa_status mlp_weights_make(struct epa_backend *backend, const struct mlp_shape *shape,
                                 uint32_t experts, const struct mlp_source *source,
                                 const struct mlp_weights *to, struct epa_error *err)
{
    struct making k = {.shape = shape, .source = source, .to = to, .experts = experts};
    enum epa_status status = backend->ops->parallel(backend, make_blocks, &k);

    if (status != EPA_OK)
        backend->ops->explain(backend, err);
    if (k.failed)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory to pack the experts' weights");
    if (k.refused)
        status = epa_fail(err, EPA_ERR_SYSTEM, "%s: packing the experts' weights failed",
                          onednn_name(to->library));
    return status;
}
