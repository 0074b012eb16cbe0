/* ag_gemm_2d: descriptor, options and the layout of the heap. */
#include "ag_gemm_2d_host.h"
#include "ag_gemm_2d_layout.h"

#include "../../common/ag_gemm_cuda.h"
#include "../../common/ag_gemm_layout.h"
#include "../../common/algo_host.h"
#include "../../common/gemm_host.h"

static const struct ag2_config defaults = {
    .mode = AG_GEMM_PUSH,
    .gather = AG2_TWO_LEVEL,
    .order = AG_GEMM_ARRIVAL,
    .across_ranks = true,
    .mover = AG_GEMM_AUTO,
    .forward = AG_GEMM_SM,
    .product = AG_GEMM_BY_SHAPE,
    .panel = 16,
};

static const struct epa_choice modes[] = {
    {"push", AG_GEMM_PUSH, "each rank stores its rows in the memory of the other ranks"},
    {"pull", AG_GEMM_PULL, "each rank loads the rows of the other ranks"},
    {0},
};

static const struct epa_choice gathers[] = {
    {"2d", AG2_TWO_LEVEL,
     "rows cross to another node once, to the rank with the same place in its "
     "node, which passes them on"},
    {"1d", AG2_DIRECT, "each rank sends its rows to all other ranks"},
    {0},
};

static const struct epa_choice orders[] = {
    {"arrival", AG_GEMM_ARRIVAL, "own rows first, then rows in the order of their arrival"},
    {"swizzle", AG_GEMM_SWIZZLE, "own rows first, then rank after rank, the own node first"},
    {"none", AG_GEMM_NONE, "from the first row to the last"},
    {0},
};

static const struct epa_choice movers[] = {
    {"auto", AG_GEMM_AUTO, "copy engines from 1 MiB per rank on, if they can push the rows"},
    {"copy_engine", AG_GEMM_COPY_ENGINE, "copy engines push a rank's own rows"},
    {"sm", AG_GEMM_SM, "multiprocessors"},
    {0},
};

static const struct epa_choice forwards[] = {
    {"sm", AG_GEMM_SM, "multiprocessors"},
    {"copy_engine", AG_GEMM_COPY_ENGINE, "copy engines, whose stream waits for the rows"},
    {0},
};

static const struct epa_choice products[] = {
    {"auto", AG_GEMM_BY_SHAPE, "cuBLASLt for long products with C in 16 bits, else own"},
    {"own", AG_GEMM_OWN, "tiles of one kernel, which start as their rows arrive"},
    {"library", AG_GEMM_LIBRARY,
     "cuBLASLt, once for the rows of each rank, own rows first; copy engines push rows"},
    {0},
};

