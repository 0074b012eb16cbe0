/* fused: descriptor, options and footprint. */
#include "fused_cuda.h"
#include "fused_host.h"
#include "fused_layout.h"

#include <epa2a/gemm.h>

#include "../../common/algo_host.h"

static const struct fused_config defaults = {
    .launches = FUSED_ONE,
    .queue = FUSED_DYNAMIC,
    .dedup = true,
    .sort = true,
    .ready = FUSED_READY_BLOCK,
    .combine_mode = FUSED_SCATTER,
    .group_blocks = 1,
    .dispatch_dtype = ALGO_DTYPE_NATIVE,
    .recv_layout = FUSED_PADDED,
    .lag = FUSED_LAG,
};

static const struct epa_choice launch_counts[] = {
    {"one", FUSED_ONE, "one task queue from dispatch to combine"},
    {"two", FUSED_TWO, "dispatch and up-projection, then down-projection and combine"},
    {0},
};

static const struct epa_choice queues[] = {
    {"dynamic", FUSED_DYNAMIC, "a free worker takes the next task, by an atomic counter"},
    {"static", FUSED_STATIC, "tasks are dealt to workers in turn"},
    {0},
};

static const struct epa_choice readiness[] = {
    {"block", FUSED_READY_BLOCK, "one flag per source and chunk of rows"},
    {"expert", FUSED_READY_EXPERT, "one flag per source and expert"},
    {0},
};

static const struct epa_choice combine_modes[] = {
    {"scatter", FUSED_SCATTER, "the last GEMM task of a token stores its row at the source"},
    {"gather", FUSED_GATHER, "that task leaves the row in its own heap and the source loads it"},
    {"serial", FUSED_SERIAL, "rows are reduced and stored after all GEMM tasks"},
    {0},
};

static const struct epa_choice recv_layouts[] = {
    {"padded", FUSED_PADDED, "a fixed region per source; rows leave before counts arrive"},
    {"packed", FUSED_PACKED,
     "contiguous, one source after the other; needs the counts of all sources"},
    {0},
};

static const struct epa_option options[] = {
    {.name = "launches",
     EPA_CHOICE(struct fused_config, launches),
     .choices = launch_counts,
     .help = "number of task queues, one after the other",
     .tune = "*"},
    {.name = "queue",
     EPA_CHOICE(struct fused_config, queue),
     .choices = queues,
     .help = "assignment of tasks to workers",
     .tune = "*"},
    {.name = "dispatch_workers",
     EPA_U32(struct fused_config, dispatch_workers),
     .max = 255,
     .help = "workers that begin with dispatch tasks only; 0: all workers",
     .tune = "0 1 2"},
    {.name = "tail_workers",
     EPA_U32(struct fused_config, tail_workers),
     .max = 255,
     .help = "workers that begin with the second stage of dispatch only; 0: all workers"},
    {.name = "combine_workers",
     EPA_U32(struct fused_config, combine_workers),
     .max = 255,
     .help = "workers that begin with combine tasks only; 0: all workers",
     .tune = "0 1"},
    {.name = "reduce_workers",
     EPA_U32(struct fused_config, reduce_workers),
     .max = 255,
     .help = "on GPUs, workers that add up returned rows of own tokens, while combine workers only "
             "return rows; 0: combine workers do both",
     .tune = "cuda: 0 1"},
    {.name = "dedup",
     EPA_BOOL(struct fused_config, dedup),
     .help = "token saving: send a token once per destination rank, and one reduced row back; on "
             "GPUs, many tokens are sent once per expert unless `tail` is set",
     .tune = "*"},
    {.name = "sort",
     EPA_BOOL(struct fused_config, sort),
     .help = "token sorting: send rows in the order in which experts need them",
     .tune = "*"},
    {.name = "tail",
     EPA_BOOL(struct fused_config, tail),
     .help = "two-stage dispatch: tasks of their own copy received rows to their experts",
     .tune = "*"},
    {.name = "ready",
     EPA_CHOICE(struct fused_config, ready),
     .choices = readiness,
     .help = "granularity of the flags that GEMM tasks wait for",
     .tune = "*"},
    {.name = "block_rows",
     EPA_U32(struct fused_config, block_rows),
     .max = 4096,
     .help =
         "most rows of an expert in one GEMM task; hosts: rounded up to a multiple of 32, 0: 256; "
         "GPUs: 128, or 144 in FP8, 0: by the mean rows of an expert",
     .tune = "0 32 64 128"},
    {.name = "column_splits",
     EPA_U32(struct fused_config, column_splits),
     .max = 64,
     .help = "GEMM tasks that share the columns of a block; 0: as many as keep workers busy",
     .tune = "0 1 2 4 8"},
    {.name = "tile_cols",
     EPA_U32(struct fused_config, tile_cols),
     .max = 4096,
     .help = "on hosts, columns of a tile of the GEMMs, a multiple of 128; 0: 128",
     .tune = "0 256 512"},
    {.name = "tile_k",
     EPA_U32(struct fused_config, tile_k),
     .max = 1 << 20,
     .help = "on hosts, most elements of k of a tile, a multiple of 128; 0: by the instruction set",
     .tune = "0 256 1024"},
    {.name = "group_blocks",
     EPA_U32(struct fused_config, group_blocks),
     .min = 1,
     .max = 64,
     .help = "on hosts, blocks of an expert that are multiplied one after the other by the same "
             "columns of weights, if column_splits divides the columns",
     .tune = "1 4"},
    {.name = "combine_mode",
     EPA_CHOICE(struct fused_config, combine_mode),
     .choices = combine_modes,
     .help = "how outputs return to the ranks of their tokens",
     .tune = "*"},
    {.name = "combine_cols",
     EPA_U32(struct fused_config, combine_cols),
     .max = 1 << 20,
     .help = "on hosts, columns of a returning row with a flag of their own, which return and are "
             "added up as soon as the row's experts have written them, a multiple of 256; 0: all",
     .tune = "0 512 1024"},
    ALGO_OPTION_DISPATCH_DTYPE(struct fused_config),
    {.name = "recv_layout",
     EPA_CHOICE(struct fused_config, recv_layout),
     .choices = recv_layouts,
     .help = "placement of received rows",
     .tune = "*"},
    ALGO_OPTION_CAPACITY(struct fused_config, "received entries"),
    {.name = "lag",
     EPA_U32(struct fused_config, lag),
     .min = 1,
     .max = 64,
     .help = "on GPUs, up-projection tiles per thread block before the first down-projection tile",
     .tune = "cuda: 1 2 4 8"},
    {.name = "waves",
     EPA_U32(struct fused_config, waves),
     .max = 8,
     .help = "on GPUs, number of waves in which many tokens are sent, each to all experts; "
             "0: by ranks and rows of an expert",
     .tune = "cuda: 0 1"},
    ALGO_OPTION_BLOCKS(struct fused_config),
    {0},
};

