/* fused on GPUs: the choice of the kernel for a shape, and the layout of the heap. */
#include "fused_cuda_layout.h"
#include "fused_layer.h"

#include "../../common/algo_host.h"

/* Consecutive blocks of an expert in a unit: the weights of more blocks do not fit in L2. */
enum { UNIT_BLOCKS = 8 };
/* Mean rows of an expert, from MORE_FROM to below MORE_TO, for which blocks have GEMM_MORE further
 * rows. */
enum { MORE_FROM = 112, MORE_TO = 145 };
/* A rank with more choices than this sends them by expert. */
enum { SORTED_CHOICES = 2048 };
/* Waves for many tokens of up to AUTO_RANKS ranks, unless the option sets the number. */
enum { AUTO_WAVES = 2, AUTO_RANKS = 2 };
/* Up to this number of tokens, the warps of a block send each token together. */
enum { SPREAD_TOKENS = 256 };
/* Limits of picked rows, in tokens and in channels of all ranks' tokens. Tiles begin after their
 * rows have been copied, and for more channels the copy takes longer than counts. FULL_CHANNELS
 * applies if experts have full tiles, so that the memory has time for rows in the order of experts,
 * or if a rank has more than PICKED_TOKENS tokens. */
enum { PICKED_TOKENS = 512, PICKED_CHANNELS = 8 << 20, FULL_CHANNELS = 4 << 20 };
/* Parts of the sum of a token, each by one warp. Up to PART_TOKENS tokens per rank, parts have
 * PART_CHANNELS channels; few tokens, with up to SINGLE_CHANNELS channels of all ranks, have parts
 * of FUSED_FEW_CHANNELS. Up to HALF_TOKENS tokens of all ranks, a token has two parts. */
enum { PART_TOKENS = 512, PART_CHANNELS = 1024, SINGLE_CHANNELS = 1 << 20, HALF_TOKENS = 4096 };

static enum epa_status check_shape(const struct epa_moe *m, const struct fused_config *c,
                                   struct epa_error *err)
{
    const struct epa_mlp *mlp = &m->mlp;
    const bool fp8 = mlp->dtype == EPA_FP8_E4M3, sends_fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8;
    const uint32_t group = m->hidden % FUSED_GROUP == 0 ? FUSED_GROUP : FUSED_GROUP / 2;

    if (m->hidden > FUSED_MOST_GROUPS * FUSED_GROUP || mlp->ffn > FUSED_MOST_GROUPS * FUSED_GROUP)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.hidden expert.ffn",
            "fused on GPUs needs moe.hidden (%u) and expert.ffn (%u) to be %d at most", m->hidden,
            mlp->ffn, FUSED_MOST_GROUPS * FUSED_GROUP);
    if (fp8 && !sends_fp8)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "algorithm.dispatch_dtype",
            "fused on GPUs needs rows in FP8 for FP8 weights; set dispatch_dtype: fp8");
    if (sends_fp8 && m->fp8_group_size != FUSED_GROUP && m->fp8_group_size != FUSED_GROUP / 2)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.fp8_group_size moe.hidden algorithm.dispatch_dtype",
            "fused on GPUs has an FP8 scale for %d or %d channels of a row, not for "
            "moe.fp8_group_size (%u); set dispatch_dtype: native, or "
            "moe.fp8_group_size: %u%s",
            FUSED_GROUP / 2, FUSED_GROUP, m->fp8_group_size, group,
            m->hidden % group == 0 ? "" : " and moe.hidden to a multiple of it");
    if (c->recv_layout != FUSED_PADDED)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.recv_layout",
                            "fused on GPUs stores the rows of an expert contiguously; leave out "
                            "recv_layout");
    return EPA_OK;
}

static enum epa_status count_rows(const struct epa_moe *m, const struct fused_config *c,
                                  struct fused_cuda_layout *l, struct epa_error *err)
{
    uint32_t here = m->topk < l->local ? m->topk : l->local;
    uint64_t worst = (uint64_t)l->size * m->max_tokens * here;
    double even = (double)m->max_tokens * m->topk;

