/* ag_then_gemm: gathers all rows, then multiplies once, as a user would write it. It is the
 * baseline for ag_gemm_2d. On GPUs the kernel of ag_gemm_2d gathers, and cuBLASLt or the kernel
 * multiplies (common/ag_gemm_cuda.c); the rest of this file is the host code.
 *
 * Call e uses buffer set e % 2. A rank copies its rows to their place in its own set and in the
 * sets of all ranks in reach, puts them to the other ranks, and sets its word at each rank to e.
 * After it has seen e in the words of all ranks, all workers multiply: with oneDNN, where each
 * worker takes a share of the rows, or with the kernels of gemm.h, which first pack all of A.
 *
 * The calls need no barrier, and two sets suffice. A rank begins e after it has seen e - 1 in all
 * words. So all ranks have begun e - 1 and returned from e - 2, the last call that read the set of
 * e. Words only grow, with a quiet between two SETs of a word. */
#include <epa2a/algorithm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/ag_gemm.h"
#include "../../common/ag_gemm_cuda.h"
#include "../../common/ag_gemm_layout.h"
#include "../../common/algo_host.h"
#include "../../common/gemm_host.h"
#include "kernels/libraries.h"

enum { SETS = 2, RANKS = 64, TILE_ROWS = 256, TILE_COLS = 256 };
enum gemm_library { LIBRARY_AUTO, LIBRARY_ONEDNN, LIBRARY_CUBLASLT, LIBRARY_KERNELS };

struct config {
    int library;
};

struct layout {
    uint64_t row_bytes, scale_row_bytes, scales_at, set_bytes, heap_bytes;
    bool onednn, puts;
};

struct then {
    struct algo_host host; /* first member */
    struct layout l;
    uint32_t max_rows;
    struct onednn *library; /* oneDNN, with packed B; NULL: kernels */
    void *packed;
    struct gemm_weights weights; /* kernels: B */
    char *panels;                /* kernels: packed rows of A */
    char by[32];                 /* name of the multiplying library */
    float **scratch;             /* [workers]: a tile */
    char **line;                 /* [workers]: a row, followed by zeros */
    uint64_t start[RANKS + 1];   /* start of each rank's rows */
    const struct epa_ag_gemm *problem;
    uint32_t failed; /* 1: the product of a worker has failed */
};

static struct then *then_of(struct epa_algorithm *a)
{
    return (struct then *)a; /* base is the first member of the first member */
}

static uint64_t set_offset(const struct then *t)
{
    return t->host.heap + t->host.epoch % SETS * t->l.set_bytes;
}

static char *gathered_row(const struct then *t, uint64_t row)
{
    return t->host.t->heap + set_offset(t) + row * t->l.row_bytes;
}

static const float *gathered_scales(const struct then *t, uint64_t row)
{
    const void *at = t->host.t->heap + set_offset(t) + t->l.scales_at + row * t->l.scale_row_bytes;

    return at;
}

/* ---- gather ---- */

static void copy_share(void *arg, uint32_t worker, uint32_t workers)
{
    struct then *t = arg;
    const struct epa_ag_gemm *g = t->problem;
    uint32_t me = t->host.world.rank, rows = g->rows[me];
    uint32_t first = algo_share(rows, worker, workers);
    uint32_t n = algo_share(rows, worker + 1, workers) - first;
    uint64_t begin = epa_trace_now(t->host.trace), row = t->start[me] + first;
    const char *from = (const char *)g->a + first * t->l.row_bytes;

    for (uint32_t i = 0; i < t->host.world.size && n > 0; i++) {
        uint32_t peer = algo_peer(&t->host, i);
        char *set = algo_reachable(&t->host, peer) ? algo_at(&t->host, peer, set_offset(t)) : NULL;

        if (set == NULL)
            continue;
        memcpy(set + row * t->l.row_bytes, from, n * t->l.row_bytes);
        if (t->l.scale_row_bytes != 0)
            memcpy(set + t->l.scales_at + row * t->l.scale_row_bytes,
                   (const char *)g->a_scale + first * t->l.scale_row_bytes,
                   n * t->l.scale_row_bytes);
    }
    algo_worked(&t->host, worker, workers, begin, n);
}

