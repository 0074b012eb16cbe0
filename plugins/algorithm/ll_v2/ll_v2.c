/* ll_v2: the descriptor and the options. */
#include "ll_v2.h"

static const struct ll_config defaults = {
    .dispatch_dtype = LL_DTYPE_FP8,
    .combine_dtype = LL_DTYPE_NATIVE,
    .layout = EPA_LAYOUT_EXPERT,
    .recv_layout = LL_RECV_PACKED,
    .buffers = 2,
    .nontemporal = LL_NONTEMPORAL_AUTO,
    .pdl = true,
};

static const struct epa_choice wires[] = {
    {"fp8", LL_DTYPE_FP8, "e4m3 with a scale for each group, quantised on the way"},
    {"native", LL_DTYPE_NATIVE, "as the tokens are"},
    {0},
};

static const struct epa_choice layouts[] = {
    {"expert", EPA_LAYOUT_EXPERT, "a row for each expert that wants a token"},
    {"rank", EPA_LAYOUT_RANK, "a token once for each rank, with an index for its experts"},
    {0},
};

static const struct epa_choice row_starts[] = {
    {"packed", LL_RECV_PACKED, "one expert's rows after the other's"},
    {"padded", LL_RECV_PADDED, "evenly apart, with room for the most an expert can get"},
    {0},
};


static const struct epa_choice returns[] = {
    {"auto", LL_COMBINE_AUTO,
     "push what is added up or quantised first, or many tokens; else pull"},
    {"pull", LL_COMBINE_PULL, "the token's rank loads them from where experts wrote them"},
    {"push", LL_COMBINE_PUSH, "the experts' rank stores them at the token's"},
    {0},
};



static const struct epa_choice stores[] = {
    {"auto", LL_NONTEMPORAL_AUTO, "by size; in between the first dispatches try both"},
    {"off", LL_NONTEMPORAL_OFF, "ordinary stores"},
    {"on", LL_NONTEMPORAL_ON, "past the cache"},
    {0},
};

static const struct epa_choice put_sizes[] = {
    {"auto", LL_PUTS_AUTO, "blocks where a token crosses once for each rank, else rows"},
    {"rows", LL_PUTS_ROWS, "each for itself"},
    {"blocks", LL_PUTS_BLOCKS, "those that stand side by side at the receiver together"},
    {0},
};

static const struct epa_option options[] = {
    {.name = "dispatch_dtype",
     EPA_CHOICE(struct ll_config, dispatch_dtype),
     .choices = wires,
     .help = "what dispatch sends"},
    {.name = "combine_dtype",
     EPA_CHOICE(struct ll_config, combine_dtype),
     .choices = wires,
     .help = "what combine sends"},
    {.name = "layout",
     EPA_CHOICE(struct ll_config, layout),
     .choices = layouts,
     .help = "what a rank gets out of dispatch"},
    {.name = "dedup",
     EPA_BOOL(struct ll_config, dedup),
     .help =
         "with layout: expert, a token crosses once for each rank that wants it, and is "
         "copied to its experts there; their expert outputs are added up before they return"},
    {.name = "recv_layout",
     EPA_CHOICE(struct ll_config, recv_layout),
     .choices = row_starts,
     .help = "where the rows of an expert start"},
    {.name = "fuse_expert",
     EPA_BOOL(struct ll_config, fuse_expert),
     .help = "where the experts' work is done"},
    {.name = "buffers",
     EPA_U32(struct ll_config, buffers),
     .min = 1,
     .max = 2,
     .help =
         "buffer sets; with 2 a dispatch may start before the combine of the one before, "
         "1 takes half the memory"},
    {.name = "nontemporal",
     EPA_CHOICE(struct ll_config, nontemporal),
     .choices = stores,
     .help = "how rows are written to other ranks"},
    {.name = "puts",
     EPA_CHOICE(struct ll_config, puts),
     .choices = put_sizes,
     .help = "how rows are put to ranks that loads and stores do not reach"},
    {.name = "capacity",
     EPA_REAL(struct ll_config, capacity),
     .least = 0,
     .most = 1024,
     .help =
         "room for received rows as a multiple of the even share; 0 holds the worst case, "
         "and an iteration that needs more than there is ends the run"},
    {.name = "split_phase",
     EPA_BOOL(struct ll_config, split_phase),
     .help = "on GPUs, whether a caller can compute between the halves of a stage"},
    {.name = "combine_mode",
     EPA_CHOICE(struct ll_config, combine_mode),
     .choices = returns,
     .help = "on GPUs, how expert outputs come back"},
    {.name = "pdl",
     EPA_BOOL(struct ll_config, pdl),
     .help = "on GPUs, when a kernel is set up"},
    {.name = "blocks",
     EPA_U32(struct ll_config, blocks),
     .max = 65535,
     .help =
         "on GPUs, thread blocks of a kernel at most, to leave multiprocessors to others; "
         "0 takes two for each"},
    {.name = "profile",
     EPA_STRING(struct ll_config, profile),
     .help =
         "on GPUs, where to write when each warp did what in the last iteration: a Chrome "
         "trace for each rank, FILE.0.json and so on"},
    {0},
};

