/* ll_v2: which shapes it takes, and where things are in the heap, for hosts and GPUs. */
#include "ll_v2.h"

static uint64_t up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Even a page apart, so that no two regions share one. */
static uint64_t place(uint64_t *end, uint64_t bytes, uint32_t times)
{
    uint64_t at = (*end + 4095) / 4096 * 4096;

    *end = at + bytes * times;
    return at;
}

static enum epa_status check_shape(const struct epa_moe *m, const struct epa_world *world,
                                   const struct ll_config *c, struct epa_error *err)
{
    if (m->dtype != EPA_BF16 && m->dtype != EPA_F16)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2 moves tokens of 16 bits; set moe.dtype: bf16 or f16");
    if (m->topk == 0 || m->topk > LL_TOPK)
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v2 takes moe.topk from 1 to %d, not %u",
                        LL_TOPK, m->topk);
    if (world->size > LL_RANKS)
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v2 takes 1 to %d ranks, not %u", LL_RANKS,
                        world->size);
    if ((uint64_t)world->size * m->max_tokens * m->topk >= UINT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2 numbers rows in 32 bits, which ranks (%u) x moe.max_tokens "
                        "(%u) x moe.topk (%u) exceed",
                        world->size, m->max_tokens, m->topk);
    if (m->experts == 0 || m->experts % world->size != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2 needs moe.experts (%u) to be a multiple of ranks (%u)",
                        m->experts, world->size);
    if (c->recv_layout == LL_RECV_PADDED && (uint64_t)m->max_tokens * m->experts >= UINT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2 numbers entries in 32 bits, which moe.max_tokens (%u) x "
                        "moe.experts (%u) exceed; set recv_layout: packed",
                        m->max_tokens, m->experts);
    if (m->hidden == 0 || m->hidden % 16 != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2 needs moe.hidden (%u) to be a multiple of 16", m->hidden);
    if ((c->dispatch_dtype == LL_DTYPE_FP8 || c->combine_dtype == LL_DTYPE_FP8) &&
        (m->fp8_group_size == 0 || m->hidden % m->fp8_group_size != 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2 with %s: fp8 needs moe.hidden (%u) to be a multiple of "
                        "moe.fp8_group_size (%u); choose another group or %s: native",
                        c->dispatch_dtype == LL_DTYPE_FP8 ? "dispatch_dtype" : "combine_dtype", m->hidden,
                        m->fp8_group_size, c->dispatch_dtype == LL_DTYPE_FP8 ? "dispatch_dtype" : "combine_dtype");
    if (c->fuse_expert && c->layout == EPA_LAYOUT_RANK)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2: fuse_expert: true makes an expert output for each expert, which "
                        "layout: rank does not have; set layout: expert");
    if (c->dispatch_dtype == LL_DTYPE_NATIVE && m->x_dtype == EPA_FP8_E4M3)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "ll_v2 with dispatch_dtype: native cannot send input that is quantised already; "
            "set dispatch_dtype: fp8 or moe.input_dtype: native");
    return EPA_OK;
}

/* What only GPUs, or only hosts, can do. */
static enum epa_status check_place(const struct epa_moe *m, const struct epa_world *world,
                                   bool device, const struct ll_config *c,
                                   struct epa_error *err)
{
    bool fp8 = c->dispatch_dtype == LL_DTYPE_FP8 || c->combine_dtype == LL_DTYPE_FP8;

