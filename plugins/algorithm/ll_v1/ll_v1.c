/* ll_v1: the descriptor, the options and the layout of the heap. */
#include "ll_v1.h"

static const struct v1_config defaults = {
    .dispatch_dtype = V1_DTYPE_FP8,
    .exchange = V1_EXCHANGE_AUTO,
    .buffers = 2,
    .nontemporal = V1_NONTEMPORAL_AUTO,
    .pdl = true,
};

static const struct epa_choice wires[] = {
    {"fp8", V1_DTYPE_FP8, "e4m3 with a scale for each group, quantised on the way"},
    {"native", V1_DTYPE_NATIVE, "as the tokens are"},
    {0},
};

static const struct epa_choice exchanges[] = {
    {"auto", V1_EXCHANGE_AUTO, "hosts pull, GPUs push where there are few tokens"},
    {"pull", V1_EXCHANGE_PULL, "the receiver loads them, straight to where they are used"},
    {"push", V1_EXCHANGE_PUSH, "the sender stores blocks in the receiver's buffers"},
    {0},
};

static const struct epa_choice stores[] = {
    {"auto", V1_NONTEMPORAL_AUTO, "by size; in between the first dispatches try both"},
    {"off", V1_NONTEMPORAL_OFF, "ordinary stores"},
    {"on", V1_NONTEMPORAL_ON, "past the cache"},
    {0},
};


static const struct epa_option options[] = {
    {.name = "dispatch_dtype",
     EPA_CHOICE(struct v1_config, dispatch_dtype),
     .choices = wires,
     .help = "what dispatch sends"},
    {.name = "exchange",
     EPA_CHOICE(struct v1_config, exchange),
     .choices = exchanges,
     .help =
         "how rows and expert outputs cross between ranks that loads and stores reach; GPUs push "
         "rows in any case"},
    {.name = "buffers",
     EPA_U32(struct v1_config, buffers),
     .min = 1,
     .max = 2,
     .help =
         "dispatches that may be open; with 2 one may start before the combine of the one "
         "before, 1 takes less memory"},
    {.name = "capacity",
     EPA_REAL(struct v1_config, capacity),
     .least = 0,
     .most = 1024,
     .help =
         "room for rows from one rank to another as a multiple of the even share; 0 holds "
         "the worst case, and an iteration that needs more than there is ends the run"},
    {.name = "nontemporal",
     EPA_CHOICE(struct v1_config, nontemporal),
     .choices = stores,
     .help = "how received rows and sums are written"},
    {.name = "pdl",
     EPA_BOOL(struct v1_config, pdl),
     .help = "on GPUs, when a kernel is set up"},
    {.name = "blocks",
     EPA_U32(struct v1_config, blocks),
     .max = 65535,
     .help =
         "on GPUs, thread blocks of a kernel at most, to leave multiprocessors to others; "
         "0 takes two for each"},
    {.name = "profile",
     EPA_STRING(struct v1_config, profile),
     .help =
         "on GPUs, where to write when each warp did what in the last iteration: a Chrome "
         "trace for each rank, FILE.0.json and so on"},
    {0},
};

static uint64_t up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Whole lines, and each region on pages of its own. */
static void place(struct v1_layout *l, struct v1_region *r, uint64_t bytes, uint32_t times)
{
    r->at = up(l->heap_bytes, 4096);
    r->bytes = up(bytes, V1_LINE);
    l->heap_bytes = r->at + r->bytes * times;
}