static enum epa_status plan(const struct epa_problem *problem,
                            const struct epa_world *world, uint32_t transport_flags,
                            const void *config, struct epa_footprint *out,
                            struct epa_error *err)
{
    const struct ll_config *c = config;
    struct ll_layout l;
    enum epa_status status =
        ll_layout_make(&problem->u.moe, world, transport_flags, c, &l, err);

    if (status != EPA_OK)
        return status;
    *out = (struct epa_footprint){
        .heap_bytes = l.heap_bytes,
        .signals = l.signals,
        .u.moe.recv_rows = l.rows,
        .u.moe.recv_entries = l.entries,
        .u.moe.layout = (enum epa_layout)c->layout,
        .u.moe.recv_dtype = l.fp8 ? EPA_FP8_E4M3 : l.dtype,
        .u.moe.sum = l.dedup && !l.by_rank ? EPA_SUM_BY_RANK : EPA_SUM_ORDERED,
        .u.moe.output_dtype = l.output_fp8 ? EPA_FP8_E4M3 : l.dtype,
        .u.moe.dedup = l.dedup,
        .u.moe.fused = l.fused,
        .in_flight = l.buffers,
        .u.moe.dispatch_row_bytes =
            l.device && l.dedup && !l.by_rank ? l.units * l.unit_bytes : l.message_bytes,
        .u.moe.dispatch_token_bytes = l.token_bytes,
        .u.moe.combine_row_bytes = l.sent_bytes,
        .u.moe.combine_token_bytes = l.output_fp8 ? l.hidden : l.output_bytes,
        .u.moe.control_bytes = (uint64_t)l.count_words * 4 + LL_SIGNALS * 8 +
                               (l.device ? l.routes_bytes / l.size : 0),
    };
    return EPA_OK;
}

static enum epa_status create(const struct epa_algorithm_params *p,
                              struct epa_algorithm **out, struct epa_error *err)
{
    struct ll_layout l;
    enum epa_status status = ll_layout_make(&p->problem->u.moe, &p->world,
                                            p->transport_flags, p->config, &l, err);

    if (status != EPA_OK)
        return status;
    return p->backend->memory == EPA_MEMORY_CUDA ? ll_cuda_create(p, &l, out, err)
                                                 : ll_host_create(p, &l, out, err);
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "ll_v2",
               .summary =
                   "low-latency all-to-all: rows straight to where experts read them",
               .options = {options, sizeof(struct ll_config), &defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST | LL_CUDA_MEMORY,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE | EPA_TRANSPORT_LOAD_STORE,
    .plan = plan,
    .create = create,
};
