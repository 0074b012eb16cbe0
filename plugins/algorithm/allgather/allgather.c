/* allgather: descriptor, options and the layout of the heap. */
#include "allgather_cuda.h"
#include "allgather_host.h"
#include "allgather_layout.h"

#include "../../common/algo_host.h"

static const struct ag_config defaults = {
    .mode = AG_PUSH,
    .nontemporal = AG_NONTEMPORAL_AUTO,
    .chunks = 1,
};

static const struct epa_choice modes[] = {
    {"push", AG_PUSH, "each rank stores or puts its rows to all other ranks"},
    {"pull", AG_PULL, "each rank loads the rows of all other ranks"},
    {0},
};

static const struct epa_choice nontemporal[] = {
    {"auto", AG_NONTEMPORAL_AUTO,
     "on where the outputs of the ranks of a host take a third of its cache"},
    {"off", AG_NONTEMPORAL_OFF, "ordinary stores"},
    {"on", AG_NONTEMPORAL_ON, "non-temporal stores, which bypass the cache"},
    {0},
};

static const struct epa_option options[] = {
    {.name = "mode",
     EPA_CHOICE(struct ag_config, mode),
     .choices = modes,
     .help = "direction of the transfer of rows",
     .tune = "*"},
    {.name = "chunks",
     EPA_U32(struct ag_config, chunks),
     .min = 1,
     .max = 1024,
     .help = "number of chunks of a rank's rows, each with its own signal: a consumer can "
             "begin with the chunks that have arrived, and copies overlap with puts",
     .tune = "1 2 4 8 16"},
    {.name = "nontemporal",
     EPA_CHOICE(struct ag_config, nontemporal),
     .choices = nontemporal,
     .help = "on hosts, stores that write rows",
     .tune = "*"},
    {.name = "blocks",
     EPA_U32(struct ag_config, blocks),
     .max = 65535,
     .help = "on GPUs, maximum of thread blocks, which leaves multiprocessors to other "
             "kernels; 0 takes two blocks per multiprocessor",
     .tune = "cuda: 0 16 32 64"},
    {0},
};

static enum epa_status check_shape(const struct epa_allgather *g, const struct epa_world *world,
                                   struct epa_error *err)
{
    if (world->size > AG_RANKS)
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks", "allgather takes 1 to %d ranks, not %u",
                            AG_RANKS, world->size);
    if (g->row_bytes == 0 || g->row_bytes % 16 != 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "allgather.row_bytes",
                            "allgather needs allgather.row_bytes (%u) to be a multiple of 16",
                            g->row_bytes);
    if (g->max_rows == 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "allgather.max_rows",
                            "allgather needs allgather.max_rows of at least 1");
    return EPA_OK;
}

/* Rejects options of hosts on GPUs, and options of GPUs on hosts. */
static enum epa_status check_options(const struct ag_config *c, const struct epa_world *world,
                                     uint32_t transport_flags, bool puts, struct epa_error *err)
{
    bool device = (transport_flags & EPA_TRANSPORT_DEVICE) != 0;

    if (device && world->size > EPA_DEVICE_RANKS)
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks",
                            "allgather on GPUs takes 1 to %d ranks, not %u", EPA_DEVICE_RANKS,
                            world->size);
    if (device && c->nontemporal != AG_NONTEMPORAL_AUTO)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.nontemporal",
                            "allgather: algorithm.nontemporal is an option of hosts; leave it out");
    if (!device && c->blocks != 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.blocks",
                            "allgather: algorithm.blocks is an option of GPUs; leave it out");
    if (c->mode == AG_PULL && puts)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.mode",
                            "allgather with mode: pull loads from all ranks, but this transport "
                            "reaches some ranks by puts only; set mode: push");
    return EPA_OK;
}

static enum epa_status layout_make(const struct epa_allgather *g, const struct epa_world *world,
                                   uint32_t transport_flags, const struct ag_config *c,
                                   struct ag_layout *out, struct epa_error *err)
{
    struct ag_layout l = {
        .size = world->size,
        .max_rows = g->max_rows,
        .row_bytes = g->row_bytes,
        .pull = c->mode == AG_PULL,
        .puts = algo_puts(world, transport_flags),
    };
    enum epa_status status = check_shape(g, world, err);

    if (status == EPA_OK)
        status = check_options(c, world, transport_flags, l.puts, err);
    if (status != EPA_OK)
        return status;
    l.chunk_rows = (g->max_rows + c->chunks - 1) / c->chunks;
    l.chunks = (g->max_rows + l.chunk_rows - 1) / l.chunk_rows;
    l.signals = l.size * l.chunks;
    l.set_bytes = epa_round_up((uint64_t)l.size * l.max_rows * l.row_bytes, ALGO_PAGE);
    l.heap_bytes = AG_SETS * l.set_bytes;
    *out = l;
    return EPA_OK;
}

static const char *const stage_names[] = {"allgather", NULL};

static enum epa_status plan_allgather(const struct epa_problem *problem,
                                      const struct epa_world *world, uint32_t transport_flags,
                                      const void *config, struct epa_footprint *out,
                                      struct epa_error *err)
{
    struct ag_layout l;
    enum epa_status status =
        layout_make(&problem->u.allgather, world, transport_flags, config, &l, err);

    if (status != EPA_OK)
        return status;
    *out = (struct epa_footprint){
        .heap_bytes = l.heap_bytes,
        .signals = l.signals,
        .stages = stage_names,
        .in_flight = 1,
        .u.allgather.control_bytes = (uint64_t)l.chunks * sizeof(uint64_t),
    };
    return EPA_OK;
}

static enum epa_status create_allgather(const struct epa_algorithm_params *p,
                                        struct epa_algorithm **out, struct epa_error *err)
{
    struct ag_layout l;
    enum epa_status status =
        layout_make(&p->problem->u.allgather, &p->world, p->transport_flags, p->config, &l, err);

    if (status != EPA_OK)
        return status;
    /* Builds without a CUDA compiler do not define ag_cuda_create(). */
    return AG_CUDA_MEMORY != 0 && p->backend->memory == EPA_MEMORY_CUDA
               ? ag_cuda_create(p, &l, out, err)
               : ag_host_create(p, &l, out, err);
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "allgather",
               .summary = "AllGather of ragged rows, pushed or pulled, with a signal per chunk",
               .options = {options, sizeof(struct ag_config), &defaults}},
    .op = EPA_OP_ALLGATHER,
    .memory = EPA_MEMORY_HOST | AG_CUDA_MEMORY,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE,
    .plan = plan_allgather,
    .create = create_allgather,
};