static enum epa_status check_shape(const struct epa_moe *m, const struct epa_world *world,
                                   const struct v1_config *c, struct epa_error *err)
{
    if (m->dtype != EPA_BF16 && m->dtype != EPA_F16)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v1 moves bf16 or f16 tokens; set moe.dtype to one of them");
    if (m->topk == 0 || m->topk > V1_TOPK)
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v1 takes moe.topk from 1 to %d, not %u",
                        V1_TOPK, m->topk);
    if (world->size > V1_RANKS)
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v1 takes 1 to %d ranks, not %u", V1_RANKS,
                        world->size);
    if ((uint64_t)world->size * m->max_tokens * m->topk >= UINT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v1 numbers rows in 32 bits, which ranks (%u) x moe.max_tokens "
                        "(%u) x moe.topk (%u) exceed",
                        world->size, m->max_tokens, m->topk);
    if (m->experts == 0 || m->experts % world->size != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v1 needs moe.experts (%u) to be a multiple of ranks (%u)",
                        m->experts, world->size);
    if (m->hidden == 0 || m->hidden % 16 != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v1 needs moe.hidden (%u) to be a multiple of 16", m->hidden);
    if (c->dispatch_dtype == V1_DTYPE_FP8 && (m->fp8_group_size == 0 || m->hidden % m->fp8_group_size != 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v1 with dispatch_dtype: fp8 needs moe.hidden (%u) to be a multiple of "
                        "moe.fp8_group_size (%u); choose another group or dispatch_dtype: native",
                        m->hidden, m->fp8_group_size);
    if (c->dispatch_dtype == V1_DTYPE_NATIVE && m->x_dtype == EPA_FP8_E4M3)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "ll_v1 with dispatch_dtype: native cannot send input that is quantised already; "
            "set dispatch_dtype: fp8 or moe.input_dtype: native");
    return EPA_OK;
}

static enum epa_status check_host(const struct v1_config *c, struct epa_error *err)
{
    if (c->profile != NULL || c->blocks != 0 || !c->pdl)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v1: %s is for GPUs; leave it out, or set backend.name: cuda",
                        c->profile != NULL ? "profile"
                        : c->blocks != 0   ? "blocks"
                                           : "pdl");
    return EPA_OK;
}

static enum epa_status check_device(const struct epa_moe *m, const struct epa_world *world,
                                    const struct v1_config *c, struct epa_error *err)
{
    if (c->nontemporal != V1_NONTEMPORAL_AUTO)
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v1: stores is for hosts; leave it out");
    if (world->size > EPA_DEVICE_RANKS)
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v1 on GPUs takes 1 to %d ranks, not %u",
                        EPA_DEVICE_RANKS, world->size);
    if (m->experts > V1_DEVICE_EXPERTS)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v1 on GPUs takes up to %d moe.experts, not %u",
                        V1_DEVICE_EXPERTS, m->experts);
    if (c->dispatch_dtype == V1_DTYPE_FP8 &&
        (m->fp8_group_size < 16 || m->fp8_group_size > 256 || (m->fp8_group_size & (m->fp8_group_size - 1)) != 0))
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "ll_v1 on GPUs quantises in groups of 16, 32, 64, 128 or 256 channels; "
            "moe.fp8_group_size is %u",
            m->fp8_group_size);
    return EPA_OK;
}

/* MAX_M: rows from one source. */
static void size_rows(const struct epa_moe *m, double capacity, struct v1_layout *l)
{
    uint64_t worst = (uint64_t)m->max_tokens * (m->topk < l->local ? m->topk : l->local);
    double even = (double)m->max_tokens * m->topk / l->size;

    l->max_m = (uint32_t)worst;
    if (capacity > 0 && even * capacity < (double)worst)
        l->max_m = (uint32_t)(even * capacity) + 1;
    l->rows = (uint64_t)l->size * l->max_m;
}

/* What a part of a row takes as lines, if it has so many channels. */
static uint32_t part_bytes(const struct v1_layout *l, uint32_t channels)
{
    uint32_t scales = l->fp8 ? channels / l->group : 0;

    return DEV_PACKET * dev_packets_of(v1_payload_of(channels * (l->fp8 ? 1 : 2), scales).bytes);
}

/* A part has as many channels as its lines hold, and the last what is left. */
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
    l->sent_bytes = DEV_PACKET * dev_packets_of(2 * l->hidden);
    l->pieces = (l->sent_bytes / DEV_PACKET + V1_PIECE_PACKETS - 1) / V1_PIECE_PACKETS;
}

