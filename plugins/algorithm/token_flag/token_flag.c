/* token_flag: descriptor, options and the layout of the heap. */
#include "token_flag.h"

#include "../../common/algo_host.h"

static const struct tf_config defaults = {
    .dispatch_dtype = ALGO_DTYPE_NATIVE,
    .flag_granularity = TF_FLAG_PER_TOKEN,
    .counter_reset = TF_COUNTER_RESET_INLINE,
    .work_partition = TF_PARTITION_FLAT,
    .nontemporal = TF_NONTEMPORAL_OFF,
    .chunks = 1,
    .buffers = 2,
};

static const struct epa_choice locks[] = {
    {"rank", TF_FLAG_PER_RANK, "one flag per source, after all its rows"},
    {"token", TF_FLAG_PER_TOKEN, "one flag per row; counts are sent concurrently"},
    {0},
};

static const struct epa_choice resets[] = {
    {"memset", TF_COUNTER_RESET_MEMSET, "in a separate pass before dispatch_send"},
    {"inline", TF_COUNTER_RESET_INLINE, "by the other half of dispatch, as part of its work"},
    {0},
};

static const struct epa_choice splits[] = {
    {"by_source", TF_PARTITION_BY_SOURCE,
     "a worker takes the rows of one source, and the expert outputs of one expert"},
    {"flat", TF_PARTITION_FLAT, "workers take all rows, and all expert outputs, in turn"},
    {0},
};

static const struct epa_option options[] = {
    ALGO_OPTION_DISPATCH_DTYPE(struct tf_config),
    {.name = "flag_granularity",
     EPA_CHOICE(struct tf_config, flag_granularity),
     .choices = locks,
     .help = "rows that one flag of dispatch covers; combine has one flag per expert "
             "output",
     .tune = "*"},
    {.name = "fuse_expert",
     EPA_BOOL(struct tf_config, fuse_expert),
     .help = "compute the synthetic expert within combine",
     .tune = "*"},
    {.name = "counter_reset",
     EPA_CHOICE(struct tf_config, counter_reset),
     .choices = resets,
     .help = "method that clears counters for the next iteration",
     .tune = "*"},
    {.name = "work_partition",
     EPA_CHOICE(struct tf_config, work_partition),
     .choices = splits,
     .help = "division of received rows among the workers of a rank",
     .tune = "*"},
    {.name = "chunks",
     EPA_U32(struct tf_config, chunks),
     .min = 1,
     .max = 1024,
     .help = "number of chunks of tokens that dispatch_send sends; it receives rows "
             "between two chunks; more than 1 needs flag_granularity: token",
     .tune = "1 2 4 8"},
    ALGO_OPTION_NONTEMPORAL(struct tf_config, algo_plain_nontemporal_choices,
                            "stores that write rows"),
    ALGO_OPTION_BUFFERS(struct tf_config),
    ALGO_OPTION_BLOCKS(struct tf_config),
    {.name = "kernel_blocks",
     EPA_U32_LIST(struct tf_config, kernel_blocks),
     .min = 1,
     .max = 65535,
     .help = "on GPUs, maximum number of thread blocks of dispatch_send, dispatch_recv, "
             "combine_send and combine_recv: a list of four"},
    {.name = "kernel_warps",
     EPA_U32_LIST(struct tf_config, kernel_warps),
     .min = 2,
     .max = 16,
     .help = "on GPUs, number of warps per thread block of dispatch_send, dispatch_recv, "
             "combine_send and combine_recv: a list of four; 8 each if absent"},
    {0},
};

static enum epa_status check_problem(const struct epa_moe *m, const struct epa_world *world,
                                     bool device, const struct tf_config *c, struct epa_error *err)
{
    const struct algo_limits limits = {
        .name = "token_flag",
        .topk = TF_TOPK,
        .ranks = TF_RANKS,
        .device_experts = TF_DEVICE_EXPERTS,
        .fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8 ? "dispatch_dtype" : NULL,
        .native = c->dispatch_dtype == ALGO_DTYPE_NATIVE,
        .device_option = c->blocks != 0            ? "blocks"
                         : c->kernel_blocks.n != 0 ? "kernel_blocks"
                         : c->kernel_warps.n != 0  ? "kernel_warps"
                                                   : NULL,
        .host_option = c->nontemporal != TF_NONTEMPORAL_OFF ? "nontemporal" : NULL,
    };
    enum epa_status status = algo_check(&limits, m, world, device, err);

    if (status != EPA_OK)
        return status;
    for (int i = 0; i < 2; i++) {
        uint32_t n = i == 0 ? c->kernel_blocks.n : c->kernel_warps.n;

        if (n != 0 && n != TF_KERNELS)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "token_flag: algorithm.%s has %u numbers, but there are %d kernels",
                            i == 0 ? "kernel_blocks" : "kernel_warps", n, TF_KERNELS);
    }
    if (m->experts / world->size > TF_LOCAL)
        return epa_fail(err, EPA_ERR_CONFIG, "token_flag takes up to %d experts a rank, not %u",
                        TF_LOCAL, m->experts / world->size);
    /* Rows, and the signals of rows and expert outputs of two sets, have numbers below this
     * limit. */
    if ((uint64_t)(world->size + 1) * m->max_tokens * m->topk >= UINT32_MAX / 4)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag: ranks (%u) x moe.max_tokens (%u) x moe.topk (%u) exceeds the "
                        "32 bits of row and signal numbers; lower moe.max_tokens or moe.topk",
                        world->size, m->max_tokens, m->topk);
    if (c->chunks > 1 && c->flag_granularity == TF_FLAG_PER_RANK)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "token_flag: chunks: %u needs flag_granularity: token; with flag_granularity: rank "
            "a single flag follows the last row, so no chunk can be received before",
            c->chunks);
    return EPA_OK;
}