    if (c->capacity > 0 && even * c->capacity < (double)worst)
        worst = (uint64_t)(even * c->capacity) + 1;
    l->blocks = (uint32_t)(worst / l->block_rows) + (uint32_t)(worst < l->local ? worst : l->local);
    l->capacity = (uint64_t)l->blocks * l->block_rows;
    if (l->capacity >= INT32_MAX || (uint64_t)l->size * m->max_tokens > 1u << 26)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.max_tokens",
            "fused on GPUs has no room for %llu received rows; lower moe.max_tokens "
            "(%u), or set capacity",
            (unsigned long long)l->capacity, m->max_tokens);
    return EPA_OK;
}

/* Sets the switches that do not depend on the device; each call sets `part` and the pointers. */
static void make_ways(const struct fused_config *c, struct fused_cuda_layout *l)
{
    struct fused_ways *w = &l->ways;

    l->widens = l->sends_fp8 && !l->kind.fp8;
    w->tail = c->tail || l->widens;
    w->once = w->tail && c->dedup;
    w->by_expert = c->ready == FUSED_READY_EXPERT;
    w->apart = !c->dedup;
    w->gathers = c->combine_mode == FUSED_GATHER;
    w->serial = c->combine_mode == FUSED_SERIAL;
    w->dispatchers = c->dispatch_workers;
    w->tails = c->tail_workers;
    w->combiners = c->combine_workers;
    w->reducers = c->reduce_workers;
    w->part = c->launches == FUSED_TWO ? FUSED_PART_UP : FUSED_PART_ALL;
    l->kind.ways = w->tail + w->by_expert + w->apart + w->gathers + w->serial + w->dispatchers +
                       w->tails + w->combiners + w->reducers + w->part !=
                   0;
}

/* Returns the mean number of rows of an expert. */
static uint64_t mean_rows(const struct fused_cuda_layout *l)
{
    return (uint64_t)l->size * l->max_tokens * l->topk / l->experts;
}

/* Returns the number of waves: `wanted`, or with 0 as many as give each wave a unit of blocks per
 * expert. */
static uint32_t choose_waves(const struct fused_cuda_layout *l, uint32_t wanted)
{
    uint64_t waves = mean_rows(l) / (UNIT_BLOCKS * l->block_rows);

    if (!l->sorted || l->ways.by_expert)
        return 1;
    if (wanted != 0)
        waves = wanted;
    else if (l->size > AUTO_RANKS)
        waves = 1;
    else if (waves > AUTO_WAVES)
        waves = AUTO_WAVES;
    /* The tables are in shared memory. */
    while (waves > 1 && waves * l->experts > FUSED_DEVICE_EXPERTS)
        waves--;
    return waves > 1 ? (uint32_t)waves : 1;
}

/* Returns true if rows or intermediates have an FP8 scale per 64 channels: one kernel with all
 * switches then serves any number of tokens. */
static bool has_groups64(const struct fused_cuda_layout *l)
{
    return l->kind.groups64 || l->kind.rows64;
}

/* Returns the number of tokens of all ranks if they are few, with fixed places of rows
 * (fused_few.cuh); otherwise 0. */
static uint32_t choose_few(const struct fused_cuda_layout *l, const struct fused_config *c)
{
    uint64_t rows = (uint64_t)l->size * l->max_tokens;
    uint64_t channels = mean_rows(l) < GEMM_ROWS && l->max_tokens <= PICKED_TOKENS ? PICKED_CHANNELS
                                                                                   : FULL_CHANNELS;

    return rows <= FUSED_PICKED && rows * l->hidden <= channels && !l->kind.ways &&
                   !has_groups64(l) && !(c->capacity > 0)
               ? (uint32_t)rows
               : 0;
}

