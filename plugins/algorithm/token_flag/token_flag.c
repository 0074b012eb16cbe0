/* token_flag: the descriptor, the options and the layout of the heap. */
#include "token_flag.h"

static const struct tf_config defaults = {
    .dispatch_dtype = TF_DTYPE_NATIVE,
    .flag_granularity = TF_FLAG_PER_TOKEN,
    .counter_reset = TF_COUNTER_RESET_INLINE,
    .work_partition = TF_PARTITION_FLAT,
    .nontemporal = TF_NONTEMPORAL_OFF,
    .chunks = 1,
    .buffers = 2,
};

static const struct epa_choice wires[] = {
    {"fp8", TF_DTYPE_FP8, "e4m3 with a scale for each group, quantised on the way"},
    {"native", TF_DTYPE_NATIVE, "as the tokens are"},
    {0},
};

static const struct epa_choice locks[] = {
    {"rank", TF_FLAG_PER_RANK, "a flag for each source, after all its rows"},
    {"token", TF_FLAG_PER_TOKEN, "a flag for each row; counts are sent meanwhile"},
    {0},
};


static const struct epa_choice resets[] = {
    {"memset", TF_COUNTER_RESET_MEMSET, "in a pass of its own before dispatch_send"},
    {"inline", TF_COUNTER_RESET_INLINE, "by the other half of dispatch, along with its work"},
    {0},
};

static const struct epa_choice splits[] = {
    {"by_source", TF_PARTITION_BY_SOURCE,
     "a worker takes the rows of a source, and the expert outputs of an expert"},
    {"flat", TF_PARTITION_FLAT, "workers take all rows in turn, and all expert outputs"},
    {0},
};

static const struct epa_choice stores[] = {
    {"off", TF_NONTEMPORAL_OFF, "ordinary stores"},
    {"on", TF_NONTEMPORAL_ON, "past the cache"},
    {0},
};

static const struct epa_option options[] = {
    {.name = "dispatch_dtype",
     EPA_CHOICE(struct tf_config, dispatch_dtype),
     .choices = wires,
     .help = "what dispatch sends"},
    {.name = "flag_granularity",
     EPA_CHOICE(struct tf_config, flag_granularity),
     .choices = locks,
     .help = "what a flag of dispatch vouches for; combine has one for each expert output"},
    {.name = "fuse_expert",
     EPA_BOOL(struct tf_config, fuse_expert),
     .help = "where the experts' work is done"},
    {.name = "counter_reset",
     EPA_CHOICE(struct tf_config, counter_reset),
     .choices = resets,
     .help = "how counters are zero again for the next iteration"},
    {.name = "work_partition",
     EPA_CHOICE(struct tf_config, work_partition),
     .choices = splits,
     .help = "how what a rank receives is divided among its workers"},
    {.name = "chunks",
     EPA_U32(struct tf_config, chunks),
     .min = 1,
     .max = 1024,
     .help = "parts of the tokens that dispatch_send sends in turn; between two of them it "
             "takes in what has come; more than 1 needs flag_granularity: token"},
    {.name = "nontemporal",
     EPA_CHOICE(struct tf_config, nontemporal),
     .choices = stores,
     .help = "how rows are written"},
    {.name = "buffers",
     EPA_U32(struct tf_config, buffers),
     .min = 1,
     .max = 2,
     .help =
         "buffer sets; with 2 a dispatch may start before the combine of the one before, "
         "1 takes half the memory"},
    {.name = "blocks",
     EPA_U32(struct tf_config, blocks),
     .max = 65535,
     .help =
         "on GPUs, thread blocks of a kernel at most, to leave multiprocessors to others; "
         "0 takes two for each"},
    {.name = "profile",
     EPA_STRING(struct tf_config, profile),
     .help =
         "on GPUs, where to write when each warp did what in the last iteration: a Chrome "
         "trace for each rank, FILE.0.json and so on"},
    {0},
};

static uint64_t up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

static uint64_t place(uint64_t *end, uint64_t bytes, uint32_t times)
{
    uint64_t at = up(*end, TF_PAGE);

    *end = at + bytes * times;
    return at;
}

static enum epa_status check_limits(const struct epa_moe *m, const struct epa_world *world,
                                    struct epa_error *err)
{
    if (m->topk == 0 || m->topk > TF_TOPK)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag takes moe.topk from 1 to %d, not %u", TF_TOPK, m->topk);
    if (world->size > TF_RANKS)
        return epa_fail(err, EPA_ERR_CONFIG, "token_flag takes 1 to %d ranks, not %u",
                        TF_RANKS, world->size);
    if (m->experts == 0 || m->experts % world->size != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag needs moe.experts (%u) to be a multiple of ranks (%u)",
                        m->experts, world->size);
    if (m->experts / world->size > TF_LOCAL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag takes up to %d experts a rank, not %u", TF_LOCAL,
                        m->experts / world->size);
    /* Rows, and the signals of rows and expert outputs in two sets. */
    if ((uint64_t)(world->size + 1) * m->max_tokens * m->topk >= UINT32_MAX / 4)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "token_flag numbers rows and signals in 32 bits, which ranks (%u) x "
            "moe.max_tokens (%u) x moe.topk (%u) exceed",
            world->size, m->max_tokens, m->topk);
    return EPA_OK;
}