/* Computes the lines of a message and of an expert output. Checks the limits of kernels: part
 * numbers of 32 bits, and a message in the shared memory of a block. */
static enum epa_status size_lines(struct tf_layout *l, struct epa_error *err)
{
    uint64_t scales = l->fp8 ? l->hidden / l->group * sizeof(float) : 0, units;

    l->packets = epa_packets_of((uint32_t)(l->scales_at + scales) + 8 * TF_META_WORDS);
    l->output_packets = epa_packets_of((uint32_t)l->output_bytes);
    l->wire_bytes = (uint64_t)l->packets * EPA_PACKET;
    l->slot_bytes = (uint64_t)l->output_packets * EPA_PACKET;
    units = tf_units_of(l->packets > l->output_packets ? l->packets : l->output_packets);
    if (l->wire_bytes > TF_DEVICE_ROW)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag on GPUs keeps a message in shared memory, at most %d bytes; "
                        "with moe.hidden: %u a message has %llu",
                        TF_DEVICE_ROW, l->hidden, (unsigned long long)l->wire_bytes);
    if (l->rows * units >= UINT32_MAX / 2)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "token_flag on GPUs has 32 bits for numbers of parts, but %llu rows have %llu "
            "parts each; lower moe.max_tokens or moe.topk",
            (unsigned long long)l->rows, (unsigned long long)units);
    return EPA_OK;
}

static void size_messages(struct tf_layout *l)
{
    uint64_t scales = l->fp8 ? l->hidden / l->group * sizeof(float) : 0;

    l->output_bytes = 2 * (uint64_t)l->hidden;
    l->token_bytes = l->fp8 ? l->hidden : l->output_bytes;
    l->scales_at = l->token_bytes;
    l->message_bytes = epa_round_up(l->scales_at + scales + TF_META_BYTES, TF_LINE);
    l->meta_at = l->message_bytes - TF_META_BYTES;
    l->slot_bytes = epa_round_up(l->output_bytes + TF_FLAG_BYTES, TF_LINE);
    l->wire_bytes = l->message_bytes;
}

static void place_regions(struct tf_layout *l)
{
    uint64_t flat = (uint64_t)l->max_tokens * l->topk, end = 0;

    l->counts_bytes = epa_round_up((uint64_t)l->size * l->count_words * 4, TF_LINE);
    if (!l->device) /* on GPUs, a block sends counts from its shared memory */
        l->reported_bytes = l->counts_bytes;
    l->comm_bytes = l->rows * l->wire_bytes;
    l->grouped_bytes = l->rows * l->message_bytes;
    if (!l->fused || l->puts) /* buffer for the experts, or for expert outputs before their puts */
        l->y_bytes = epa_round_up(l->rows * l->output_bytes, TF_LINE);
    l->outputs_bytes = (l->far ? l->rows : flat) * l->slot_bytes;
    if (l->puts)
        l->staging_bytes = flat * l->message_bytes;
    l->reported_at = algo_place(&end, l->reported_bytes, 1);
    l->counts_at = algo_place(&end, l->counts_bytes, 2);
    l->comm_at = algo_place(&end, l->comm_bytes, l->buffers);
    l->grouped_at = algo_place(&end, l->grouped_bytes, l->buffers);
    l->y_at = algo_place(&end, l->y_bytes, l->buffers);
    l->outputs_at = algo_place(&end, l->outputs_bytes, l->buffers);
    l->staging_at = algo_place(&end, l->staging_bytes, 1);
    l->heap_bytes = epa_round_up(end, TF_PAGE);
}

enum epa_status tf_layout_make(const struct epa_moe *m, const struct epa_world *world,
                               uint32_t transport_flags, const struct tf_config *c,
                               struct tf_layout *out, struct epa_error *err)
{
    bool device = (transport_flags & EPA_TRANSPORT_DEVICE) != 0;
    struct tf_layout l = {
        .size = world->size,
        .experts = m->experts,
        .max_tokens = m->max_tokens,
        .topk = m->topk,
        .hidden = m->hidden,
        .group = m->fp8_group_size,
        .buffers = c->buffers,
        .chunks = c->chunks,
        .fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8,
        .by_token = c->flag_granularity == TF_FLAG_PER_TOKEN,
        .fused = c->fuse_expert,
        .folded = c->counter_reset == TF_COUNTER_RESET_INLINE,
        .flat = c->work_partition == TF_PARTITION_FLAT,
        .device = device,
    };
    enum epa_status status = check_problem(m, world, device, c, err);