/* What dispatch hands out, and where experts answer. */
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
    enum epa_status status = check_shape(m, world, c, err);
    bool device = (transport_flags & EPA_TRANSPORT_DEVICE) != 0;
    struct v1_layout l = {
        .size = world->size,
        .experts = m->experts,
        .max_tokens = m->max_tokens,
        .topk = m->topk,
        .hidden = m->hidden,
        .group = m->fp8_group_size,
        .buffers = c->buffers,
        .fp8 = c->dispatch_dtype == V1_DTYPE_FP8,
        .f16 = m->dtype == EPA_F16,
        .device = device,
        /* Links carry stores sooner than loads, but expert outputs that were stored are read again. */
        .pull =
            c->exchange == V1_EXCHANGE_PULL ||
            (c->exchange == V1_EXCHANGE_AUTO && (!device || m->max_tokens > FEW_TOKENS)),
        .puts = world->size > 1 && ((transport_flags & EPA_TRANSPORT_LOAD_STORE) == 0 ||
                                    (transport_flags & EPA_TRANSPORT_NODES) != 0),
        .output_bytes = 2 * (uint64_t)m->hidden,
    };

    if (status == EPA_OK)
        status = device ? check_device(m, world, c, err) : check_host(c, err);
    if (status != EPA_OK)
        return status;
    l.local = l.experts / l.size;
    l.token_bytes = l.fp8 ? l.hidden : l.output_bytes;
    l.row_bytes = up(l.token_bytes, V1_LINE);
    l.scales_bytes = l.fp8 ? up(l.hidden / l.group * sizeof(float), V1_LINE) : 0;
    size_rows(m, c->capacity, &l);
    l.split_words = device ? l.local * (uint32_t)sizeof(struct v1_packet) / 4
                           : (uint32_t)up(l.local + 1 + (uint64_t)l.max_m, V1_LINE / 4);
    if (device) {
        divide_work(&l);
        place_device_regions(&l);
    } else {
        place_regions(&l);
    }
    *out = l;
    return EPA_OK;
}

/* Channels of it. */
static uint32_t last_part(const struct v1_layout *l)
{
    return l->hidden - (l->units - 1) * l->unit_channels;
}

static enum epa_status plan(const struct epa_problem *problem,
                            const struct epa_world *world, uint32_t transport_flags,
                            const void *config, struct epa_footprint *out,
                            struct epa_error *err)
{
    const struct epa_moe *m = &problem->u.moe;
    struct v1_layout l;
    enum epa_status status = v1_layout_make(m, world, transport_flags, config, &l, err);

    if (status != EPA_OK)
        return status;
    *out = (struct epa_footprint){
        .heap_bytes = l.heap_bytes,
        .signals = V1_MODES * V1_POSITIONS * l.size,
        .u.moe.recv_rows = l.rows,
        .u.moe.recv_entries = l.rows,
        .u.moe.layout = EPA_LAYOUT_EXPERT,
        .u.moe.recv_dtype = l.fp8 ? EPA_FP8_E4M3 : (enum epa_dtype)m->dtype,
        .u.moe.sum = EPA_SUM_ORDERED,
        .u.moe.output_dtype = (enum epa_dtype)m->dtype,
        .in_flight = l.buffers,
        .u.moe.dispatch_row_bytes = l.row_bytes + l.scales_bytes + 4, /* and its token */
        .u.moe.dispatch_token_bytes = l.token_bytes,
        .u.moe.combine_row_bytes = l.output_bytes,
        .u.moe.combine_token_bytes = l.output_bytes,
        .u.moe.control_bytes = (l.local + 1) * 4 + V1_MODES * 8,
    };
    if (l.device) {
        out->u.moe.dispatch_row_bytes =
            (uint64_t)(l.units - 1) * l.unit_bytes + part_bytes(&l, last_part(&l));
        out->u.moe.control_bytes = l.split_words * 4 + 8;
    }
    if (l.device && !l.pull)
        out->u.moe.combine_row_bytes = l.sent_bytes;
    return EPA_OK;
}

static enum epa_status create(const struct epa_algorithm_params *p,
                              struct epa_algorithm **out, struct epa_error *err)
{
    struct v1_layout l;
    enum epa_status status = v1_layout_make(&p->problem->u.moe, &p->world,
                                            p->transport_flags, p->config, &l, err);

    if (status != EPA_OK)
        return status;
    return p->backend->memory == EPA_MEMORY_CUDA ? v1_cuda_create(p, &l, out, err)
                                                 : v1_host_create(p, &l, out, err);
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "ll_v1",
               .summary =
                   "low-latency all-to-all: tokens sorted by expert, a block to each "
                   "rank",
               .options = {options, sizeof(struct v1_config), &defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST | V1_CUDA_MEMORY,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE | EPA_TRANSPORT_LOAD_STORE,
    .plan = plan,
    .create = create,
};
