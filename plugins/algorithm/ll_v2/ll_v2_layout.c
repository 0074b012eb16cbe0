/* ll_v2: supported shapes, and the layout of the heap, for hosts and GPUs. */
#include "ll_v2_layout.h"

#include "../../common/algo_host.h"

static enum epa_status check_options(const struct epa_moe *m, const struct ll_config *c,
                                     bool device, struct epa_error *err)
{
    if (c->recv_layout == LL_RECV_PADDED && (uint64_t)m->max_tokens * m->experts >= UINT32_MAX)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.max_tokens moe.experts algorithm.recv_layout",
            "ll_v2: recv_layout: padded has 32 bits for numbers of entries, which "
            "moe.max_tokens (%u) x moe.experts (%u) exceeds; set recv_layout: packed",
            m->max_tokens, m->experts);
    if (c->fuse_expert && c->layout == EPA_LAYOUT_RANK)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "algorithm.fuse_expert algorithm.layout",
            "ll_v2: fuse_expert: true computes an output per expert, but layout: rank "
            "has one output per rank; set layout: expert");
    if (!c->combine_dedup && (!c->dedup || c->layout == EPA_LAYOUT_RANK || c->fuse_expert))
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.combine_dedup algorithm.dedup",
                            "ll_v2: combine_dedup: false needs layout: expert, dedup: true and "
                            "fuse_expert: false; leave it out");
    if (c->row_order != EPA_ROWS_ANY && c->layout != EPA_LAYOUT_RANK)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.row_order algorithm.layout",
                            "ll_v2: row_order is for layout: rank; leave it out");
    if (!device)
        return EPA_OK;
    if (c->masks != 0 && (c->combine_dedup || c->combine_dtype == ALGO_DTYPE_FP8))
        return epa_fail_key(err, EPA_ERR_CONFIG,
                            "algorithm.masks algorithm.combine_dedup algorithm.combine_dtype",
                            "ll_v2: masks needs combine_dedup: false and combine_dtype: native; "
                            "leave masks out");
    if (c->fuse_expert && c->combine_dtype == ALGO_DTYPE_FP8)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.fuse_expert algorithm.combine_dtype",
                            "ll_v2 on GPUs: fuse_expert: true cannot quantise expert outputs; set "
                            "combine_dtype: native, or fuse_expert: false");
    if (c->combine_mode == LL_COMBINE_PULL &&
        (c->combine_dtype == ALGO_DTYPE_FP8 || (c->dedup && c->layout == EPA_LAYOUT_EXPERT)))
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "algorithm.combine_mode",
            "ll_v2: combine_mode: pull cannot return expert outputs that dedup: true adds up or "
            "combine_dtype: fp8 quantises first; set combine_mode: auto");
    if (m->max_tokens > LL_DEVICE_TOKENS)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.max_tokens",
                            "ll_v2 on GPUs takes up to %d moe.max_tokens, not %u", LL_DEVICE_TOKENS,
                            m->max_tokens);
    return EPA_OK;
}

static enum epa_status check_problem(const struct epa_moe *m, const struct epa_world *world,
                                     bool device, const struct ll_config *c, struct epa_error *err)
{
    const struct algo_limits limits = {
        .name = "ll_v2",
        .topk = LL_TOPK,
        .ranks = LL_RANKS,
        .device_experts = LL_DEVICE_EXPERTS,
        .device_ranks = LL_DEVICE_RANKS,
        .fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8  ? "dispatch_dtype"
               : c->combine_dtype == ALGO_DTYPE_FP8 ? "combine_dtype"
                                                    : NULL,
        .native = c->dispatch_dtype == ALGO_DTYPE_NATIVE,
        .device_option = c->split_phase                       ? "split_phase: true"
                         : c->fuse_expert                     ? "fuse_expert: true"
                         : c->blocks != 0                     ? "blocks"
                         : c->combine_mode != LL_COMBINE_AUTO ? "combine_mode"
                         : c->row_order != EPA_ROWS_ANY       ? "row_order"
                         : !c->combine_dedup                  ? "combine_dedup"
                         : c->masks != 0                      ? "masks"
                         : !c->pdl                            ? "pdl"
                                                              : NULL,
        .host_option = c->nontemporal != ALGO_NONTEMPORAL_AUTO ? "nontemporal" : NULL,
    };
    enum epa_status status = algo_check(&limits, m, world, device, err);

    return status == EPA_OK ? check_options(m, c, device, err) : status;
}