static enum epa_status send_rows_to(struct then *t, uint32_t peer)
{
    uint32_t me = t->host.world.rank;
    uint64_t row = t->start[me], n = t->start[me + 1] - row;
    uint64_t at = set_offset(t) + row * t->l.row_bytes;
    uint64_t scales = set_offset(t) + t->l.scales_at + row * t->l.scale_row_bytes;
    bool put = !algo_reachable(&t->host, peer) && n > 0;
    enum epa_status status = EPA_OK;

    if (put && t->l.scale_row_bytes != 0) {
        status =
            algo_put(&t->host, scales, t->host.t->heap + scales, n * t->l.scale_row_bytes, peer);
        if (status == EPA_OK) /* orders the signal after the scales, too */
            status = t->host.t->ops->fence(t->host.t, peer);
    }
    if (status == EPA_OK)
        status = algo_signal(&t->host, at, t->host.t->heap + at, put ? n * t->l.row_bytes : 0, me,
                             t->host.epoch, peer);
    return status;
}

static enum epa_status gather_rows(struct then *t)
{
    const struct epa_ag_gemm *g = t->problem;
    enum epa_status status;

    ++t->host.epoch;
    for (uint32_t r = 0; r < t->host.world.size; r++) {
        if (g->rows[r] > t->max_rows)
            return algo_fail(&t->host, EPA_ERR_CONFIG, "rank %u has %u rows, but at most %u fit", r,
                             g->rows[r], t->max_rows);
        t->start[r + 1] = t->start[r] + g->rows[r];
    }
    status = algo_parallel(&t->host, copy_share, t);
    for (uint32_t i = 1; i < t->host.world.size && status == EPA_OK; i++)
        status = send_rows_to(t, algo_peer(&t->host, i));
    if (algo_phase(&t->host, status, "wait"))
        status = algo_wait_for_all(&t->host, 0, t->host.epoch, "rows");
    if (algo_phase(&t->host, status, "quiet"))
        status = t->host.t->ops->quiet(t->host.t);
    return status;
}

/* ---- product ---- */

static void multiply_by_library(void *arg, uint32_t worker, uint32_t workers)
{
    struct then *t = arg;
    uint32_t rows = (uint32_t)t->start[t->host.world.size];
    uint32_t first = algo_share(rows, worker, workers);
    uint32_t n = algo_share(rows, worker + 1, workers) - first;
    uint64_t begin = epa_trace_now(t->host.trace);
    uint16_t *c = (uint16_t *)t->problem->c + (size_t)first * t->problem->n;

    if (onednn_multiply(t->library, worker, 0, gathered_row(t, first), n, t->packed, c) != EPA_OK)
        __atomic_store_n(&t->failed, 1, __ATOMIC_RELAXED);
    algo_worked(&t->host, worker, workers, begin, n);
}

static void pack_share(void *arg, uint32_t worker, uint32_t workers)
{
    struct then *t = arg;
    uint32_t rows = (uint32_t)t->start[t->host.world.size];
    uint32_t end = algo_share(rows, worker + 1, workers);

    for (uint32_t row = algo_share(rows, worker, workers); row < end; row++)
        gemm_pack_row(&t->weights, gathered_row(t, row), t->panels, row, t->line[worker]);
}

static void multiply_share(void *arg, uint32_t worker, uint32_t workers)
{
    struct then *t = arg;
    const struct gemm_weights *w = &t->weights;
    uint32_t rows = (uint32_t)t->start[t->host.world.size];
    uint32_t columns = (w->padded_n + TILE_COLS - 1) / TILE_COLS;
    uint32_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS * columns;
    uint32_t end = algo_share(tiles, worker + 1, workers);
    uint64_t begin = epa_trace_now(t->host.trace);

    for (uint32_t i = algo_share(tiles, worker, workers); i < end; i++) {
        uint32_t row = i / columns * TILE_ROWS, column = i % columns * TILE_COLS;
        uint32_t n = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
        uint32_t wide = w->padded_n - column < TILE_COLS ? w->padded_n - column : TILE_COLS;

        struct gemm_tile tile = {
            .a = t->panels + epa_gemm_a_at(row, 0, w->padded_k),
            .a_scale = gathered_scales(t, row),
            .rows = n,
            .column = column,
            .columns = wide,
        };

        gemm_tile_place(t->problem, row, &tile);
        gemm_tile_run(w, &tile, t->scratch[worker]);
    }
    algo_worked(&t->host, worker, workers, begin, 0);
}