static const struct epa_option options[] = {
    {.name = "mode",
     EPA_CHOICE(struct ag2_config, mode),
     .choices = modes,
     .help = "direction of the transfer of rows between ranks in load/store reach; other "
             "ranks get puts",
     .tune = "*"},
    {.name = "gather",
     EPA_CHOICE(struct ag2_config, gather),
     .choices = gathers,
     .help = "path of rows between nodes",
     .tune = "*"},
    {.name = "chunks",
     EPA_U32(struct ag2_config, chunks),
     .max = 64,
     .help = "number of chunks of a rank's rows, each with its own signal: a tile starts when "
             "its chunks have arrived; 0 takes 4, on GPUs 1 to 4 by the estimated times",
     .tune = "0 1 2 4 8 16"},
    {.name = "order",
     EPA_CHOICE(struct ag2_config, order),
     .choices = orders,
     .help = "order of tiles",
     .tune = "*"},
    {.name = "tile_rows",
     EPA_U32(struct ag2_config, tile_rows),
     .max = 4096,
     .help = "rows of C that a worker computes at a time: a multiple of 32, 0 takes 256; on GPUs "
             "128, or 0",
     .tune = "0 64 128 256 512"},
    {.name = "tile_cols",
     EPA_U32(struct ag2_config, tile_cols),
     .max = 4096,
     .help = "columns of C that a worker computes at a time: a multiple of 32, on GPUs 128 or 256; "
             "0 takes 256, on GPUs 128 where 256 would leave multiprocessors without a tile",
     .tune = "0 64 128 256 512"},
    {.name = "across_ranks",
     EPA_BOOL(struct ag2_config, across_ranks),
     .help = "a tile may have rows of several ranks, and waits for all its rows; false: each "
             "rank's rows begin a tile",
     .tune = "*"},
    {.name = "comm_worker",
     EPA_BOOL(struct ag2_config, comm_worker),
     .help = "worker 0 only moves rows until all rows have arrived; needs two workers",
     .tune = "*"},
    {.name = "mover",
     EPA_CHOICE(struct ag2_config, mover),
     .choices = movers,
     .help = "on GPUs, unit that moves a rank's own rows",
     .tune = "cuda: *"},
    {.name = "forward",
     EPA_CHOICE(struct ag2_config, forward),
     .choices = forwards,
     .help = "on GPUs with gather: 2d, unit that passes rows of other nodes on within its node",
     .tune = "cuda: *"},
    {.name = "product",
     EPA_CHOICE(struct ag2_config, product),
     .choices = products,
     .help = "on GPUs, unit of the product that runs while rows arrive",
     .tune = "cuda: *"},
    {.name = "cluster",
     EPA_U32(struct ag2_config, cluster),
     .max = 2,
     .help = "on GPUs, thread blocks per cluster, which share the loads of weights: 1 or 2; 0 "
             "takes 2 with 16-bit types and gemm.k of at least 4096",
     .tune = "cuda: 0 1"},
    {.name = "panel",
     EPA_U32(struct ag2_config, panel),
     .min = 1,
     .max = 1024,
     .help = "on GPUs, number of tiles of a column that are computed before the next column",
     .tune = "cuda: 4 8 16 32"},
    {.name = "comm_blocks",
     EPA_U32(struct ag2_config, comm_blocks),
     .max = 1024,
     .help = "on GPUs, number of thread blocks that only move rows; 0: a warp of each block moves "
             "a share",
     .tune = "cuda: 0 4 8 16"},
    {.name = "blocks",
     EPA_U32(struct ag2_config, blocks),
     .max = 65535,
     .help = "on GPUs, maximum number of thread blocks; 0: one per multiprocessor"},
    {.name = "put_blocks",
     EPA_U32(struct ag2_config, put_blocks),
     .max = 1024,
     .help = "on GPUs, number of multiprocessors that put rows to other nodes beside the product, "
             "which does not use them; 0: all put before the product",
     .tune = "cuda: 0 1 2 4"},
    {0},
};

enum { TILE_ROWS = 256, TILE_COLS = 256, CHUNKS = 4 };

static enum epa_status check_shape(const struct epa_ag_gemm *g, const struct epa_world *world,
                                   const struct ag2_config *c, struct epa_error *err)
{
    if (world->size > AG2_RANKS)
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks", "ag_gemm_2d takes 1 to %d ranks, not %u",
                            AG2_RANKS, world->size);
    if (g->max_n == 0 || g->k == 0 || g->k % 8 != 0)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "gemm.k",
            "ag_gemm_2d needs gemm.k (%u) to be a positive multiple of 8, and at least "
            "one column (%u)",
            g->k, g->max_n);
    if ((uint64_t)world->size * g->max_rows > UINT32_MAX / 2)
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks",
                            "ag_gemm_2d: %u ranks of up to %u rows exceed 2^31 - 1 rows",
                            world->size, g->max_rows);
    if (c->tile_rows % EPA_GEMM_ROWS != 0 || c->tile_cols % EPA_GEMM_COLS != 0)
        return epa_fail_key(err, EPA_ERR_CONFIG,
                            c->tile_rows % EPA_GEMM_ROWS != 0 ? "algorithm.tile_rows"
                                                              : "algorithm.tile_cols",
                            "ag_gemm_2d needs algorithm.tile_rows (%u) to be a multiple of %d, and "
                            "algorithm.tile_cols (%u) of %d",
                            c->tile_rows, EPA_GEMM_ROWS, c->tile_cols, EPA_GEMM_COLS);
    if (g->out_fp8 && c->tile_cols % GEMM_K_UNIT != 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.tile_cols gemm.out_dtype",
                            "ag_gemm_2d with gemm.out_dtype: fp8 needs algorithm.tile_cols (%u) to "
                            "be a multiple of %d, the columns of a scale",
                            c->tile_cols, GEMM_K_UNIT);
    if (c->gather == AG2_TWO_LEVEL && world->size % world->local_size != 0)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "algorithm.gather ranks_per_node",
            "ag_gemm_2d with gather: 2d needs equal numbers of ranks per node: %u ranks "
            "are not a multiple of ranks_per_node (%u); set gather: 1d",
            world->size, world->local_size);
    return EPA_OK;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static enum epa_status layout_make(const struct epa_ag_gemm *g, const struct epa_world *world,
                                   uint32_t transport_flags, const struct ag2_config *given,
                                   struct ag2_layout *out, struct epa_error *err)
{
    struct ag2_config config = *given, *c = &config;
    uint32_t padded_k = gemm_padded_k(g->k), all = world->size * g->max_rows;
    struct ag2_layout l = {
        .size = world->size,
        .max_rows = g->max_rows,
        .n = g->n,
        .k = g->k,
        .fp8 = g->dtype == EPA_FP8_E4M3,
        .puts = algo_puts(world, transport_flags),
        .two_level = c->gather == AG2_TWO_LEVEL && world->local_size < world->size,
        .config = *c,
    };
    enum epa_status status;
    bool moving; /* an option of the unit that moves or multiplies */