/* Computes the capacity of a rank in rows and entries. */
static void size_rows(const struct epa_moe *m, const struct ll_config *c, struct ll_layout *l)
{
    uint64_t tokens = (uint64_t)l->size * m->max_tokens;
    uint64_t worst = tokens * (m->topk < l->local ? m->topk : l->local);
    double even = (double)m->max_tokens * m->topk; /* even share: 1 / size of all ranks' choices */

    l->entries = l->padded ? tokens * l->local : worst;
    if (!l->padded && c->capacity > 0 && even * c->capacity < (double)worst)
        l->entries = (uint64_t)(even * c->capacity) + 1;
    l->rows = l->entries;
    if (l->by_rank)
        l->rows = l->device || l->entries > tokens ? tokens : l->entries;
}

static void size_message(struct ll_layout *l)
{
    uint64_t scales = l->fp8 ? l->hidden / l->group * sizeof(float) : 0;
    uint64_t choices = l->dedup ? l->topk * sizeof(struct ll_choice) : 0;

    l->output_bytes = l->sent_bytes = 2 * (uint64_t)l->hidden;
    l->token_bytes = l->fp8 ? l->hidden : l->output_bytes;
    if (l->output_fp8) {
        l->sent_scales_at = l->hidden;
        l->sent_bytes = epa_round_up(l->hidden + l->hidden / l->group * sizeof(float), EPA_PACKET);
    }
    l->token_at = l->device ? 0 : LL_META_BYTES;
    l->scales_at = l->token_at + l->token_bytes;
    l->choices_at = l->scales_at + scales;
    if (l->device) {
        l->meta_at = epa_round_up(l->choices_at, LL_META_BYTES);
        l->choices_at = epa_round_up(l->meta_at + LL_META_BYTES, EPA_PACKET);
        choices = l->by_rank ? l->topk * sizeof(struct ll_packet) : 0;
    }
    l->message_bytes = epa_round_up(l->choices_at + choices, l->device ? EPA_PACKET : LL_LINE);
}

/* Divides a row among warps: as few parts as the registers of lanes allow, each of a multiple of
 * 256 channels. */
static void divide_row(uint32_t hidden, uint32_t most, uint32_t *parts, uint32_t *channels)
{
    uint32_t n = (hidden + most - 1) / most;

    *channels = (uint32_t)epa_round_up((hidden + n - 1) / n, 256);
    *parts = (hidden + *channels - 1) / *channels;
}

/* Rows of few tokens are divided finer, as long as all parts fit in one round of the warps of a GPU:
 * channels of a pulled and of a pushed expert output (4 lines). */
enum { FEW_SLOTS = 32, FEW_SHARE = 256, FEW_PUSH = 240 };

/* Maximum of slots with which layout rank pushes expert outputs of few tokens. */
enum { FEW_PUSHED = 8 };

static bool has_slots(const struct ll_layout *l, uint32_t most)
{
    return (uint64_t)l->size * l->max_tokens <= most;
}