static enum epa_status multiply(struct then *t)
{
    enum epa_status status;

    if (t->problem->n == 0)
        return EPA_OK;
    if (t->library != NULL) {
        t->failed = 0;
        status = algo_parallel(&t->host, multiply_by_library, t);
        return status == EPA_OK && t->failed != 0
                   ? algo_fail(&t->host, EPA_ERR_SYSTEM, "oneDNN's matmul failed")
                   : status;
    }
    status = algo_parallel(&t->host, pack_share, t);
    return status == EPA_OK ? algo_parallel(&t->host, multiply_share, t) : status;
}

/* ---- stages ---- */

static enum epa_status run_gather(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct then *t = then_of(a);
    enum epa_status status;

    t->problem = &problem->u.ag_gemm;
    algo_begin(&t->host, "ag_gemm", "copy");
    status = gather_rows(t);
    algo_end(&t->host);
    return status;
}

static enum epa_status run_gemm(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct then *t = then_of(a);
    enum epa_status status;

    t->problem = &problem->u.ag_gemm;
    algo_begin(&t->host, "ag_gemm", "gemm");
    status = multiply(t);
    algo_end(&t->host);
    return status;
}

static enum epa_status run_both(struct epa_algorithm *a, struct epa_problem *problem)
{
    enum epa_status status = run_gather(a, problem);

    return status == EPA_OK ? run_gemm(a, problem) : status;
}

static const struct epa_stage stages[] = {
    {.name = "ag_gemm", .kind = EPA_STAGE_WHOLE, .run = run_both},
};

static const struct epa_stage parts[EPA_PARTS] = {
    {.name = "gather", .kind = EPA_STAGE_WHOLE, .run = run_gather},
    {.name = "gemm", .kind = EPA_STAGE_WHOLE, .run = run_gemm},
};

/* ---- set-up ---- */

static const struct config defaults = {.library = LIBRARY_AUTO};

static const struct epa_choice libraries[] = {
    {"auto", LIBRARY_AUTO,
     "oneDNN, or on GPUs cuBLASLt, if available for the data type; else kernels"},
    {"onednn", LIBRARY_ONEDNN, "oneDNN's matmul, on hosts"},
    {"cublaslt", LIBRARY_CUBLASLT, "cuBLASLt, on GPUs"},
    {"kernels", LIBRARY_KERNELS, "the kernels that ag_gemm_2d uses"},
    {0},
};

static const struct epa_option options[] = {
    {.name = "library",
     EPA_CHOICE(struct config, library),
     .choices = libraries,
     .help = "library that multiplies",
     .tune = "*"},
    {0},
};

/* Describes a product with n columns. B is packed for about `rows` rows per worker. */
static struct onednn_product product_of(const struct epa_ag_gemm *g, uint32_t n, uint32_t rows)
{
    return (struct onednn_product){
        .n = n, .k = g->k, .ldc = n, .rows = rows, .step = 1, .bias = g->bias ? g->bias_of : NULL};
}

static enum epa_status layout_make(const struct epa_ag_gemm *g, const struct epa_world *world,
                                   uint32_t transport_flags, const struct config *c,
                                   struct layout *out, struct epa_error *err)
{
    uint64_t all = (uint64_t)world->size * g->max_rows;
    const struct onednn_product product = product_of(g, g->max_n, 1);
    bool may_use = c->library == LIBRARY_ONEDNN || c->library == LIBRARY_AUTO;
    bool knows = may_use && g->dtype == EPA_BF16 && !g->out_fp8 && onednn_knows(&product);
    struct layout l = {
        .row_bytes = gemm_row_bytes(g),
        .scale_row_bytes = g->dtype == EPA_FP8_E4M3 ? epa_ag_gemm_groups(g->k) * sizeof(float) : 0,
        .onednn = c->library == LIBRARY_ONEDNN || (c->library == LIBRARY_AUTO && knows),
        .puts = algo_puts(world, transport_flags),
    };

