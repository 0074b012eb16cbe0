/* ll_v2: descriptor, options and footprint, for hosts and GPUs. */
#include "ll_v2_cuda.h"
#include "ll_v2_host.h"
#include "ll_v2_layout.h"

#include "../../common/algo_host.h"

static const struct ll_config defaults = {
    .dispatch_dtype = ALGO_DTYPE_FP8,
    .combine_dtype = ALGO_DTYPE_NATIVE,
    .layout = EPA_LAYOUT_EXPERT,
    .combine_dedup = true,
    .recv_layout = LL_RECV_PACKED,
    .buffers = 2,
    .nontemporal = ALGO_NONTEMPORAL_AUTO,
    .pdl = true,
};

static const struct epa_choice layouts[] = {
    {"expert", EPA_LAYOUT_EXPERT, "one row for each expert of a token"},
    {"rank", EPA_LAYOUT_RANK,
     "one row for each destination rank of a token, with an "
     "index for its experts"},
    {0},
};

static const struct epa_choice row_starts[] = {
    {"packed", LL_RECV_PACKED, "contiguous, one expert after the other"},
    {"padded", LL_RECV_PADDED,
     "at a fixed stride, with room for the maximum of an "
     "expert"},
    {0},
};

static const struct epa_choice row_orders[] = {
    {"any", EPA_ROWS_ANY, "where they arrive, at a fixed place for each token"},
    {"packed", EPA_ROWS_PACKED, "by source rank, then by token, without gaps"},
    {"padded", EPA_ROWS_PADDED,
     "the same, except that the rows of a source begin at a multiple of "
     "max_tokens"},
    {0},
};

static const struct epa_choice returns[] = {
    {"auto", LL_COMBINE_AUTO,
     "push if outputs are reduced or quantised first, or with many tokens; else pull"},
    {"pull", LL_COMBINE_PULL, "the token's rank loads expert outputs from their source"},
    {"push", LL_COMBINE_PUSH,
     "the experts' rank stores expert outputs at the token's "
     "rank"},
    {0},
};

static const struct epa_option options[] = {
    ALGO_OPTION_DISPATCH_DTYPE(struct ll_config),
    {.name = "combine_dtype",
     EPA_CHOICE(struct ll_config, combine_dtype),
     .choices = algo_dtype_choices,
     .help = "data type of expert outputs in combine",
     .tune = "*"},
    {.name = "layout",
     EPA_CHOICE(struct ll_config, layout),
     .choices = layouts,
     .help = "layout of the rows that dispatch returns",
     .tune = "*"},
    {.name = "dedup",
     EPA_BOOL(struct ll_config, dedup),
     .help = "with layout: expert, send a token once per destination rank; the receiver "
             "replicates it to its experts and reduces their outputs into one row",
     .tune = "*"},
    {.name = "combine_dedup",
     EPA_BOOL(struct ll_config, combine_dedup),
     .help = "on GPUs with dedup: true, return one reduced row per rank; false: the outputs of "
             "experts, to which combine applies the weights at the token's rank",
     .tune = "cuda: *"},
    {.name = "recv_layout",
     EPA_CHOICE(struct ll_config, recv_layout),
     .choices = row_starts,
     .help = "placement of the rows of an expert",
     .tune = "*"},
    {.name = "row_order",
     EPA_CHOICE(struct ll_config, row_order),
     .choices = row_orders,
     .help =
         "on GPUs with layout: rank, order of the rows, to which dispatch copies them; entries are "
         "then packed"},
    {.name = "fuse_expert",
     EPA_BOOL(struct ll_config, fuse_expert),
     .help = "on GPUs, compute the synthetic expert within combine",
     .tune = "cuda: *"},
    ALGO_OPTION_BUFFERS(struct ll_config),
    ALGO_OPTION_NONTEMPORAL(struct ll_config, algo_nontemporal_choices,
                            "stores that write rows to other ranks"),
    ALGO_OPTION_CAPACITY(struct ll_config, "received rows"),
    {.name = "split_phase",
     EPA_BOOL(struct ll_config, split_phase),
     .help = "on GPUs, separate send and receive kernels, so that the caller can "
             "compute in between"},
    {.name = "combine_mode",
     EPA_CHOICE(struct ll_config, combine_mode),
     .choices = returns,
     .help = "on GPUs, direction of the transfer of expert outputs",
     .tune = "cuda: *"},
    ALGO_OPTION_PDL(struct ll_config),
    ALGO_OPTION_BLOCKS(struct ll_config),
    {.name = "masks",
     EPA_U64(struct ll_config, masks),
     .help =
         "on GPUs with combine_dedup: false, address of int32 [ranks] in memory of the GPU, for "
         "callers of epa2a.h: a rank with the value 1 takes no part, and a kernel whose wait for "
         "a rank times out sets 1"},
    {0},
};

static const char *const stage_names[] = {"dispatch", "combine", NULL};
static const char *const half_names[] = {"dispatch_send", "dispatch_recv", "combine_send",
                                         "combine_recv", NULL};

/* Returns the bytes of a row that a GPU sends as lines, in parts of `each` channels. */
static uint64_t line_bytes(const struct ll_layout *l, uint32_t each, bool is_output)
{
    uint64_t sum = 0;

    for (uint32_t at = 0; at < l->hidden; at += each) {
        uint32_t n = l->hidden - at < each ? l->hidden - at : each;
        uint32_t scales = l->fp8 ? n / l->group : 0, bytes = n * (l->fp8 ? 1 : 2);

        if (!is_output)
            sum += epa_packets_of(ll_payload_of(l->topk, scales, bytes).bytes);
        else if (l->output_fp8)
            sum += ll_code_packets(n, l->group);
        else
            sum += epa_packets_of(2 * n);
    }
    return sum * EPA_PACKET;
}