    moving = c->mover != defaults.mover || c->forward != defaults.forward ||
             c->product != defaults.product;
    if (moving || c->panel != defaults.panel || c->comm_blocks != 0 || c->blocks != 0 ||
        c->cluster != 0 || c->put_blocks != 0)
        return epa_fail_key(err, EPA_ERR_CONFIG,
                            moving ? "algorithm.mover algorithm.forward algorithm.product"
                                   : "algorithm.cluster algorithm.panel algorithm.comm_blocks "
                                     "algorithm.blocks algorithm.put_blocks",
                            "ag_gemm_2d: algorithm.mover, forward, product, cluster, panel, "
                            "comm_blocks, blocks and put_blocks are options of GPUs; leave them "
                            "out");
    c->tile_rows = c->tile_rows != 0 ? c->tile_rows : TILE_ROWS;
    c->tile_cols = c->tile_cols != 0 ? c->tile_cols : TILE_COLS;
    status = check_shape(g, world, c, err);
    if (status != EPA_OK)
        return status;
    l.config.tile_cols = least(c->tile_cols, gemm_round_up(g->max_n, EPA_GEMM_COLS));
    l.config.tile_rows = least(c->tile_rows, gemm_round_up(all > 0 ? all : 1, EPA_GEMM_ROWS));
    l.chunks = c->chunks != 0 ? c->chunks : CHUNKS;
    l.chunk_rows = (g->max_rows + l.chunks - 1) / l.chunks;
    l.chunk_rows = l.chunk_rows > 0 ? l.chunk_rows : 1;
    l.chunks = (g->max_rows + l.chunk_rows - 1) / l.chunk_rows;
    l.chunks = l.chunks > 0 ? l.chunks : 1;
    l.signals = l.size * l.chunks;
    l.panel_rows = c->across_ranks ? gemm_round_up(all, EPA_GEMM_ROWS)
                                   : l.size * gemm_round_up(g->max_rows, EPA_GEMM_ROWS);
    l.panel_row_bytes = (uint64_t)padded_k * 2;
    l.scale_row_bytes = l.fp8 ? padded_k / GEMM_K_UNIT * sizeof(float) : 0;
    l.raw_row_bytes = gemm_row_bytes(g);
    l.panels_at = algo_place(&l.set_bytes, epa_gemm_a_bytes((uint32_t)l.panel_rows, padded_k), 1);
    l.scales_at = algo_place(&l.set_bytes, l.panel_rows * l.scale_row_bytes, 1);
    l.raw_at = algo_place(&l.set_bytes, l.puts ? all * l.raw_row_bytes : 0, 1);
    l.raw_scales_at = algo_place(&l.set_bytes, l.puts ? all * l.scale_row_bytes : 0, 1);
    l.set_bytes = epa_round_up(l.set_bytes, ALGO_PAGE);
    l.heap_bytes = AG2_SETS * l.set_bytes;
    *out = l;
    return EPA_OK;
}