    if (world->size > RANKS)
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks",
                            "ag_then_gemm takes 1 to %d ranks, not %u", RANKS, world->size);
    if (g->max_n == 0 || g->k == 0 || g->k % 8 != 0 || all > UINT32_MAX / 2)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "gemm.k",
            "ag_then_gemm needs gemm.k (%u) to be a positive multiple of 8, at least one "
            "column (%u), and less than 2^31 rows",
            g->k, g->max_n);
    if (c->library == LIBRARY_CUBLASLT)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.library",
                            "ag_then_gemm: algorithm.library: cublaslt is for GPUs; on hosts it "
                            "multiplies with onednn or kernels");
    if (l.onednn && !knows)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "algorithm.library",
                            "ag_then_gemm was built without oneDNN, or it lacks gemm.dtype or "
                            "gemm.out_dtype; set library: kernels");
    (void)algo_place(&l.set_bytes, all * l.row_bytes, 1);
    l.scales_at = algo_place(&l.set_bytes, all * l.scale_row_bytes, 1);
    l.set_bytes = epa_round_up(l.set_bytes, ALGO_PAGE);
    l.heap_bytes = SETS * l.set_bytes;
    *out = l;
    return EPA_OK;
}

static const struct ag_gemm_config on_gpus = {
    .mode = AG_GEMM_PUSH,
    .mover = AG_GEMM_AUTO,
    .order = AG_GEMM_NONE,
    .across_ranks = true,
    .chunks = 1,
    .tile_cols = AG_GEMM_TILE_COLS,
    .panel = 16,
};

/* Chooses the library by the experiment only, so that all ranks agree. cuBLASLt needs FP8 scales of
 * A in another order than the order of rows, and has no C with a scale per row and 128 columns. */
static enum epa_status find_config(const struct epa_ag_gemm *g, const struct config *c,
                                   struct ag_gemm_config *out, struct epa_error *err)
{
    bool fp8 = g->dtype == EPA_FP8_E4M3 || g->out_fp8;

    *out = on_gpus;
    if (c->library == LIBRARY_ONEDNN)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.library",
                            "ag_then_gemm: algorithm.library: onednn is for hosts; on GPUs it "
                            "multiplies with cublaslt or kernels");
    if (c->library == LIBRARY_CUBLASLT && fp8)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "algorithm.library",
                            "ag_then_gemm: algorithm.library: cublaslt takes no gemm.dtype and no "
                            "gemm.out_dtype of fp8, since cuBLASLt needs scales in another order; "
                            "set library: kernels");
    if (c->library == LIBRARY_KERNELS || fp8)
        return EPA_OK;
    out->library = c->library == LIBRARY_CUBLASLT ? AG_GEMM_CUBLASLT : AG_GEMM_TRY_CUBLASLT;
    out->mover = AG_GEMM_SM; /* rows of ranks are contiguous */
    return EPA_OK;
}

static const char *const stage_names[] = {"ag_gemm", NULL};

static enum epa_status plan_ag_then_gemm(const struct epa_problem *problem,
                                         const struct epa_world *world, uint32_t transport_flags,
                                         const void *config, struct epa_footprint *out,
                                         struct epa_error *err)
{
    const struct epa_ag_gemm *g = &problem->u.ag_gemm;
    struct ag_gemm_config device = on_gpus;
    struct layout l = {0};
    uint32_t all = world->size * g->max_rows;
    enum epa_status status;

    if (THEN_CUDA_MEMORY != 0 && (transport_flags & EPA_TRANSPORT_DEVICE) != 0) {
        status = find_config(g, config, &device, err);
        return status != EPA_OK ? status
                                : ag_gemm_cuda_plan("ag_then_gemm", g, world, &device, out, err);
    }
    status = layout_make(g, world, transport_flags, config, &l, err);
    if (status != EPA_OK)
        return status;
    *out = (struct epa_footprint){
        .heap_bytes = l.heap_bytes,
        .private_bytes =
            gemm_weights_bytes(g) + (l.onednn ? 0 : epa_gemm_a_bytes(all, gemm_padded_k(g->k))),
        .signals = world->size,
        .stages = stage_names,
        .in_flight = 1,
        .flops = 2.0 * all * g->max_n * g->k,
        .u.ag_gemm = {.row_bytes = l.row_bytes + l.scale_row_bytes,
                      .control_bytes = sizeof(uint64_t)},
    };
    return EPA_OK;
}