static enum epa_status check_shape(const struct epa_moe *m, const struct tf_config *c,
                                   struct epa_error *err)
{
    if (m->dtype != EPA_BF16 && m->dtype != EPA_F16)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag moves tokens of 16 bits; set moe.dtype: bf16 or f16");
    if (m->hidden == 0 || m->hidden % 16 != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag needs moe.hidden (%u) to be a multiple of 16",
                        m->hidden);
    if (c->dispatch_dtype == TF_DTYPE_FP8 && (m->fp8_group_size == 0 || m->hidden % m->fp8_group_size != 0))
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "token_flag with dispatch_dtype: fp8 needs moe.hidden (%u) to be a multiple of moe.fp8_group_size "
            "(%u); choose another group or dispatch_dtype: native",
            m->hidden, m->fp8_group_size);
    if (c->dispatch_dtype == TF_DTYPE_NATIVE && m->x_dtype == EPA_FP8_E4M3)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag with dispatch_dtype: native cannot send input that is quantised "
                        "already; set dispatch_dtype: fp8 or moe.input_dtype: native");
    if (c->chunks > 1 && c->flag_granularity == TF_FLAG_PER_RANK)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "token_flag: chunks: %u needs flag_granularity: token; with flag_granularity: rank nothing can be taken "
            "in before the flag that follows the last row",
            c->chunks);
    return EPA_OK;
}

/* What only GPUs, or only hosts, can do. */
static enum epa_status check_place(const struct epa_moe *m, const struct epa_world *world,
                                   bool device, const struct tf_config *c,
                                   struct epa_error *err)
{
    if (!device && (c->blocks != 0 || c->profile != NULL))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag: %s is for GPUs; leave it out, or set backend.name: "
                        "cuda",
                        c->blocks != 0 ? "blocks" : "profile");
    if (!device)
        return EPA_OK;
    if (c->nontemporal != TF_NONTEMPORAL_OFF)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag: stores is for hosts; leave it out");
    if (world->size > EPA_DEVICE_RANKS)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag on GPUs takes 1 to %d ranks, not %u", EPA_DEVICE_RANKS,
                        world->size);
    if (m->experts > TF_DEVICE_EXPERTS)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag on GPUs takes up to %d moe.experts, not %u",
                        TF_DEVICE_EXPERTS, m->experts);
    if (c->dispatch_dtype == TF_DTYPE_FP8 &&
        (m->fp8_group_size < 16 || m->fp8_group_size > 256 || (m->fp8_group_size & (m->fp8_group_size - 1)) != 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag on GPUs quantises in groups of 16, 32, 64, 128 or 256 "
                        "channels; moe.fp8_group_size is %u",
                        m->fp8_group_size);
    return EPA_OK;
}

/* Lines of a message and of an expert output; what kernels count in 32 bits, and hold in a block. */
static enum epa_status make_lines(struct tf_layout *l, struct epa_error *err)
{
    uint64_t scales = l->fp8 ? l->hidden / l->group * sizeof(float) : 0, units;

    l->packets = dev_packets_of((uint32_t)(l->scales_at + scales) + 8 * TF_META_WORDS);
    l->output_packets = dev_packets_of((uint32_t)l->output_bytes);
    l->wire_bytes = (uint64_t)l->packets * DEV_PACKET;
    l->slot_bytes = (uint64_t)l->output_packets * DEV_PACKET;
    units = tf_units_of(l->packets > l->output_packets ? l->packets : l->output_packets);
    if (l->wire_bytes > TF_DEVICE_ROW)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "token_flag on GPUs holds a message in a multiprocessor's memory, of "
            "%d bytes at most; with moe.hidden: %u it has %llu",
            TF_DEVICE_ROW, l->hidden, (unsigned long long)l->wire_bytes);
    if (l->rows * units >= UINT32_MAX / 2)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "token_flag on GPUs numbers parts of rows in 32 bits, which %llu rows of %llu "
            "parts exceed; lower moe.max_tokens or moe.topk",
            (unsigned long long)l->rows, (unsigned long long)units);
    return EPA_OK;
}

static void make_messages(struct tf_layout *l)
{
    uint64_t scales = l->fp8 ? l->hidden / l->group * sizeof(float) : 0;

    l->output_bytes = 2 * (uint64_t)l->hidden;
    l->token_bytes = l->fp8 ? l->hidden : l->output_bytes;
    l->scales_at = l->token_bytes;
    l->message_bytes = up(l->scales_at + scales + TF_META_BYTES, TF_LINE);
    l->meta_at = l->message_bytes - TF_META_BYTES;
    l->slot_bytes = up(l->output_bytes + TF_FLAG_BYTES, TF_LINE);
    l->wire_bytes = l->message_bytes;
}