    if (!device && (c->split_phase || c->profile != NULL))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2: %s is for GPUs; leave it out, or set backend.name: cuda",
                        c->profile != NULL ? "profile" : "split_phase: true");
    if (!device &&
        (c->combine_mode != LL_COMBINE_AUTO || c->blocks != 0 || !c->pdl))
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v2: %s is for GPUs; leave it out",
                        c->blocks != 0                  ? "blocks"
                        : c->combine_mode != LL_COMBINE_AUTO ? "combine_mode"
                                                        : "pdl");
    if (device && (c->nontemporal != LL_NONTEMPORAL_AUTO || c->puts != LL_PUTS_AUTO))
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v2: %s is for hosts; leave it out",
                        c->nontemporal != LL_NONTEMPORAL_AUTO ? "nontemporal" : "puts");
    if (!device)
        return EPA_OK;
    if (c->profile != NULL && (m->dtype != EPA_BF16 || c->fuse_expert))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2: profile is for bf16 tokens and fuse_expert: false; leave it "
                        "out%s",
                        m->dtype != EPA_BF16 ? ", or set moe.dtype: bf16"
                                             : ", or set fuse_expert: false");
    if (c->fuse_expert && c->combine_dtype == LL_DTYPE_FP8)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "ll_v2 on GPUs: expert outputs made in combine (fuse_expert: true) are sent as "
            "they are; set combine_dtype: native, or fuse_expert: false");
    if (c->combine_mode == LL_COMBINE_PULL &&
        (c->combine_dtype == LL_DTYPE_FP8 || (c->dedup && c->layout == EPA_LAYOUT_EXPERT)))
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "ll_v2: expert outputs that are added up (once) or quantised (combine_dtype: fp8) "
            "first cannot be pulled; set combine_mode: auto");
    if (world->size > EPA_DEVICE_RANKS)
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v2 on GPUs takes 1 to %d ranks, not %u",
                        EPA_DEVICE_RANKS, world->size);
    if (m->experts > LL_DEVICE_EXPERTS || m->max_tokens > LL_DEVICE_TOKENS)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "ll_v2 on GPUs takes up to %d moe.experts and %d moe.max_tokens, not "
            "%u and %u",
            LL_DEVICE_EXPERTS, LL_DEVICE_TOKENS, m->experts, m->max_tokens);
    if (fp8 && (m->fp8_group_size < 16 || m->fp8_group_size > 256 || (m->fp8_group_size & (m->fp8_group_size - 1)) != 0))
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "ll_v2 on GPUs quantises in groups of 16, 32, 64, 128 or 256 channels; "
            "moe.fp8_group_size is %u",
            m->fp8_group_size);
    return EPA_OK;
}

/* Rows and entries that a rank has room for. */
static void size_rows(const struct epa_moe *m, const struct ll_config *c,
                      struct ll_layout *l)
{
    uint64_t tokens = (uint64_t)l->size * m->max_tokens;
    uint64_t worst = tokens * (m->topk < l->local ? m->topk : l->local);
    double even = (double)m->max_tokens * m->topk; /* of all ranks' choices, 1 / size */

    l->entries = l->padded ? tokens * l->local : worst;
    if (!l->padded && c->capacity > 0 && even * c->capacity < (double)worst)
        l->entries = (uint64_t)(even * c->capacity) + 1;
    l->rows = l->entries;
    if (l->by_rank)
        l->rows = l->device || l->entries > tokens ? tokens : l->entries;
}

static void make_message(struct ll_layout *l)
{
    uint64_t scales = l->fp8 ? l->hidden / l->group * sizeof(float) : 0;
    uint64_t choices = l->dedup ? l->topk * sizeof(struct ll_choice) : 0;

    l->output_bytes = l->sent_bytes = 2 * (uint64_t)l->hidden;
    l->token_bytes = l->fp8 ? l->hidden : l->output_bytes;
    if (l->output_fp8) {
        l->sent_scales_at = l->hidden;
        l->sent_bytes = up(l->hidden + l->hidden / l->group * sizeof(float), DEV_PACKET);
    }
    l->token_at = l->device ? 0 : LL_META_BYTES;
    l->scales_at = l->token_at + l->token_bytes;
    l->choices_at = l->scales_at + scales;
    if (l->device) {
        l->meta_at = up(l->choices_at, LL_META_BYTES);
        l->choices_at = up(l->meta_at + LL_META_BYTES, DEV_PACKET);
        choices = l->by_rank ? l->topk * sizeof(struct ll_packet) : 0;
    }
    l->message_bytes = up(l->choices_at + choices, l->device ? DEV_PACKET : LL_LINE);
}