static void destroy_ag_then_gemm(struct epa_algorithm *a)
{
    onednn_destroy(then_of(a)->library);
    gemm_weights_destroy(&then_of(a)->weights);
    algo_destroy(a);
}

static enum epa_status create_library(struct then *t, const struct epa_ag_gemm *g,
                                      struct epa_error *err)
{
    struct algo_host *h = &t->host;
    const struct onednn_product product =
        product_of(g, g->n, (h->world.size * g->max_rows + h->workers - 1) / h->workers);
    enum epa_status status = onednn_create(&product, 1, h->workers, &t->library, err);

    if (status != EPA_OK)
        return status;
    snprintf(t->by, sizeof(t->by), "%s", onednn_name(t->library));
    t->packed = algo_alloc(h, onednn_packed_bytes(t->library, 0), 1);
    if (t->packed != NULL && onednn_pack(t->library, 0, 0, g->b, t->packed) != EPA_OK)
        status = epa_fail(err, EPA_ERR_SYSTEM, "oneDNN cannot pack B");
    return status;
}

static void alloc_kernels(struct then *t, const struct epa_ag_gemm *g)
{
    struct algo_host *h = &t->host;
    uint32_t rows = gemm_round_up(h->world.size * t->max_rows, EPA_GEMM_ROWS);

    snprintf(t->by, sizeof(t->by), "%s kernels", t->weights.kernels->isa);
    t->panels = algo_alloc(h, epa_gemm_a_bytes(rows, gemm_padded_k(g->k)), 1);
    t->scratch = algo_alloc(h, h->workers, sizeof(*t->scratch));
    t->line = algo_alloc(h, h->workers, sizeof(*t->line));
    for (uint32_t w = 0; w < h->workers && t->scratch != NULL && t->line != NULL; w++) {
        t->scratch[w] = algo_alloc(h, (size_t)TILE_ROWS * TILE_COLS, sizeof(float));
        t->line[w] = algo_alloc(h, gemm_padded_k(g->k), 2);
    }
}

static enum epa_status create_ag_then_gemm(const struct epa_algorithm_params *p,
                                           struct epa_algorithm **out, struct epa_error *err)
{
    const struct epa_ag_gemm *g = &p->problem->u.ag_gemm;
    struct layout l = {0};
    bool device = p->backend->memory == EPA_MEMORY_CUDA;
    enum epa_status status =
        device ? EPA_OK : layout_make(g, &p->world, p->transport_flags, p->config, &l, err);
    struct algo_setup setup = {.name = "ag_then_gemm",
                               .stages = stages,
                               .n_stages = 1,
                               .state_bytes = sizeof(struct then),
                               .signals = p->world.size,
                               .heap_bytes = l.heap_bytes,
                               .puts = l.puts};
    struct ag_gemm_config config = on_gpus;
    struct algo_host *host = NULL;
    struct then *t;

    if (THEN_CUDA_MEMORY != 0 && device) {
        status = find_config(g, p->config, &config, err);
        return status == EPA_OK ? ag_gemm_cuda_create("ag_then_gemm", p, &config, out, err)
                                : status;
    }
    if (status == EPA_OK)
        status = algo_create(&setup, p, &host, err);
    if (status != EPA_OK)
        return status;
    t = (struct then *)host; /* setup.state_bytes is the size of struct then */
    t->l = l;
    t->max_rows = g->max_rows;
    host->base.parts = parts;
    host->base.n_parts = EPA_PARTS;
    host->base.products_by = t->by;
    host->base.destroy = destroy_ag_then_gemm;
    status = !l.onednn   ? gemm_weights_create(g, p->backend, &t->weights, err)
             : g->n != 0 ? create_library(t, g, err)
                         : EPA_OK;
    if (status != EPA_OK) {
        destroy_ag_then_gemm(&host->base);
        return status;
    }
    if (!l.onednn)
        alloc_kernels(t, g);
    return algo_created(host, out, err);
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "ag_then_gemm",
               .summary = "AllGather, then one GEMM of a library: the baseline",
               .options = {options, sizeof(struct config), &defaults}},
    .op = EPA_OP_AG_GEMM,
    .memory = EPA_MEMORY_HOST | THEN_CUDA_MEMORY,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE,
    .plan = plan_ag_then_gemm,
    .create = create_ag_then_gemm,
};
