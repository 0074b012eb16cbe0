/* ll_v2: the descriptor, the options and the layout of the heap. */
#include "ll_v2.h"

static const struct ll_config defaults = {
    .wire = LL_WIRE_FP8,
    .layout = EPA_LAYOUT_EXPERT,
    .buffers = 2,
    .stores = LL_STORES_AUTO,
};

static const struct epa_choice wires[] = {
    {"fp8", LL_WIRE_FP8, "e4m3 with a scale for each group, quantised on the way"},
    {"bf16", LL_WIRE_BF16, "as the tokens are"},
    {0},
};

static const struct epa_choice layouts[] = {
    {"expert", EPA_LAYOUT_EXPERT, "a row for each expert that wants a token"},
    {"rank", EPA_LAYOUT_RANK, "a token once for each rank, with an index for its experts"},
    {0},
};

static const struct epa_choice stores[] = {
    {"auto", LL_STORES_AUTO, "by size; in between the first dispatches try both"},
    {"cached", LL_STORES_CACHED, "ordinary stores"},
    {"stream", LL_STORES_STREAM, "past the cache"},
    {0},
};

static const struct epa_option options[] = {
    {.name = "wire",
     EPA_CHOICE(struct ll_config, wire),
     .choices = wires,
     .help = "what dispatch sends"},
    {.name = "layout",
     EPA_CHOICE(struct ll_config, layout),
     .choices = layouts,
     .help = "what a rank gets out of dispatch"},
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
    {.name = "capacity",
     EPA_REAL(struct ll_config, capacity),
     .least = 0,
     .most = 1024,
     .help =
         "room for received rows as a multiple of the even share; 0 holds the worst case, "
         "and an iteration that needs more than there is ends the run"},
    {0},
};

static uint64_t lines(uint64_t bytes)
{
    return (bytes + LL_LINE - 1) / LL_LINE * LL_LINE;
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
    if (m->dtype != EPA_BF16)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2 moves bf16 tokens; set moe.dtype: bf16");
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
    if (m->hidden == 0 || m->hidden % 16 != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2 needs moe.hidden (%u) to be a multiple of 16", m->hidden);
    if (c->wire == LL_WIRE_FP8 && (m->group == 0 || m->hidden % m->group != 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ll_v2 with wire: fp8 needs moe.hidden (%u) to be a multiple of "
                        "moe.group (%u); choose another group or wire: bf16",
                        m->hidden, m->group);
    if (c->wire == LL_WIRE_BF16 && m->x_dtype == EPA_FP8_E4M3)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "ll_v2 with wire: bf16 cannot send input that is quantised already; "
            "set wire: fp8 or moe.input: bf16");
    return EPA_OK;
}

/* Rows (layout rank) and entries that a rank has room for. */
static void size_rows(const struct epa_moe *m, const struct ll_config *c,
                      struct ll_layout *l)
{
    uint64_t tokens = (uint64_t)l->size * m->max_tokens;
    uint64_t worst = tokens * (m->topk < l->local ? m->topk : l->local);
    double even = (double)m->max_tokens * m->topk; /* of all ranks' choices, 1 / size */

    l->entries = worst;
    if (c->capacity > 0 && even * c->capacity < (double)worst)
        l->entries = (uint64_t)(even * c->capacity) + 1;
    l->rows = l->entries;
    if (l->by_rank)
        l->rows = l->entries < tokens ? l->entries : tokens;
}

enum epa_status ll_layout_make(const struct epa_moe *m, const struct epa_world *world,
                               uint32_t transport_flags, const struct ll_config *c,
                               struct ll_layout *out, struct epa_error *err)
{
    enum epa_status status = check_shape(m, world, c, err);
    struct ll_layout l = {
        .size = world->size,
        .experts = m->experts,
        .max_tokens = m->max_tokens,
        .topk = m->topk,
        .hidden = m->hidden,
        .group = m->group,
        .buffers = c->buffers,
        .by_rank = c->layout == EPA_LAYOUT_RANK,
        .fp8 = c->wire == LL_WIRE_FP8,
        .puts = (transport_flags & EPA_TRANSPORT_LOAD_STORE) == 0 ||
                (transport_flags & EPA_TRANSPORT_NODES) != 0,
    };

    if (status != EPA_OK)
        return status;
    l.local = l.experts / l.size;
    l.places = l.by_rank && l.size < l.topk ? l.size : l.topk;
    l.answer_bytes = 2 * (uint64_t)l.hidden;
    l.token_bytes = l.fp8 ? l.hidden : l.answer_bytes;
    l.scales_at = LL_META_BYTES + l.token_bytes;
    l.choices_at = l.scales_at + (l.fp8 ? l.hidden / l.group * sizeof(float) : 0);
    l.message_bytes =
        lines(l.choices_at + (l.by_rank ? l.topk * sizeof(struct ll_choice) : 0));
    l.count_words = (uint32_t)(lines((l.experts + (l.by_rank ? l.size : 0)) * 4u) / 4);
    size_rows(m, c, &l);
    l.counts_bytes = (uint64_t)l.size * l.count_words * 4;
    l.recv_bytes = l.rows * l.message_bytes;
    l.y_bytes = lines(l.rows * l.answer_bytes);
    l.staging_bytes =
        l.puts ? (uint64_t)l.max_tokens * (l.by_rank ? l.places : 1) * l.message_bytes : 0;
    l.answers_bytes =
        l.puts ? lines((uint64_t)l.max_tokens * l.places * l.answer_bytes) : 0;
    l.counts_at = place(&l.heap_bytes, l.counts_bytes, l.buffers);
    l.recv_at = place(&l.heap_bytes, l.recv_bytes, l.buffers);
    l.y_at = place(&l.heap_bytes, l.y_bytes, l.buffers);
    l.staging_at = place(&l.heap_bytes, l.staging_bytes, l.buffers);
    l.answers_at = place(&l.heap_bytes, l.answers_bytes, l.buffers);
    *out = l;
    return EPA_OK;
}

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
        .signals = LL_SIGNALS * l.size,
        .recv_rows = l.rows,
        .recv_entries = l.entries,
        .layout = (enum epa_layout)c->layout,
        .recv_dtype = l.fp8 ? EPA_FP8_E4M3 : EPA_BF16,
        .sum = EPA_SUM_ORDERED,
        .in_flight = l.buffers,
        .dispatch_row_bytes = l.message_bytes,
        .dispatch_token_bytes = l.token_bytes,
        .combine_row_bytes = l.answer_bytes,
        .combine_token_bytes = l.answer_bytes,
        .control_bytes = (uint64_t)l.count_words * 4 + LL_SIGNALS * 8,
    };
    return EPA_OK;
}

static enum epa_status create(const struct epa_algorithm_params *p,
                              struct epa_algorithm **out, struct epa_error *err)
{
    struct ll_layout l;
    enum epa_status status = ll_layout_make(&p->problem->u.moe, &p->world,
                                            p->transport_flags, p->config, &l, err);

    return status != EPA_OK ? status : ll_host_create(p, &l, out, err);
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "ll_v2",
               .summary =
                   "low-latency all-to-all: rows straight to where experts read them",
               .options = {options, sizeof(struct ll_config), &defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST,
    .needs_host = EPA_TRANSPORT_HOST,
    .plan = plan,
    .create = create,
};