/* How a row is divided among warps: into as few parts as a lane's registers allow, of whole
 * 256 channels. */
static void divide_row(uint32_t hidden, uint32_t most, uint32_t *parts, uint32_t *channels)
{
    uint32_t n = (hidden + most - 1) / most;

    *channels = (uint32_t)up((hidden + n - 1) / n, 256);
    *parts = (hidden + *channels - 1) / *channels;
}

/* GPUs: how rows and expert outputs are divided among warps, and what a part takes as lines. */
static void divide_work(struct ll_layout *l)
{
    uint32_t groups = l->group != 0 ? l->group : 1;
    uint32_t scales, bytes, packets;

    divide_row(l->hidden, LL_UNIT_CHANNELS, &l->units, &l->unit_channels);
    divide_row(l->hidden, LL_SHARE_CHANNELS, &l->shares, &l->share_channels);
    if (l->pushes) {
        l->share_channels = LL_PUSH_CHANNELS;
        if (l->output_fp8)
            l->share_channels =
                LL_CODE_PACKETS * ll_chunks_of(groups) * LL_CHUNK / groups * groups;
        l->shares = (l->hidden + l->share_channels - 1) / l->share_channels;
    }
    scales = l->fp8 ? l->unit_channels / groups : 0;
    bytes = ll_payload_of(l->topk, scales, l->unit_channels * (l->fp8 ? 1 : 2)).bytes;
    l->unit_bytes = (uint64_t)dev_packets_of(bytes) * DEV_PACKET;
    packets = l->output_fp8 ? ll_code_packets(l->share_channels, groups)
                          : dev_packets_of(2 * l->share_channels);
    l->share_bytes = (uint64_t)packets * DEV_PACKET;
    if (l->pushes)
        l->sent_bytes = l->shares * l->share_bytes;
    l->row_signals = (uint64_t)l->max_tokens * l->units > LL_MANY_UNITS ? 1 : l->units;
}

static void place_regions(struct ll_layout *l)
{
    uint64_t slots = (uint64_t)l->size * l->max_tokens;
    uint64_t received = l->entries < slots ? l->entries : slots; /* sent once, at most */
    bool outputs = l->device ? l->pushes : l->puts;

    l->counts_bytes = (uint64_t)l->size * l->count_words * 4;
    l->recv_bytes = l->rows * l->message_bytes;
    if (!l->fused || (l->puts && !l->device && !l->dedup && !l->output_fp8))
        l->y_bytes = up(l->rows * l->output_bytes, LL_LINE);
    if (l->puts && !l->device) /* a message for each row, or one for all rows of a token */
        l->staging_bytes = (uint64_t)l->max_tokens *
                           (l->dedup || l->blocks ? l->places : 1) * l->message_bytes;
    if (outputs)
        l->outputs_bytes = up((uint64_t)l->max_tokens * l->places * l->sent_bytes, LL_LINE);
    if (l->device) /* who places rows itself keeps its own of all experts, gets no others */
        l->routes_bytes = (l->dedup ? l->size * (uint64_t)(l->local + 1) : l->experts) *
                          l->windows * sizeof(struct ll_packet);
    if (l->dedup && !l->by_rank)
        l->arrival_bytes =
            l->device ? slots * l->units * l->unit_bytes : received * l->message_bytes;
    if (!l->device && ((l->dedup && !l->by_rank) || l->output_fp8))
        l->outbox_bytes = up((l->dedup ? received : l->rows) * l->sent_bytes, LL_LINE);
    l->counts_at = place(&l->heap_bytes, l->counts_bytes, l->buffers);
    l->recv_at = place(&l->heap_bytes, l->recv_bytes, l->buffers);
    l->y_at = place(&l->heap_bytes, l->y_bytes, l->buffers);
    l->staging_at = place(&l->heap_bytes, l->staging_bytes, l->buffers);
    l->outputs_at = place(&l->heap_bytes, l->outputs_bytes, l->device ? 2 : l->buffers);
    l->routes_at = place(&l->heap_bytes, l->routes_bytes, l->buffers);
    l->arrival_at = place(&l->heap_bytes, l->arrival_bytes, l->buffers);
    l->outbox_at = place(&l->heap_bytes, l->outbox_bytes, l->buffers);
}

