/* token_flag: descriptor, options and footprint, for hosts and GPUs. */
#include "token_flag_cuda.h"
#include "token_flag_host.h"
#include "token_flag_layer.h"
#include "token_flag_layout.h"

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
    {.name = "parts",
     EPA_U32(struct tf_config, parts),
     .max = 1024,
     .help = "0: the caller runs the experts between dispatch and combine; N: one stage computes "
             "the layer in N parts of the tokens, at most moe.max_tokens: the experts of a part "
             "run while the next part is dispatched and the previous part is combined",
     .tune = "0 2 4"},
    ALGO_OPTION_NONTEMPORAL(struct tf_config, algo_plain_nontemporal_choices,
                            "stores that write rows"),
    ALGO_OPTION_BUFFERS(struct tf_config),
    ALGO_OPTION_BLOCKS(struct tf_config),
    {.name = "kernel_blocks",
     EPA_U32_LIST(struct tf_config, kernel_blocks),
     .min = 1,
     .max = 65535,
     .help = "on GPUs, maximum number of thread blocks of dispatch_send, dispatch_recv, "
             "combine_send and combine_recv: a list of four",
     .tune = "cuda: [33,33,33,33] [66,66,66,66] [132,132,132,132] [264,264,264,264]"},
    {.name = "kernel_warps",
     EPA_U32_LIST(struct tf_config, kernel_warps),
     .min = 2,
     .max = 16,
     .help = "on GPUs, number of warps per thread block of dispatch_send, dispatch_recv, "
             "combine_send and combine_recv: a list of four; 8 each if absent",
     .tune = "cuda: [4,4,4,4] [8,8,8,8] [16,16,16,16] [8,8,8,16]"},
    {0},
};

static uint64_t private_bytes(const struct tf_layout *l)
{
    return l->message_bytes + (uint64_t)l->experts * 2 +
           (uint64_t)l->local * (4 + l->buffers * 12) + (uint64_t)l->size * (20 + l->local * 8);
}

/* Maximum of trace events of a rank with one worker. Each token is sent and reduced, each row is
 * waited for and sent back, and each of these has arrows. */
static uint64_t trace_events(const struct tf_layout *l)
{
    uint64_t dispatches = l->parts != 0 ? l->parts : 1;

    return dispatches * (2 * (uint64_t)l->max_tokens * (1 + 2 * l->topk) + 4 * l->rows);
}

static const char *const layer_names[] = {"layer", NULL};

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
    bool layer;

    if (status != EPA_OK)
        return status;
    layer = l.parts != 0;
    *out = (struct epa_footprint){
        .heap_bytes = l.heap_bytes,
        .device_bytes = TF_CUDA_MEMORY != 0 && l.device
                            ? tf_cuda_bytes(m, &l) +
                                  (l.far ? algo_mirrors_bytes(l.heap_bytes, l.signals,
                                                              world->size - world->local_size)
                                         : 0)
                            : 0,
        .trace_events = l.device ? 0 : trace_events(&l),
        .private_bytes = l.device ? 0 : private_bytes(&l) + (layer ? tf_layer_bytes(m, &l, 1) : 0),
        .worker_bytes =
            l.device || !layer ? 0 : tf_layer_bytes(m, &l, 2) - tf_layer_bytes(m, &l, 1),
        .signals = l.signals,
        .stages = layer ? layer_names : stage_names,
        .flops = layer && m->mlp.ffn != 0 ? 2.0 * m->max_tokens * m->topk * m->hidden *
                                                ((double)epa_mlp_up_rows(&m->mlp) + m->mlp.ffn)
                                          : 0,
        .u.moe.recv_rows = l.rows,
        .u.moe.recv_entries = l.rows,
        .u.moe.layout = EPA_LAYOUT_EXPERT,
        .u.moe.recv_dtype = l.fp8 ? EPA_FP8_E4M3 : (enum epa_dtype)m->dtype,
        .u.moe.sum = EPA_SUM_ORDERED,
        .u.moe.output_dtype = (enum epa_dtype)m->dtype,
        .u.moe.fp8_sum_bits =
            layer && l.device && m->mlp.dtype == EPA_FP8_E4M3 ? EPA_EXPERTS_FP8_SUM_BITS : 0,
        .u.moe.fused = l.fused || layer,
        .in_flight = layer ? 1 : l.buffers,
        .discards = l.device && l.buffers > 1 && !layer,
        .u.moe.dispatch_row_bytes = l.wire_bytes + (l.row_signals != 0 ? TF_FLAG_BYTES : 0),
        .u.moe.dispatch_token_bytes = l.token_bytes,
        .u.moe.combine_row_bytes = l.device ? l.slot_bytes : l.output_bytes + TF_FLAG_BYTES,
        .u.moe.combine_token_bytes = l.output_bytes,
        .u.moe.control_bytes = (layer ? l.parts : 1) * ((uint64_t)l.count_words * 4 + 8),
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