/* Translates the options to the configuration of the CUDA code, which ag_then_gemm shares. */
static enum epa_status device_config(const struct ag2_config *c, struct ag_gemm_config *out,
                                     struct epa_error *err)
{
    if (c->comm_worker)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.comm_worker",
                            "ag_gemm_2d: algorithm.comm_worker is an option of hosts; on GPUs set "
                            "algorithm.comm_blocks");
    if (c->tile_rows != 0 && c->tile_rows != AG_GEMM_TILE_ROWS)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.tile_rows",
                            "ag_gemm_2d on GPUs needs algorithm.tile_rows of %d, not %u",
                            AG_GEMM_TILE_ROWS, c->tile_rows);
    *out = (struct ag_gemm_config){
        .mode = c->mode,
        .mover = c->mover,
        .forward = c->forward,
        .order = c->order,
        .product = c->product,
        .two_level = c->gather == AG2_TWO_LEVEL,
        .across_ranks = c->across_ranks,
        .overlap = true,
        .chunks = c->chunks,
        .tile_cols = c->tile_cols,
        .cluster = c->cluster,
        .panel = c->panel,
        .comm_blocks = c->comm_blocks,
        .blocks = c->blocks,
        .put_blocks = c->put_blocks,
    };
    return EPA_OK;
}

static const char *const stage_names[] = {"ag_gemm", NULL};

static enum epa_status plan_ag_gemm_2d(const struct epa_problem *problem,
                                       const struct epa_world *world, uint32_t transport_flags,
                                       const void *config, struct epa_footprint *out,
                                       struct epa_error *err)
{
    const struct epa_ag_gemm *g = &problem->u.ag_gemm;
    struct ag_gemm_config device;
    struct ag2_layout l;
    enum epa_status status;

    if (AG2_CUDA_MEMORY != 0 && (transport_flags & EPA_TRANSPORT_DEVICE) != 0) {
        status = device_config(config, &device, err);
        return status != EPA_OK ? status
                                : ag_gemm_cuda_plan("ag_gemm_2d", g, world, &device, out, err);
    }
    status = layout_make(g, world, transport_flags, config, &l, err);
    if (status != EPA_OK)
        return status;
    *out = (struct epa_footprint){
        .heap_bytes = l.heap_bytes,
        .private_bytes = gemm_weights_bytes(g),
        .signals = l.signals,
        .stages = stage_names,
        .least_workers = l.config.comm_worker ? 2 : 0,
        .in_flight = 1,
        .flops = 2.0 * world->size * g->max_rows * g->max_n * g->k,
        .u.ag_gemm = {.row_bytes =
                          (l.puts ? l.raw_row_bytes : l.panel_row_bytes) + l.scale_row_bytes,
                      .control_bytes = (uint64_t)l.chunks * sizeof(uint64_t),
                      .two_level = l.config.gather == AG2_TWO_LEVEL},
    };
    return EPA_OK;
}

static enum epa_status create_ag_gemm_2d(const struct epa_algorithm_params *p,
                                         struct epa_algorithm **out, struct epa_error *err)
{
    struct ag_gemm_config device;
    struct ag2_layout l;
    enum epa_status status;

    if (AG2_CUDA_MEMORY != 0 && p->backend->memory == EPA_MEMORY_CUDA) {
        status = device_config(p->config, &device, err);
        return status != EPA_OK ? status : ag_gemm_cuda_create("ag_gemm_2d", p, &device, out, err);
    }
    status = layout_make(&p->problem->u.ag_gemm, &p->world, p->transport_flags, p->config, &l, err);
    return status == EPA_OK ? ag2_host_create(p, &l, out, err) : status;
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "ag_gemm_2d",
               .summary = "GEMM tiles that start as rows arrive from a two-level AllGather",
               .options = {options, sizeof(struct ag2_config), &defaults}},
    .op = EPA_OP_AG_GEMM,
    .memory = EPA_MEMORY_HOST | AG2_CUDA_MEMORY,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE,
    .plan = plan_ag_gemm_2d,
    .create = create_ag_gemm_2d,
};