/* GPUs: rows that travel as lines need none. */
static enum epa_status count_signals(struct ll_layout *l, struct epa_error *err)
{
    uint64_t rows = l->by_rank ? (uint64_t)l->size * l->max_tokens
                    : l->dedup  ? 0
                               : l->entries;
    uint64_t all = LL_SIGNALS * l->size + (l->device ? rows * l->row_signals : 0);

    if (all > UINT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2 on GPUs would need %llu signals; lower moe.max_tokens (%u)",
                        (unsigned long long)all, l->max_tokens);
    l->signals = (uint32_t)all;
    return EPA_OK;
}

enum epa_status ll_layout_make(const struct epa_moe *m, const struct epa_world *world,
                               uint32_t transport_flags, const struct ll_config *c,
                               struct ll_layout *out, struct epa_error *err)
{
    bool device = (transport_flags & EPA_TRANSPORT_DEVICE) != 0;
    enum epa_status status = check_shape(m, world, c, err);
    struct ll_layout l = {
        .size = world->size,
        .experts = m->experts,
        .max_tokens = m->max_tokens,
        .topk = m->topk,
        .hidden = m->hidden,
        .group = m->fp8_group_size,
        .dtype = (enum epa_dtype)m->dtype,
        .buffers = c->buffers,
        .by_rank = c->layout == EPA_LAYOUT_RANK,
        .fp8 = c->dispatch_dtype == LL_DTYPE_FP8,
        .output_fp8 = c->combine_dtype == LL_DTYPE_FP8,
        .fused = c->fuse_expert,
        .padded = c->recv_layout == LL_RECV_PADDED,
        .device = device,
        .puts = world->size > 1 && ((transport_flags & EPA_TRANSPORT_LOAD_STORE) == 0 ||
                                    (transport_flags & EPA_TRANSPORT_NODES) != 0),
    };

    if (status == EPA_OK)
        status = check_place(m, world, device, c, err);
    if (status != EPA_OK)
        return status;
    l.local = l.experts / l.size;
    l.dedup = c->dedup || l.by_rank;
    l.blocks = l.puts && (c->puts == LL_PUTS_BLOCKS || (c->puts == LL_PUTS_AUTO && l.dedup));
    /* Links carry stores better than loads; with few rows what is stored has to be read
     * back before the sum costs more than that. */
    l.pushes =
        device &&
        (c->combine_mode == LL_COMBINE_PUSH || l.output_fp8 || (l.dedup && !l.by_rank) ||
         (c->combine_mode == LL_COMBINE_AUTO && l.by_rank && l.max_tokens >= LL_MANY_TOKENS));
    l.places = l.dedup && (device || l.size < l.topk) ? l.size : l.topk;
    make_message(&l);
    l.count_words =
        device ? l.experts * (uint32_t)(sizeof(struct ll_packet) / 4)
               : (uint32_t)(up((l.experts + (l.dedup ? l.size : 0)) * 4u, LL_LINE) / 4);
    size_rows(m, c, &l);
    l.windows = (l.max_tokens + LL_WINDOW_TOKENS - 1) / LL_WINDOW_TOKENS;
    if (device)
        divide_work(&l);
    place_regions(&l);
    status = count_signals(&l, err);
    if (status == EPA_OK)
        *out = l;
    return status;
}