/* Sets the bytes that cross to another GPU of the node, and bytes of puts to other nodes
 * (ll_v2_far.cu). An expert output that is pulled is a load by the token's rank; with fuse_expert,
 * that rank loads the received row. */
static void fill_device_traffic(const struct ll_layout *l, struct epa_moe_footprint *out)
{
    uint64_t scales = l->fp8 ? l->hidden / l->group * sizeof(float) : 0;
    uint64_t row = l->token_bytes + scales, flags = l->row_signals * sizeof(uint64_t);

    if (!l->dedup) {
        out->dispatch_row_bytes = row + LL_META_BYTES + flags;
        out->control_bytes = l->experts * sizeof(struct ll_packet);
    } else {
        bool signals = l->by_rank && !l->few;

        out->dispatch_row_bytes = signals ? row + flags : line_bytes(l, l->unit_channels, false);
        out->choice_bytes = signals ? sizeof(struct ll_packet) : 0;
        out->control_bytes = (l->few ? 0 : l->local * sizeof(struct ll_packet)) +
                             l->routes_bytes / l->size + /* counts, routes */
                             l->totals_bytes / l->size;
    }
    out->dispatch_staged = l->order != EPA_ROWS_ANY || (l->dedup && !l->by_rank) || l->few;
    out->combine_staged = l->pushes;
    out->combine_row_bytes = l->pushes  ? line_bytes(l, l->share_channels, true)
                             : l->fused ? row
                                        : l->output_bytes;
    if (!l->puts)
        return;
    out->far_dispatch_row_bytes = l->by_rank ? l->message_bytes : l->units * l->unit_bytes;
    out->far_combine_row_bytes = l->sent_bytes;
    out->far_control_bytes = out->control_bytes + 2 * sizeof(uint64_t); /* a signal per stage */
}

static enum epa_status plan_ll_v2(const struct epa_problem *problem, const struct epa_world *world,
                                  uint32_t transport_flags, const void *config,
                                  struct epa_footprint *out, struct epa_error *err)
{
    const struct ll_config *c = config;
    struct ll_layout l;
    enum epa_status status = ll_layout_make(&problem->u.moe, world, transport_flags, c, &l, err);

    if (status != EPA_OK)
        return status;
    *out = (struct epa_footprint){
        .heap_bytes = l.heap_bytes,
        .device_bytes =
            LL_CUDA_MEMORY != 0 && l.device
                ? ll_cuda_bytes(&l) + (l.puts ? algo_mirrors_bytes(l.heap_bytes, l.signals,
                                                                   world->size - world->local_size)
                                              : 0)
                : 0,
        .signals = l.signals,
        .stages = l.device && c->split_phase ? half_names : stage_names,
        .u.moe.recv_rows = l.rows,
        .u.moe.recv_entries = l.entries,
        .u.moe.layout = (enum epa_layout)c->layout,
        .u.moe.row_order = l.order,
        .u.moe.recv_dtype = l.fp8 ? EPA_FP8_E4M3 : l.dtype,
        .u.moe.sum = l.dedup && !l.by_rank && !l.by_choice ? EPA_SUM_BY_RANK : EPA_SUM_ORDERED,
        .u.moe.output_dtype = l.output_fp8 ? EPA_FP8_E4M3 : l.dtype,
        .u.moe.dispatch_dedup = l.dedup,
        .u.moe.combine_dedup = l.dedup && !l.by_choice,
        .u.moe.direct = l.device && l.dedup && !l.by_rank && !l.fused && !l.puts,
        .u.moe.fused = l.fused,
        .in_flight = l.buffers,
        .discards = l.device && l.buffers > 1,
        .combines_again = l.device,
        .u.moe.dispatch_row_bytes =
            l.device && l.dedup && !l.by_rank ? l.units * l.unit_bytes : l.message_bytes,
        .u.moe.dispatch_token_bytes = l.token_bytes,
        .u.moe.combine_row_bytes = l.sent_bytes,
        .u.moe.combine_token_bytes = l.output_fp8 ? l.hidden : l.output_bytes,
        .u.moe.control_bytes = l.published ? l.routes_bytes + 2 * 8
                                           : (uint64_t)l.count_words * 4 + LL_SIGNALS * 8 +
                                                 (l.device ? l.routes_bytes / l.size : 0),
    };
    if (l.device)
        fill_device_traffic(&l, &out->u.moe);
    return EPA_OK;
}

static enum epa_status create_ll_v2(const struct epa_algorithm_params *p,
                                    struct epa_algorithm **out, struct epa_error *err)
{
    struct ll_layout l;
    enum epa_status status =
        ll_layout_make(&p->problem->u.moe, &p->world, p->transport_flags, p->config, &l, err);

    if (status != EPA_OK)
        return status;
    /* Builds without a CUDA compiler do not define ll_cuda_create(). */
    return LL_CUDA_MEMORY != 0 && p->backend->memory == EPA_MEMORY_CUDA
               ? ll_cuda_create(p, &l, out, err)
               : ll_host_create(p, &l, out, err);
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "ll_v2",
               .summary = "low-latency all-to-all that stores rows where experts read them",
               .options = {options, sizeof(struct ll_config), &defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST | LL_CUDA_MEMORY,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE,
    .plan = plan_ll_v2,
    .create = create_ll_v2,
};