/* Chooses larger blocks if most experts have a few rows more than a tile (fused_more.cu). */
static enum epa_status choose_block_rows(const struct fused_config *c, struct fused_cuda_layout *l,
                                         struct epa_error *err)
{
    uint64_t rows = mean_rows(l);
    bool can = l->kind.fp8 && !l->kind.ways && !has_groups64(l) && choose_few(l, c) == 0;

    if (c->block_rows != 0 && c->block_rows != GEMM_ROWS &&
        (c->block_rows != GEMM_ROWS + GEMM_MORE || !can))
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.block_rows",
                            "fused on GPUs has blocks of %d rows, or, for more than few tokens, of "
                            "%d " FUSED_USUAL ": block_rows cannot be %u",
                            GEMM_ROWS, GEMM_ROWS + GEMM_MORE, c->block_rows);
    l->kind.more = c->block_rows > GEMM_ROWS ||
                   (c->block_rows == 0 && can && rows >= MORE_FROM && rows < MORE_TO);
    l->block_rows = l->kind.more ? GEMM_ROWS + GEMM_MORE : GEMM_ROWS;
    return EPA_OK;
}

/* Returns the number of channels of a token that a warp adds up at a time. */
static uint32_t choose_part(const struct fused_cuda_layout *l)
{
    uint64_t slots = (uint64_t)l->size * l->max_tokens;

    if (l->few != 0)
        return l->few * (uint64_t)l->hidden > SINGLE_CHANNELS ? PART_CHANNELS : FUSED_FEW_CHANNELS;
    if (l->max_tokens <= PART_TOKENS)
        return PART_CHANNELS;
    return slots > HALF_TOKENS ? l->hidden
                               : (uint32_t)epa_round_up(l->hidden / 2, FUSED_FEW_CHANNELS);
}

uint32_t fused_cuda_shared_bytes(const struct fused_cuda_layout *l, struct fused_args *a)
{
    a->c.experts = l->experts;
    a->c.local = l->local;
    a->c.topk = l->topk;
    a->few = l->few;
    a->waves = l->waves;
    a->sorted = l->sorted;
    a->scales = l->scales;
    for (uint32_t n = a->unit_blocks = UNIT_BLOCKS;; n = a->unit_blocks *= 2) {
        a->units = (l->waves * l->local * (n - 1) + l->blocks) / n;
        if (a->units <= FUSED_MOST_UNITS)
            break;
    }
    return fused_shared_bytes(l->kind, a);
}

enum epa_status fused_cuda_layout_make(const struct epa_moe *m, const struct epa_world *world,
                                       const struct fused_config *c, struct fused_cuda_layout *out,
                                       struct epa_error *err)
{
    enum epa_status status = fused_check(m, world, c, true, err);
    struct fused_cuda_layout l = {
        .kind = {.fp8 = m->mlp.dtype == EPA_FP8_E4M3,
                 .f16 = m->dtype == EPA_F16,
                 .input =
                     device_input_of(c->dispatch_dtype == ALGO_DTYPE_FP8, m->dtype, m->x_dtype)},
        .sends_fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8,
        .size = world->size,
        .experts = m->experts,
        .local = m->experts / world->size,
        .max_tokens = m->max_tokens,
        .topk = m->topk,
        .hidden = m->hidden,
        .ffn = m->mlp.ffn,
        .up_rows = epa_mlp_up_rows(&m->mlp),
    };
    struct fused_args tables;
    uint64_t words, counters;
    uint32_t shared;