    if (status != EPA_OK)
        return status;
    l.local = m->experts / world->size;
    l.puts = !device && algo_puts(world, transport_flags);
    l.far = device && algo_puts(world, transport_flags);
    l.source_rows = m->max_tokens * (m->topk < l.local ? m->topk : l.local);
    l.count_words = device ? 2 * l.local : 1 + l.local;
    l.rows = (uint64_t)l.size * l.source_rows;
    size_messages(&l);
    if (device)
        status = size_lines(&l, err);
    if (status != EPA_OK)
        return status;
    if (l.source_rows >= (1u << TF_ROW_BITS) - 1)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag has %d bits for the number of rows to a rank, which may be %u; "
                        "lower moe.max_tokens (%u) or moe.topk (%u)",
                        TF_ROW_BITS, l.source_rows, m->max_tokens, m->topk);
    place_regions(&l);
    l.row_signals = l.puts && l.by_token ? l.size * l.source_rows : 0;
    l.output_signals = l.puts ? m->max_tokens * m->topk : 0;
    l.signals = (!l.far         ? 2
                 : l.chunks > 1 ? 5
                                : 3) *
                    l.size +
                l.buffers * (l.row_signals + l.output_signals);
    *out = l;
    return EPA_OK;
}

static uint64_t private_bytes(const struct tf_layout *l)
{
    return l->message_bytes + (uint64_t)l->experts * 2 +
           (uint64_t)l->local * (4 + l->buffers * 12) + (uint64_t)l->size * 20;
}

/* Maximum of trace events of a rank with one worker. Each token is sent and reduced, each row is
 * waited for and sent back, and each of these has arrows. */
static uint64_t trace_events(const struct tf_layout *l)
{
    return 2 * (uint64_t)l->max_tokens * (1 + 2 * l->topk) + 4 * l->rows;
}

static const char *const stage_names[] = {"dispatch_send", "dispatch_recv", "combine_send",
                                          "combine_recv", NULL};

static enum epa_status plan_token_flag(const struct epa_problem *problem,
                                       const struct epa_world *world, uint32_t transport_flags,
                                       const void *config, struct epa_footprint *out,
                                       struct epa_error *err)
{
    const struct epa_moe *m = &problem->u.moe;
    struct tf_layout l;
    enum epa_status status = tf_layout_make(m, world, transport_flags, config, &l, err);

    if (status != EPA_OK)
        return status;
    *out = (struct epa_footprint){
        .heap_bytes = l.heap_bytes,
        .device_bytes =
            TF_CUDA_MEMORY != 0 && l.device
                ? tf_cuda_bytes(&l) + (l.far ? algo_mirrors_bytes(l.heap_bytes, l.signals,
                                                                  world->size - world->local_size)
                                             : 0)
                : 0,
        .trace_events = l.device ? 0 : trace_events(&l),
        .private_bytes = l.device ? 0 : private_bytes(&l),
        .signals = l.signals,
        .stages = stage_names,
        .u.moe.recv_rows = l.rows,
        .u.moe.recv_entries = l.rows,
        .u.moe.layout = EPA_LAYOUT_EXPERT,
        .u.moe.recv_dtype = l.fp8 ? EPA_FP8_E4M3 : (enum epa_dtype)m->dtype,
        .u.moe.sum = EPA_SUM_ORDERED,
        .u.moe.output_dtype = (enum epa_dtype)m->dtype,
        .u.moe.fused = l.fused,
        .in_flight = l.buffers,
        .discards = l.device && l.buffers > 1,
        .u.moe.dispatch_row_bytes = l.wire_bytes + (l.row_signals != 0 ? TF_FLAG_BYTES : 0),
        .u.moe.dispatch_token_bytes = l.token_bytes,
        .u.moe.combine_row_bytes = l.device ? l.slot_bytes : l.output_bytes + TF_FLAG_BYTES,
        .u.moe.combine_token_bytes = l.output_bytes,
        .u.moe.control_bytes = (uint64_t)l.count_words * 4 + 8,
    };
    return EPA_OK;
}

static enum epa_status create_token_flag(const struct epa_algorithm_params *p,
                                         struct epa_algorithm **out, struct epa_error *err)
{
    struct tf_layout l;
    enum epa_status status =
        tf_layout_make(&p->problem->u.moe, &p->world, p->transport_flags, p->config, &l, err);

    if (status != EPA_OK)
        return status;
    /* Builds without a CUDA compiler do not define tf_cuda_create(). */
    return TF_CUDA_MEMORY != 0 && p->backend->memory == EPA_MEMORY_CUDA
               ? tf_cuda_create(p, &l, out, err)
               : tf_host_create(p, &l, out, err);
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "token_flag", .summary = "all-to-all in four stages, with a flag per row",
               .options = {options, sizeof(struct tf_config), &defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST | TF_CUDA_MEMORY,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE,
    .plan = plan_token_flag,
    .create = create_token_flag,
};