/* GPUs: divides rows and expert outputs among warps, and computes the bytes of parts as lines. */
static void divide_work(struct ll_layout *l)
{
    uint32_t groups = l->group != 0 ? l->group : 1;
    uint32_t scales, bytes, packets;
    bool few = has_slots(l, FEW_SLOTS);

    divide_row(l->hidden, few ? LL_FEW_CHANNELS : LL_UNIT_CHANNELS, &l->units, &l->unit_channels);
    divide_row(l->hidden, few ? FEW_SHARE : LL_SHARE_CHANNELS, &l->shares, &l->share_channels);
    if (l->pushes) {
        l->share_channels = few ? FEW_PUSH : LL_PUSH_CHANNELS;
        if (l->output_fp8)
            l->share_channels = LL_CODE_PACKETS * ll_chunks_of(groups) * LL_CHUNK / groups * groups;
        l->shares = (l->hidden + l->share_channels - 1) / l->share_channels;
    }
    scales = l->fp8 ? l->unit_channels / groups : 0;
    bytes = ll_payload_of(l->topk, scales, l->unit_channels * (l->fp8 ? 1 : 2)).bytes;
    l->unit_bytes = (uint64_t)epa_packets_of(bytes) * EPA_PACKET;
    packets = l->output_fp8 ? ll_code_packets(l->share_channels, groups)
                            : epa_packets_of(2 * l->share_channels);
    l->share_bytes = (uint64_t)packets * EPA_PACKET;
    if (l->pushes)
        l->sent_bytes = l->shares * l->share_bytes;
    l->row_signals = (uint64_t)l->max_tokens * l->units > LL_MANY_UNITS ? 1 : l->units;
}

bool ll_publishes_counts(const struct ll_layout *l, uint32_t tokens)
{
    return l->experts >= LL_NO_EXPERT ||
           sizeof(struct ll_routes) + (uint64_t)tokens * l->topk * 2 > l->count_words * 2;
}

/* Returns the bytes of published routes for max_tokens, which suffice for fewer tokens. */
static uint64_t publish_bytes(const struct ll_layout *l)
{
    uint64_t experts = sizeof(struct ll_routes) + (uint64_t)l->max_tokens * l->topk * 2;

    return ll_publishes_counts(l, l->max_tokens) ? LL_LINE + l->count_words * 4
                                                 : epa_round_up(experts, LL_LINE);
}

static void place_regions(struct ll_layout *l)
{
    uint64_t slots = (uint64_t)l->size * l->max_tokens;
    /* maximum of messages with dedup */
    uint64_t received = l->entries < slots ? l->entries : slots;
    bool outputs = l->device ? l->pushes : l->puts;

    if (l->published)
        l->routes_bytes = publish_bytes(l);
    else
        l->counts_bytes = (uint64_t)l->size * l->count_words * 4;
    l->recv_bytes = l->rows * l->message_bytes;
    if (!l->fused)
        l->y_bytes = epa_round_up(l->rows * l->output_bytes, LL_LINE);
    if (l->puts && !l->device) /* with dedup a message per row, else one for all rows of a token */
        l->staging_bytes = (uint64_t)l->max_tokens * (l->dedup ? l->places : 1) * l->message_bytes;
    if (outputs)
        l->outputs_bytes =
            epa_round_up((uint64_t)l->max_tokens * l->places * l->sent_bytes, LL_LINE);
    /* with dedup, routes of all sources for local experts; else this rank's routes for all
     * experts */
    if (l->device)
        l->routes_bytes = (l->dedup ? l->size * (uint64_t)(l->local + 1) : l->experts) *
                          l->windows * sizeof(struct ll_packet);
    if (l->few) {
        l->routes_bytes = (uint64_t)l->size * l->list_packets * EPA_PACKET;
        l->counts_bytes = 0;
    }
    if ((l->dedup && !l->by_rank) || l->few)
        l->arrival_bytes =
            l->device ? slots * l->units * l->unit_bytes : received * l->message_bytes;
    if (!l->device && ((l->dedup && !l->by_rank) || l->output_fp8))
        l->outbox_bytes = epa_round_up((l->dedup ? received : l->rows) * l->sent_bytes, LL_LINE);
    l->counts_at = algo_place(&l->heap_bytes, l->counts_bytes, l->buffers);
    l->recv_at = algo_place(&l->heap_bytes, l->recv_bytes, l->buffers);
    l->y_at = algo_place(&l->heap_bytes, l->y_bytes, l->buffers);
    l->staging_at = algo_place(&l->heap_bytes, l->staging_bytes, l->buffers);
    l->outputs_at = algo_place(&l->heap_bytes, l->outputs_bytes, l->device ? 2 : l->buffers);
    l->routes_at = algo_place(&l->heap_bytes, l->routes_bytes, l->published ? 2 : l->buffers);
    if (l->order == EPA_ROWS_PACKED && !l->pushes)
        l->totals_bytes = (uint64_t)l->size * l->size * sizeof(struct ll_packet);
    l->totals_at = algo_place(&l->heap_bytes, l->totals_bytes, l->buffers);
    l->arrival_at = algo_place(&l->heap_bytes, l->arrival_bytes, l->buffers);
    l->outbox_at = algo_place(&l->heap_bytes, l->outbox_bytes, l->buffers);
}