static const char *const stage_names[] = {"layer", NULL};

static enum epa_status plan_fused(const struct epa_problem *problem, const struct epa_world *world,
                                  uint32_t transport_flags, const void *config,
                                  struct epa_footprint *out, struct epa_error *err)
{
    const struct epa_moe *m = &problem->u.moe;
    const struct fused_config *c = config;
    struct fused_layout l;
    uint64_t first, words, flags;
    uint32_t roles;
    enum epa_status status;

    if (FUSED_CUDA_MEMORY != 0 && (transport_flags & EPA_TRANSPORT_DEVICE) != 0)
        return fused_cuda_plan(m, world, config, out, err);
    status = fused_layout_make(m, world, transport_flags, c, &l, err);
    if (status != EPA_OK)
        return status;
    words = FUSED_HEAD_WORDS + 2 * (uint64_t)l.size + l.local + 1;
    flags = c->ready == FUSED_READY_EXPERT ? (l.local + 1) / 2 : 1; /* flags per source; few use
                                                                     * all */
    first = fused_host_bytes(&l, c, 1);
    roles = c->dispatch_workers + c->tail_workers + c->combine_workers; /* others do GEMMs */
    *out = (struct epa_footprint){
        .heap_bytes = l.heap_bytes,
        .private_bytes = first,
        .worker_bytes = fused_host_bytes(&l, c, 2) - first,
        .signals = l.signals,
        .stages = stage_names,
        .least_workers = roles == 0 ? 0 : roles + 1,
        .in_flight = 1,
        .flops = 2.0 * m->max_tokens * m->topk * l.hidden * ((double)l.up_rows + l.ffn),
        .u.moe = {.recv_rows = l.rows,
                  .recv_entries = l.entries,
                  .layout = EPA_LAYOUT_EXPERT,
                  .recv_dtype = l.fp8 ? EPA_FP8_E4M3 : l.dtype,
                  .sum = l.dedup ? EPA_SUM_BY_RANK : EPA_SUM_ORDERED,
                  .output_dtype = l.dedup ? EPA_F32 : l.dtype,
                  .dispatch_dedup = l.dedup,
                  .combine_dedup = l.dedup,
                  .fused = true,
                  .dispatch_row_bytes =
                      l.row_bytes + sizeof(uint32_t), /* the row and the start of its choices */
                  .dispatch_token_bytes = l.fp8 ? l.hidden : l.row_bytes,
                  /* A signal of each further part serves 1 to 16 rows or more. */
                  .combine_row_bytes = l.output_bytes + (l.out_parts - 1) * (sizeof(uint64_t) / 2),
                  .combine_token_bytes = l.output_bytes,
                  .choice_bytes = sizeof(struct fused_choice),
                  .control_bytes = words * sizeof(uint32_t) +
                                   (2 + flags) * sizeof(uint64_t)}, /* header and flags */
    };
    return EPA_OK;
}

static enum epa_status create_fused(const struct epa_algorithm_params *p,
                                    struct epa_algorithm **out, struct epa_error *err)
{
    struct fused_layout l;
    enum epa_status status;

    if (FUSED_CUDA_MEMORY != 0 && p->backend->memory == EPA_MEMORY_CUDA)
        return fused_cuda_create(p, out, err);
    status =
        fused_layout_make(&p->problem->u.moe, &p->world, p->transport_flags, p->config, &l, err);
    return status == EPA_OK ? fused_host_create(p, &l, out, err) : status;
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "fused",
               .summary = "dispatch, the experts' GEMMs and combine as tasks of one queue",
               .options = {options, sizeof(struct fused_config), &defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST | FUSED_CUDA_MEMORY,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE | EPA_TRANSPORT_LOAD_STORE,
    .plan = plan_fused,
    .create = create_fused,
};
