/* ll_v2: the descriptor and the options. */
#include "ll_v2.h"

static const struct ll_config defaults = {
    .wire = LL_WIRE_FP8,
    .combine_wire = LL_WIRE_DTYPE,
    .layout = EPA_LAYOUT_EXPERT,
    .rows = LL_ROWS_COMPACT,
    .buffers = 2,
    .stores = LL_STORES_AUTO,
    .overlap = LL_OVERLAP_FUSED,
    .launch = LL_LAUNCH_EARLY,
};

static const struct epa_choice wires[] = {
    {"fp8", LL_WIRE_FP8, "e4m3 with a scale for each group, quantised on the way"},
    {"dtype", LL_WIRE_DTYPE, "as the tokens are"},
    {0},
};

static const struct epa_choice layouts[] = {
    {"expert", EPA_LAYOUT_EXPERT, "a row for each expert that wants a token"},
    {"rank", EPA_LAYOUT_RANK, "a token once for each rank, with an index for its experts"},
    {0},
};

static const struct epa_choice row_starts[] = {
    {"compact", LL_ROWS_COMPACT, "one expert's rows after the other's"},
    {"padded", LL_ROWS_PADDED, "evenly apart, with room for the most an expert can get"},
    {0},
};

static const struct epa_choice experts[] = {
    {"apart", LL_EXPERT_APART, "between dispatch and combine, by others"},
    {"fused", LL_EXPERT_FUSED, "in combine, of the rows that came"},
    {0},
};

static const struct epa_choice returns[] = {
    {"auto", LL_ANSWERS_AUTO,
     "push what is added up or quantised first, or many tokens; else pull"},
    {"pull", LL_ANSWERS_PULL, "the token's rank loads them from where experts wrote them"},
    {"push", LL_ANSWERS_PUSH, "the experts' rank stores them at the token's"},
    {0},
};

static const struct epa_choice launches[] = {
    {"early", LL_LAUNCH_EARLY, "while the one before it still runs"},
    {"after", LL_LAUNCH_AFTER, "when the one before it has ended"},
    {0},
};

static const struct epa_choice overlaps[] = {
    {"fused", LL_OVERLAP_FUSED, "a stage is one kernel"},
    {"split", LL_OVERLAP_SPLIT,
     "sending and receiving are two, and others may run between"},
    {0},
};

static const struct epa_choice stores[] = {
    {"auto", LL_STORES_AUTO, "by size; in between the first dispatches try both"},
    {"cached", LL_STORES_CACHED, "ordinary stores"},
    {"stream", LL_STORES_STREAM, "past the cache"},
    {0},
};

static const struct epa_choice put_sizes[] = {
    {"auto", LL_PUTS_AUTO, "blocks where a token crosses once for each rank, else rows"},
    {"rows", LL_PUTS_ROWS, "each for itself"},
    {"blocks", LL_PUTS_BLOCKS, "those that stand side by side at the receiver together"},
    {0},
};

static const struct epa_option options[] = {
    {.name = "wire",
     EPA_CHOICE(struct ll_config, wire),
     .choices = wires,
     .help = "what dispatch sends"},
    {.name = "combine_wire",
     EPA_CHOICE(struct ll_config, combine_wire),
     .choices = wires,
     .help = "what combine sends"},
    {.name = "layout",
     EPA_CHOICE(struct ll_config, layout),
     .choices = layouts,
     .help = "what a rank gets out of dispatch"},
    {.name = "once",
     EPA_BOOL(struct ll_config, once),
     .help =
         "with layout: expert, a token crosses once for each rank that wants it, and is "
         "copied to its experts there; their answers are added up before they return"},
    {.name = "rows",
     EPA_CHOICE(struct ll_config, rows),
     .choices = row_starts,
     .help = "where the rows of an expert start"},
    {.name = "expert",
     EPA_CHOICE(struct ll_config, expert),
     .choices = experts,
     .help = "where the experts' work is done"},
    {.name = "buffers",
     EPA_U32(struct ll_config, buffers),
     .min = 1,
     .max = 2,
     .help =
         "buffer sets; with 2 a dispatch may start before the combine of the one before, "
         "1 takes half the memory"},
    {.name = "stores",
     EPA_CHOICE(struct ll_config, stores),
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
    {.name = "overlap",
     EPA_CHOICE(struct ll_config, overlap),
     .choices = overlaps,
     .help = "on GPUs, whether a caller can compute between the halves of a stage"},
    {.name = "answers",
     EPA_CHOICE(struct ll_config, answers),
     .choices = returns,
     .help = "on GPUs, how answers come back"},
    {.name = "launch",
     EPA_CHOICE(struct ll_config, launch),
     .choices = launches,
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
        .recv_rows = l.rows,
        .recv_entries = l.entries,
        .layout = (enum epa_layout)c->layout,
        .recv_dtype = l.fp8 ? EPA_FP8_E4M3 : l.dtype,
        .sum = l.once && !l.by_rank ? EPA_SUM_BY_RANK : EPA_SUM_ORDERED,
        .answer_dtype = l.answer_fp8 ? EPA_FP8_E4M3 : l.dtype,
        .once = l.once,
        .fused = l.fused,
        .in_flight = l.buffers,
        .dispatch_row_bytes =
            l.device && l.once && !l.by_rank ? l.units * l.unit_bytes : l.message_bytes,
        .dispatch_token_bytes = l.token_bytes,
        .combine_row_bytes = l.sent_bytes,
        .combine_token_bytes = l.answer_fp8 ? l.hidden : l.answer_bytes,
        .control_bytes = (uint64_t)l.count_words * 4 + LL_SIGNALS * 8 +
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
