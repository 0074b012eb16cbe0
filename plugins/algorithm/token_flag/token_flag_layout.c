/* token_flag: supported shapes, and the layout of the heap, for hosts and GPUs. */
#include "token_flag_layout.h"

#include "../../common/algo_host.h"

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
            return epa_fail_key(err, EPA_ERR_CONFIG,
                                i == 0 ? "algorithm.kernel_blocks" : "algorithm.kernel_warps",
                                "token_flag: algorithm.%s has %u numbers, but there are %d kernels",
                                i == 0 ? "kernel_blocks" : "kernel_warps", n, TF_KERNELS);
    }
    if (c->parts != 0 && c->fuse_expert && m->mlp.ffn != 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.fuse_expert expert.kind",
                            "token_flag: fuse_expert computes synthetic experts; remove it, since "
                            "parts: %u computes real experts between dispatch and combine",
                            c->parts);
    if (c->parts != 0 && !c->fuse_expert && m->mlp.ffn == 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.parts expert.kind",
                            "token_flag: parts: %u computes the experts; set expert.kind: mlp for "
                            "real experts, or fuse_expert: true for synthetic experts",
                            c->parts);
    if (c->parts > 1 && c->buffers == 1)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.buffers algorithm.parts",
                            "token_flag: parts: %u needs several buffer sets; remove buffers: 1",
                            c->parts);
    if (m->experts / world->size > TF_LOCAL)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.experts ranks",
                            "token_flag takes up to %d experts a rank, not %u", TF_LOCAL,
                            m->experts / world->size);
    /* Rows, and the signals of rows and expert outputs of two sets, have numbers below this
     * limit. */
    if ((uint64_t)(world->size + 1) * m->max_tokens * m->topk >= UINT32_MAX / 4)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.max_tokens moe.topk ranks",
            "token_flag: ranks (%u) x moe.max_tokens (%u) x moe.topk (%u) exceeds the "
            "32 bits of row and signal numbers; lower moe.max_tokens or moe.topk",
            world->size, m->max_tokens, m->topk);
    if (c->chunks > 1 && c->flag_granularity == TF_FLAG_PER_RANK)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "algorithm.chunks algorithm.flag_granularity",
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
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.hidden",
            "token_flag on GPUs keeps a message in shared memory, at most %d bytes; "
            "with moe.hidden: %u a message has %llu",
            TF_DEVICE_ROW, l->hidden, (unsigned long long)l->wire_bytes);
    if (l->rows * units >= UINT32_MAX / 2)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.max_tokens moe.topk",
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
        .parts = c->parts < m->max_tokens ? c->parts : m->max_tokens,
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
    if (l.parts != 0) {
        uint32_t sets = device ? TF_DEVICE_SETS : TF_HOST_SETS;

        l.max_tokens = (m->max_tokens + l.parts - 1) / l.parts;
        l.buffers = l.parts < sets ? l.parts : sets;
    }
    l.local = m->experts / world->size;
    l.puts = !device && algo_puts(world, transport_flags);
    l.far = device && algo_puts(world, transport_flags);
    l.source_rows = l.max_tokens * (m->topk < l.local ? m->topk : l.local);
    l.count_words = device ? 2 * l.local : 1 + l.local;
    l.rows = (uint64_t)l.size * l.source_rows;
    size_messages(&l);
    if (device)
        status = size_lines(&l, err);
    if (status != EPA_OK)
        return status;
    if (l.source_rows >= (1u << TF_ROW_BITS) - 1)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.max_tokens moe.topk",
            "token_flag has %d bits for the number of rows to a rank, which may be %u; "
            "lower moe.max_tokens (%u) or moe.topk (%u)",
            TF_ROW_BITS, l.source_rows, m->max_tokens, m->topk);
    place_regions(&l);
    l.row_signals = l.puts && l.by_token ? l.size * l.source_rows : 0;
    l.output_signals = l.puts ? l.max_tokens * m->topk : 0;
    l.signals = (!l.far         ? 2
                 : l.chunks > 1 ? 5
                                : 3) *
                    l.size +
                l.buffers * (l.row_signals + l.output_signals);
    *out = l;
    return EPA_OK;
}

static const void *skip_bytes(const void *array, uint64_t bytes)
{
    return array == NULL ? NULL : (const char *)array + bytes;
}

void tf_set_part(const struct tf_layout *l, const struct epa_problem *whole, uint32_t n,
                 struct epa_problem *out)
{
    const struct epa_moe *m = &whole->u.moe;
    struct epa_moe *p = &out->u.moe;
    uint64_t begin = algo_share(m->tokens, n, l->parts);

    *out = *whole;
    p->tokens = algo_share(m->tokens, n + 1, l->parts) - (uint32_t)begin;
    p->x = skip_bytes(m->x, begin * m->hidden * sizeof(uint16_t));
    p->x_fp8 = skip_bytes(m->x_fp8, begin * m->hidden);
    if (m->x_scale != NULL)
        p->x_scale = m->x_scale + begin * (m->hidden / m->fp8_group_size);
    p->expert = skip_bytes(m->expert, begin * m->topk * sizeof(*m->expert));
    p->weight = skip_bytes(m->weight, begin * m->topk * sizeof(*m->weight));
    if (m->out != NULL)
        p->out = (char *)m->out + begin * m->hidden * sizeof(uint16_t);
}