static void place_regions(struct tf_layout *l)
{
    uint64_t flat = (uint64_t)l->max_tokens * l->topk, end = 0;

    l->counts_bytes = up((uint64_t)l->size * l->count_words * 4, TF_LINE);
    if (!l->device) /* counts leave from where a block has them */
        l->reported_bytes = l->counts_bytes;
    l->comm_bytes = l->rows * l->wire_bytes;
    l->grouped_bytes = l->rows * l->message_bytes;
    if (!l->fused || l->puts) /* for experts, or for expert outputs on their way */
        l->y_bytes = up(l->rows * l->output_bytes, TF_LINE);
    l->outputs_bytes = flat * l->slot_bytes;
    if (l->puts)
        l->staging_bytes = flat * l->message_bytes;
    l->reported_at = place(&end, l->reported_bytes, 1);
    l->counts_at = place(&end, l->counts_bytes, 2);
    l->comm_at = place(&end, l->comm_bytes, l->buffers);
    l->grouped_at = place(&end, l->grouped_bytes, l->buffers);
    l->y_at = place(&end, l->y_bytes, l->buffers);
    l->outputs_at = place(&end, l->outputs_bytes, l->buffers);
    l->staging_at = place(&end, l->staging_bytes, 1);
    l->heap_bytes = up(end, TF_PAGE);
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
        .fp8 = c->dispatch_dtype == TF_DTYPE_FP8,
        .by_token = c->flag_granularity == TF_FLAG_PER_TOKEN,
        .fused = c->fuse_expert,
        .folded = c->counter_reset == TF_COUNTER_RESET_INLINE,
        .flat = c->work_partition == TF_PARTITION_FLAT,
        .device = device,
    };
    enum epa_status status = check_limits(m, world, err);

    if (status == EPA_OK)
        status = check_shape(m, c, err);
    if (status == EPA_OK)
        status = check_place(m, world, device, c, err);
    if (status != EPA_OK)
        return status;
    l.local = m->experts / world->size;
    l.puts = world->size > 1 && ((transport_flags & EPA_TRANSPORT_LOAD_STORE) == 0 ||
                                 (transport_flags & EPA_TRANSPORT_NODES) != 0);
    l.source_rows = m->max_tokens * (m->topk < l.local ? m->topk : l.local);
    l.count_words = device ? 2 * l.local : 1 + l.local;
    l.rows = (uint64_t)l.size * l.source_rows;
    make_messages(&l);
    if (device)
        status = make_lines(&l, err);
    if (status != EPA_OK)
        return status;
    place_regions(&l);
    l.row_signals = l.puts && l.by_token ? l.size * l.source_rows : 0;
    l.output_signals = l.puts ? m->max_tokens * m->topk : 0;
    l.signals = 2 * l.size + l.buffers * (l.row_signals + l.output_signals);
    *out = l;
    return EPA_OK;
}

static uint64_t private_bytes(const struct tf_layout *l)
{
    return l->message_bytes + (uint64_t)l->experts * 2 +
           (uint64_t)l->local * (4 + l->buffers * 12) + (uint64_t)l->size * 20;
}

static enum epa_status plan(const struct epa_problem *problem,
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
        .private_bytes = l.device ? 0 : private_bytes(&l),
        .signals = l.signals,
        .u.moe.recv_rows = l.rows,
        .u.moe.recv_entries = l.rows,
        .u.moe.layout = EPA_LAYOUT_EXPERT,
        .u.moe.recv_dtype = l.fp8 ? EPA_FP8_E4M3 : (enum epa_dtype)m->dtype,
        .u.moe.sum = EPA_SUM_ORDERED,
        .u.moe.output_dtype = (enum epa_dtype)m->dtype,
        .u.moe.fused = l.fused,
        .in_flight = l.buffers,
        .u.moe.dispatch_row_bytes = l.wire_bytes,
        .u.moe.dispatch_token_bytes = l.token_bytes,
        .u.moe.combine_row_bytes = l.slot_bytes,
        .u.moe.combine_token_bytes = l.output_bytes,
        .u.moe.control_bytes = (uint64_t)l.count_words * 4 + 8,
    };
    return EPA_OK;
}

static enum epa_status create(const struct epa_algorithm_params *p,
                              struct epa_algorithm **out, struct epa_error *err)
{
    struct tf_layout l;
    enum epa_status status = tf_layout_make(&p->problem->u.moe, &p->world,
                                            p->transport_flags, p->config, &l, err);

    if (status != EPA_OK)
        return status;
    return p->backend->memory == EPA_MEMORY_CUDA ? tf_cuda_create(p, &l, out, err)
                                                 : tf_host_create(p, &l, out, err);
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "token_flag",
               .summary = "all-to-all in four halves, with a flag for each row",
               .options = {options, sizeof(struct tf_config), &defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST | TF_CUDA_MEMORY,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE | EPA_TRANSPORT_LOAD_STORE,
    .plan = plan,
    .create = create,
};
