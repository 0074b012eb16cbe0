/* Implements gemm_host.h. */
#include "gemm_host.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

static enum epa_dtype dtype_of(const struct epa_ag_gemm *g)
{
    return (enum epa_dtype)g->dtype;
}

uint64_t gemm_weights_bytes(const struct epa_ag_gemm *g)
{
    return epa_gemm_b_bytes(dtype_of(g), gemm_round_up(g->max_n, EPA_GEMM_COLS),
                            gemm_padded_k(g->k));
}

/* Packs one panel of B at a time, through a buffer that holds zeros beyond the end of B. */
static bool pack_padded(const struct epa_ag_gemm *g, struct gemm_weights *w)
{
    size_t row_bytes = gemm_row_bytes(g), line = row_bytes / g->k * w->padded_k;
    char *rows = malloc(EPA_GEMM_COLS * line), *to = w->b;

    if (rows == NULL)
        return false;
    for (uint32_t first = 0; first < w->padded_n; first += EPA_GEMM_COLS) {
        uint32_t n = g->n - first < EPA_GEMM_COLS ? g->n - first : EPA_GEMM_COLS;

        memset(rows, 0, EPA_GEMM_COLS * line);
        for (uint32_t i = 0; i < n; i++)
            memcpy(rows + i * line, (const char *)g->b + (first + i) * row_bytes, row_bytes);
        w->kernels->pack_b(rows, w->padded_k, EPA_GEMM_COLS, w->padded_k, to);
        to += epa_gemm_b_bytes(dtype_of(g), EPA_GEMM_COLS, w->padded_k);
    }
    free(rows);
    return true;
}

enum epa_status gemm_weights_create(const struct epa_ag_gemm *g, struct epa_backend *backend,
                                    struct gemm_weights *out, struct epa_error *err)
{
    struct gemm_weights w = {
        .backend = backend,
        .kernels = epa_gemm_get(dtype_of(g), NULL),
        .n = g->n,
        .k = g->k,
        .padded_n = gemm_round_up(g->n, EPA_GEMM_COLS),
        .padded_k = gemm_padded_k(g->k),
        .b_scale = g->b_scale,
        .bias = g->bias ? g->bias_of : NULL,
        .rounding = g->out_fp8 ? NULL : epa_kernels_get(epa_ag_gemm_c_dtype(g), NULL),
        .rows = gemm_rows_get(),
    };
    uint64_t bytes = gemm_weights_bytes(g);

    if (backend->ops->alloc(backend, bytes, &w.b) != EPA_OK)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for packed weights: %llu bytes",
                        (unsigned long long)bytes);
    if (w.n == w.padded_n && w.k == w.padded_k)
        w.kernels->pack_b(g->b, g->k, g->n, g->k, w.b);
    else if (!pack_padded(g, &w)) {
        gemm_weights_destroy(&w);
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a panel of weights");
    }
    *out = w;
    return EPA_OK;
}

void gemm_weights_destroy(struct gemm_weights *w)
{
    if (w->backend != NULL)
        w->backend->ops->free(w->backend, w->b);
}

void gemm_pack_row(const struct gemm_weights *w, const void *x, void *panels, uint32_t row,
                   void *line)
{
    bool fp8 = w->kernels->dtype == EPA_FP8_E4M3;

    if (w->k != w->padded_k)
        x = memcpy(line, x, (size_t)w->k * (fp8 ? 1 : 2));
    if (fp8)
        w->kernels->pack_a_fp8(x, NULL, GEMM_K_UNIT, w->padded_k, panels, row);
    else
        w->kernels->pack_a(x, w->padded_k, panels, row);
}

void gemm_tile_place(const struct epa_ag_gemm *g, uint64_t row, struct gemm_tile *t)
{
    t->c = (char *)g->c + row * g->n * epa_ag_gemm_c_bytes(g);
    t->c_scale = g->out_fp8 ? g->c_scale + row * epa_ag_gemm_groups(g->n) : NULL;
}

/* Adds the bias to the sums of row i of a tile, and stores the row in C. */
static void store_row(const struct gemm_weights *w, const struct gemm_tile *t, uint32_t i,
                      const float *sums, uint32_t columns)
{
    const float *bias = w->bias != NULL ? w->bias + t->column : NULL;
    size_t at = (size_t)i * w->n + t->column;

    if (w->rounding != NULL)
        w->rounding->round(sums, bias, columns, (uint16_t *)t->c + at);
    else
        w->rows->quantise(sums, bias, columns, (uint8_t *)t->c + at,
                          t->c_scale + (size_t)i * epa_ag_gemm_groups(w->n) +
                              t->column / GEMM_K_UNIT);
}

void gemm_tile_run(const struct gemm_weights *w, const struct gemm_tile *t, float *scratch)
{
    uint32_t groups = w->padded_k / GEMM_K_UNIT, block = t->column / GEMM_K_UNIT;
    uint32_t left = w->n - t->column, columns = left < t->columns ? left : t->columns;
    uint32_t next = t->column + t->columns < w->padded_n ? t->column + t->columns : 0;
    struct epa_gemm_call call = {
        .a = t->a,
        .b = (const char *)w->b + epa_gemm_b_bytes(w->kernels->dtype, t->column, w->padded_k),
        .m = t->rows,
        .n = t->columns,
        .k = w->padded_k,
        .c = scratch,
        .ldc = t->columns,
        .a_scale = t->a_scale,
        .group = GEMM_K_UNIT,
        .a_scale_stride = groups,
        .b_scale = w->b_scale != NULL ? w->b_scale + (size_t)block * groups : NULL,
        .b_column = t->column % GEMM_K_UNIT,
        .next_a = next != 0 ? t->a : NULL,
        .next_b = (const char *)w->b + epa_gemm_b_bytes(w->kernels->dtype, next, w->padded_k),
    };

    w->kernels->multiply(&call);
    for (uint32_t i = 0; i < t->rows; i++)
        store_row(w, t, i, scratch + (size_t)i * t->columns, columns);
}

/* ---- ranks and nodes ---- */

enum epa_status gemm_find_places(const char *name, const struct epa_world *w, bool two_level,
                                 struct gemm_places *out, struct epa_error *err)
{
    uint32_t ranks_of[GEMM_PLACES] = {0}, per_node;

    *out = (struct gemm_places){.size = w->size};
    for (uint32_t r = 0; r < w->size; r++) {
        uint32_t node = w->node != NULL ? w->node[r] : 0;

        out->node[r] = node;
        out->place[r] = ranks_of[node]++;
        out->nodes = node + 1 > out->nodes ? node + 1 : out->nodes;
    }
    per_node = ranks_of[out->node[w->rank]];
    for (uint32_t i = 0; i < out->nodes && two_level; i++)
        if (ranks_of[i] != per_node)
            return epa_fail_key(
                err, EPA_ERR_CONFIG, "algorithm.gather ranks_per_node",
                "%s with gather: 2d needs as many ranks on each node: node %u has %u, "
                "and that of rank %u has %u; set gather: 1d",
                name, i, ranks_of[i], w->rank, per_node);
    return EPA_OK;
}

uint32_t gemm_rank_at(const struct gemm_places *p, uint32_t node, uint32_t place)
{
    uint32_t rank = 0;

    while (p->node[rank] != node || p->place[rank] != place)
        rank++;
    return rank;
}
