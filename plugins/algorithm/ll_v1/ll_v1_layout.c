/* ll_v1: supported shapes, and the layout of the heap, for hosts and GPUs. */
#include "ll_v1_layout.h"

#include "../../common/algo_host.h"

/* Places a region: its size is a multiple of a cache line, and it starts on its own page. */
static void place(struct v1_layout *l, struct v1_region *r, uint64_t bytes, uint32_t times)
{
    r->bytes = epa_round_up(bytes, V1_LINE);
    r->at = algo_place(&l->heap_bytes, r->bytes, times);
}

static enum epa_status check_problem(const struct epa_moe *m, const struct epa_world *world,
                                     bool device, const struct v1_config *c, struct epa_error *err)
{
    const struct algo_limits limits = {
        .name = "ll_v1",
        .topk = V1_TOPK,
        .ranks = V1_RANKS,
        .device_experts = V1_DEVICE_EXPERTS,
        .fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8 ? "dispatch_dtype" : NULL,
        .native = c->dispatch_dtype == ALGO_DTYPE_NATIVE,
        .device_option = c->blocks != 0 ? "blocks"
                         : !c->pdl      ? "pdl"
                                        : NULL,
        .host_option = c->nontemporal != ALGO_NONTEMPORAL_AUTO ? "nontemporal" : NULL,
    };

    return algo_check(&limits, m, world, device, err);
}

/* Sets MAX_M, the capacity for rows from one source. */
static void size_rows(const struct epa_moe *m, double capacity, struct v1_layout *l)
{
    uint64_t worst = (uint64_t)m->max_tokens * (m->topk < l->local ? m->topk : l->local);
    double even = (double)m->max_tokens * m->topk / l->size;

    l->max_m = (uint32_t)worst;
    if (capacity > 0 && even * capacity < (double)worst)
        l->max_m = (uint32_t)(even * capacity) + 1;
    l->rows = (uint64_t)l->size * l->max_m;
}

/* Divides rows into parts. A part has as many channels as its lines hold; the last part is
 * shorter. */
static void divide_work(struct v1_layout *l)
{
    uint32_t most = l->fp8 ? V1_UNIT_FP8 : V1_UNIT_DTYPE;

    l->unit_channels = l->hidden < most ? l->hidden : most;
    l->units = (l->hidden + l->unit_channels - 1) / l->unit_channels;
    l->unit_bytes = part_bytes(l, l->unit_channels);
    l->share_channels = l->pull ? V1_SHARE_PULL : V1_SHARE_TAKE;
    l->shares = (l->hidden + l->share_channels - 1) / l->share_channels;
    if (l->pull)
        return;
    l->sent_bytes = EPA_PACKET * epa_packets_of(2 * l->hidden);
    l->pieces = (l->sent_bytes / EPA_PACKET + V1_PIECE_PACKETS - 1) / V1_PIECE_PACKETS;
}

/* Places the views of dispatch and the expert outputs. */
static void place_sets(struct v1_layout *l)
{
    place(l, &l->recv, l->rows * l->row_bytes, l->buffers);
    place(l, &l->recv_scales, l->rows * l->scales_bytes, l->buffers);
    place(l, &l->origin, l->rows * sizeof(struct epa_origin), l->buffers);
    place(l, &l->y, l->rows * l->output_bytes, l->buffers);
}

static void place_device_regions(struct v1_layout *l)
{
    uint64_t sorted = (uint64_t)l->max_tokens * l->topk;

    place(l, &l->splits, (uint64_t)l->experts * sizeof(struct v1_packet), V1_POSITIONS);
    place(l, &l->starts, l->pull ? (uint64_t)l->experts * 4 : 0, l->buffers);
    place(l, &l->arrival, l->rows * l->units * l->unit_bytes, V1_POSITIONS);
    place_sets(l);
    place(l, &l->outputs, sorted * l->sent_bytes, V1_POSITIONS);
}

static void place_regions(struct v1_layout *l)
{
    uint64_t sorted = (uint64_t)l->max_tokens * l->topk;
    bool slots = l->puts || !l->pull;

    place(l, &l->splits, (uint64_t)l->size * l->split_words * 4, V1_POSITIONS);
    place(l, &l->out_splits, (l->experts + l->size + sorted) * 4, 1);
    place(l, &l->starts, (uint64_t)l->experts * 4, l->buffers);
    place(l, &l->token, l->max_tokens * l->row_bytes, V1_POSITIONS);
    place(l, &l->token_scales, l->max_tokens * l->scales_bytes, V1_POSITIONS);
    place(l, &l->slot, slots ? l->rows * l->row_bytes : 0, V1_POSITIONS);
    place(l, &l->slot_scales, slots ? l->rows * l->scales_bytes : 0, V1_POSITIONS);
    place(l, &l->out, l->puts ? sorted * l->row_bytes : 0, 1);
    place(l, &l->out_scales, l->puts ? sorted * l->scales_bytes : 0, 1);
    place_sets(l);
    place(l, &l->outputs, slots ? sorted * l->output_bytes : 0, V1_POSITIONS);
}

enum epa_status v1_layout_make(const struct epa_moe *m, const struct epa_world *world,
                               uint32_t transport_flags, const struct v1_config *c,
                               struct v1_layout *out, struct epa_error *err)
{
    enum { FEW_TOKENS = 32 };
    bool device = (transport_flags & EPA_TRANSPORT_DEVICE) != 0;
    enum epa_status status = check_problem(m, world, device, c, err);
    struct v1_layout l = {
        .size = world->size,
        .experts = m->experts,
        .max_tokens = m->max_tokens,
        .topk = m->topk,
        .hidden = m->hidden,
        .group = m->fp8_group_size,
        .buffers = c->buffers,
        .fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8,
        .f16 = m->dtype == EPA_F16,
        .device = device,
        /* Stores cross links faster than loads, but stored expert outputs are read again from
         * memory. */
        .pull = c->exchange == V1_EXCHANGE_PULL ||
                (!(device && algo_puts(world, transport_flags)) &&
                 c->exchange == V1_EXCHANGE_AUTO && (!device || m->max_tokens > FEW_TOKENS)),
        .puts = algo_puts(world, transport_flags),
        .output_bytes = 2 * (uint64_t)m->hidden,
    };

    if (status != EPA_OK)
        return status;
    if (device && l.puts && l.pull)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.exchange",
                            "ll_v1 on GPUs of several nodes pushes blocks: leave exchange out");
    l.local = l.experts / l.size;
    l.token_bytes = l.fp8 ? l.hidden : l.output_bytes;
    l.row_bytes = epa_round_up(l.token_bytes, V1_LINE);
    l.scales_bytes = l.fp8 ? epa_round_up(l.hidden / l.group * sizeof(float), V1_LINE) : 0;
    size_rows(m, c->capacity, &l);
    l.split_words = device ? l.local * (uint32_t)sizeof(struct v1_packet) / 4
                           : (uint32_t)epa_round_up(l.local + 1 + (uint64_t)l.max_m, V1_LINE / 4);
    if (device) {
        divide_work(&l);
        place_device_regions(&l);
    } else {
        place_regions(&l);
    }
    *out = l;
    return EPA_OK;
}