/* Counts the signals. GPUs: rows as lines need no signals. Hosts: signals of algo_choose_store()
 * follow. */
static enum epa_status count_signals(struct ll_layout *l, struct epa_error *err)
{
    uint64_t slots = (uint64_t)l->size * l->max_tokens;
    uint64_t rows = l->few ? 0 : l->by_rank ? slots : l->dedup ? 0 : l->entries;
    uint64_t all = LL_SIGNALS * l->size + (l->device ? rows * l->row_signals : ALGO_WAYS * l->size);

    l->alive_at = (uint32_t)all; /* dedup: no signals of rows */
    all += l->masked ? l->size : 0;

    if (all > UINT32_MAX)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.max_tokens",
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
    enum epa_status status = check_problem(m, world, device, c, err);
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
        .fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8,
        .output_fp8 = c->combine_dtype == ALGO_DTYPE_FP8,
        .fused = c->fuse_expert,
        .by_choice = !c->combine_dedup,
        .masked = c->masks != 0,
        .order = (enum epa_row_order)c->row_order,
        /* with row_order entries have no gaps either */
        .padded = c->recv_layout == LL_RECV_PADDED && c->row_order == EPA_ROWS_ANY,
        .device = device,
        .puts = algo_puts(world, transport_flags),
    };

    if (status != EPA_OK)
        return status;
    l.local = l.experts / l.size;
    l.dedup = c->dedup || l.by_rank;
    l.published = !device && !l.puts;
    if (device && l.puts && (!l.dedup || l.by_choice || c->combine_mode == LL_COMBINE_PULL))
        return epa_fail_key(
            err, EPA_ERR_CONFIG,
            "algorithm.layout algorithm.dedup algorithm.combine_dedup algorithm.combine_mode",
            "ll_v2 on GPUs of several nodes sends a token once per rank and pushes expert "
            "outputs: set layout: expert and dedup: true, or layout: rank, and "
            "combine_mode: auto, and leave out combine_dedup");
    l.few = device && !l.masked && l.dedup && l.order == EPA_ROWS_ANY && !l.puts &&
            has_slots(&l, FEW_SLOTS);
    l.list_packets = l.few ? ll_list_packets(l.max_tokens * l.topk) : 0;
    /* Links carry stores better than loads. With few rows, the reads of stored outputs before the
     * sum cost more than stores gain; with very few rows, they cost less than the signal before a
     * load. */
    l.pushes =
        device &&
        (c->combine_mode == LL_COMBINE_PUSH || l.output_fp8 || l.puts || (l.dedup && !l.by_rank) ||
         (c->combine_mode == LL_COMBINE_AUTO && l.by_rank &&
          (l.max_tokens >= LL_MANY_TOKENS || (l.few && has_slots(&l, FEW_PUSHED)))));
    l.places = l.dedup && !l.by_choice && (device || l.size < l.topk) ? l.size : l.topk;
    size_message(&l);
    l.count_words =
        device ? l.experts * (uint32_t)(sizeof(struct ll_packet) / 4)
               : (uint32_t)(epa_round_up((l.experts + (l.dedup ? l.size : 0)) * 4u, LL_LINE) / 4);
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