    if (status == EPA_OK)
        status = check_shape(m, c, err);
    if (status != EPA_OK)
        return status;
    make_ways(c, &l);
    l.kind.groups64 = l.kind.fp8 && m->mlp.fp8_group_size != FUSED_GROUP;
    l.kind.rows64 = l.sends_fp8 && m->fp8_group_size != FUSED_GROUP;
    l.element_bytes = l.kind.fp8 ? 1 : 2;
    l.row_bytes = l.sends_fp8 ? 1 : 2;
    l.scales_at = l.hidden * l.row_bytes;
    l.scales = l.sends_fp8 ? (l.hidden / m->fp8_group_size + 3) / 4 * 4 : 0;
    l.act_groups = l.kind.fp8 ? (l.ffn / m->mlp.fp8_group_size + 3) / 4 * 4 : 0;
    l.meta_at = l.scales_at + l.scales * 4;
    l.message_bytes = (uint32_t)epa_round_up(l.meta_at + sizeof(struct fused_meta), EPA_PACKET);
    if (fused_kernel(l.kind) == NULL)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.input_dtype", "%s", FUSED_NO_FP8_INPUT);
    status = choose_block_rows(c, &l, err);
    if (status == EPA_OK)
        status = count_rows(m, c, &l, err);
    if (status != EPA_OK)
        return status;
    l.swiglu = m->mlp.activation == EPA_ACTIVATION_SWIGLU;
    l.up_tiles = l.swiglu ? (l.ffn + FUSED_GROUP - 1) / FUSED_GROUP
                          : (l.ffn + FUSED_COLUMNS - 1) / FUSED_COLUMNS;
    l.up_steps = (l.hidden * l.element_bytes + GEMM_BLOCK - 1) / GEMM_BLOCK;
    l.down_steps = (l.ffn * l.element_bytes + GEMM_BLOCK - 1) / GEMM_BLOCK;
    l.down_tiles = (l.hidden + FUSED_COLUMNS - 1) / FUSED_COLUMNS;
    for (l.few = choose_few(&l, c);; l.few = 0) { /* 0: no room for tables of picks */
        l.kind.picks = l.few > FUSED_FEW;
        l.spread = l.max_tokens <= SPREAD_TOKENS || l.kind.picks;
        l.sorted = !l.spread && c->sort && (uint64_t)l.max_tokens * l.topk > SORTED_CHOICES;
        l.waves = choose_waves(&l, c->waves);
        shared = fused_cuda_shared_bytes(&l, &tables);
        if (shared <= FUSED_SHARED_BYTES || !l.kind.picks)
            break;
    }
    l.part_channels = choose_part(&l);
    l.parts = (l.hidden + l.part_channels - 1) / l.part_channels;
    l.rows = l.capacity + (l.kind.picks ? 2 * l.few : 0);
    if (shared > FUSED_SHARED_BYTES)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.experts ranks",
            "fused on GPUs has %d bytes of shared memory for a thread block; with %u "
            "experts a rank%s it needs %u; set ranks or moe.experts so that a rank has "
            "fewer%s",
            FUSED_SHARED_BYTES, l.local, has_groups64(&l) ? " and groups of 64 channels" : "",
            shared,
            has_groups64(&l) ? ", or moe.fp8_group_size: 128 and expert.fp8_group_size: 128" : "");
    l.direct = l.size == 1 && !l.ways.apart && !l.ways.gathers;
    words = l.kind.picks ? (uint64_t)l.max_tokens * fused_picks_packets(l.topk)
            : l.few != 0 ? (uint64_t)l.max_tokens * l.topk
                         : (uint64_t)l.waves * l.experts + l.size;
    l.returns = (uint64_t)l.max_tokens * (l.ways.apart ? l.topk : l.size);
    counters = l.ways.by_expert && l.local > l.blocks ? l.local : l.blocks;
    l.counts_bytes = l.size * words * 16;
    l.counts_at = algo_place(&l.heap_bytes, l.counts_bytes, 2);
    l.recv_at = algo_place(&l.heap_bytes, l.rows * l.message_bytes, 1);
    l.arrived_at = algo_place(&l.heap_bytes, counters * 4 + l.few * sizeof(uint64_t), 1);
    l.partial_at = algo_place(&l.heap_bytes,
                              l.returns * (l.ways.gathers && l.ways.apart ? l.size : 1) * l.hidden *
                                  (l.few != 0 ? 4 : 2),
                              1);
    l.flags_at = algo_place(&l.heap_bytes, l.returns * l.parts * sizeof(uint64_t), 1);
    *out = l;
    return EPA_OK;
}
