/* fused: supported shapes, and the layout of the heap on hosts. */
#include "fused_layout.h"

#include <epa2a/gemm.h>

#include "../../common/algo_host.h"

static enum epa_status check_rows(const struct epa_moe *m, const struct epa_world *world,
                                  struct epa_error *err)
{
    uint64_t most = m->topk < m->experts / world->size ? m->topk : m->experts / world->size;

    if ((uint64_t)world->size * m->max_tokens * most >= UINT32_MAX)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.max_tokens ranks",
            "fused numbers rows in 32 bits, which ranks (%u) x moe.max_tokens (%u) x "
            "%llu exceed",
            world->size, m->max_tokens, (unsigned long long)most);
    return EPA_OK;
}

/* The parts of a tile on GPUs fill registers and shared memory, so its size is fixed. */
static enum epa_status check_device_tiles(const struct fused_config *c, struct epa_error *err)
{
    const char *option = c->tile_cols != 0       ? "tile_cols"
                         : c->tile_k != 0        ? "tile_k"
                         : c->group_blocks != 1  ? "group_blocks"
                         : c->column_splits != 0 ? "column_splits"
                                                 : NULL;
    char key[sizeof(err->key)];

    if (option == NULL)
        return EPA_OK;
    snprintf(key, sizeof(key), "algorithm.%s", option);
    return epa_fail_key(
        err, EPA_ERR_CONFIG, key,
        "fused: the kernels for GPUs have one tile, of 256 columns and 128 bytes of "
        "k: the sums of 128 rows fill 128 registers of each thread that multiplies, "
        "and the stages of k fill the shared memory; leave %s out",
        option);
}

static enum epa_status check_host_tiles(const struct fused_config *c, struct epa_error *err)
{
    if (c->combine_cols % FUSED_PART_UNIT != 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.combine_cols",
                            "fused needs combine_cols (%u) to be a multiple of %d", c->combine_cols,
                            FUSED_PART_UNIT);
    if (c->tile_cols % FUSED_TILE == 0 && c->tile_k % FUSED_TILE == 0)
        return EPA_OK;
    return epa_fail_key(err, EPA_ERR_CONFIG,
                        c->tile_cols % FUSED_TILE != 0 ? "algorithm.tile_cols" : "algorithm.tile_k",
                        "fused needs tile_cols (%u) and tile_k (%u) to be multiples of %d, the "
                        "columns and elements of k that share a scale of FP8 weights",
                        c->tile_cols, c->tile_k, FUSED_TILE);
}

enum epa_status fused_check(const struct epa_moe *m, const struct epa_world *world,
                            const struct fused_config *c, bool device, struct epa_error *err)
{
    const struct algo_limits limits = {
        .name = "fused",
        .topk = FUSED_TOPK,
        .ranks = FUSED_RANKS,
        .device_experts = FUSED_DEVICE_EXPERTS,
        .device_ranks = FUSED_DEVICE_RANKS,
        .fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8 ? "dispatch_dtype" : NULL,
        .native = c->dispatch_dtype == ALGO_DTYPE_NATIVE,
        .host_option = c->combine_cols != 0 ? "combine_cols" : NULL,
        .device_option = c->blocks != 0           ? "blocks"
                         : c->lag != FUSED_LAG    ? "lag"
                         : c->waves != 0          ? "waves"
                         : c->reduce_workers != 0 ? "reduce_workers"
                                                  : NULL,
    };
    enum epa_status status = algo_check(&limits, m, world, device, err);

    if (status == EPA_OK && m->mlp.ffn == 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "expert.kind",
                            "fused computes the GEMMs of experts, and synthetic experts have none; "
                            "set expert.kind: mlp");
    if (status == EPA_OK && c->tail_workers != 0 && !c->tail)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.tail_workers",
                            "fused: tail_workers (%u) is for two-stage dispatch; set tail: true",
                            c->tail_workers);
    if (status == EPA_OK && device)
        return check_device_tiles(c, err);
    return status == EPA_OK ? check_host_tiles(c, err) : status;
}

static void count_rows(const struct epa_moe *m, const struct fused_config *c,
                       struct fused_layout *l)
{
    uint32_t here = m->topk < l->local ? m->topk : l->local; /* maximum choices of a token at a
                                                              * rank */
    double even = (double)m->max_tokens * m->topk;
    uint32_t most_chunks = 256;

    l->places = !c->dedup || m->topk < l->size ? m->topk : l->size;
    l->source_choices = m->max_tokens * here;
    l->source_rows = c->dedup ? m->max_tokens : l->source_choices;
    l->out_rows = (uint64_t)m->max_tokens * l->places;
    l->entries = (uint64_t)l->size * l->source_choices;
    if (c->capacity > 0 && even * c->capacity < (double)l->entries)
        l->entries = (uint64_t)(even * c->capacity) + 1;
    l->rows = (uint64_t)l->size * l->source_rows;
    if (!l->padded && l->entries < l->rows)
        l->rows = l->entries;
    l->chunk = (uint32_t)epa_round_up((l->source_rows + most_chunks - 1) / most_chunks, 16);
    l->chunks = (l->source_rows + l->chunk - 1) / l->chunk;
    l->units = c->ready == FUSED_READY_EXPERT ? l->local : l->chunks;
    l->block_rows = (uint32_t)epa_round_up(c->block_rows != 0 ? c->block_rows : FUSED_BLOCK_ROWS,
                                           EPA_GEMM_ROWS);
    l->blocks = (uint32_t)(l->entries / l->block_rows) + l->local;
    l->tile_cols = c->tile_cols != 0 ? c->tile_cols : FUSED_TILE;
    l->out_cols = c->combine_cols != 0 && c->combine_cols < l->hidden ? c->combine_cols : l->hidden;
    l->out_parts = (l->hidden + l->out_cols - 1) / l->out_cols;
}

static void place_regions(struct fused_layout *l)
{
    uint64_t words = FUSED_HEAD_WORDS + 2 * l->size + l->local + l->source_rows + 1;

    l->head_bytes =
        epa_round_up(words * 4 + l->source_choices * sizeof(struct fused_choice) + 4, FUSED_LINE);
    l->scales_at = l->fp8 ? l->hidden : 0;
    l->row_bytes = l->fp8 ? epa_round_up(l->hidden + l->hidden / l->group * 4, FUSED_LINE)
                          : 2 * (uint64_t)l->hidden;
    l->output_bytes = 2 * (uint64_t)l->hidden;
    l->rows_bytes = l->rows * l->row_bytes;
    l->out_bytes = l->out_rows * l->output_bytes;
    if (l->gather || l->puts)
        l->done_bytes = (uint64_t)l->size * l->source_rows * l->output_bytes;
    if (l->puts)
        l->staging_bytes = l->out_rows * l->row_bytes;
    l->heads_at = algo_place(&l->heap_bytes, l->size * l->head_bytes, FUSED_BUFFERS);
    l->sent_heads_at = algo_place(&l->heap_bytes, l->size * l->head_bytes, FUSED_BUFFERS);
    l->rows_at = algo_place(&l->heap_bytes, l->rows_bytes, FUSED_BUFFERS);
    l->out_at = algo_place(&l->heap_bytes, l->out_bytes, FUSED_BUFFERS);
    l->done_at = algo_place(&l->heap_bytes, l->done_bytes, FUSED_BUFFERS);
    l->staging_at = algo_place(&l->heap_bytes, l->staging_bytes, FUSED_BUFFERS);
    l->head_flags_at = algo_place(&l->heap_bytes, l->size * sizeof(uint64_t), 1);
    l->row_flags_at =
        algo_place(&l->heap_bytes, (uint64_t)l->size * l->units * sizeof(uint64_t), 1);
    l->out_flags_at = algo_place(&l->heap_bytes, l->out_rows * l->out_parts * sizeof(uint64_t), 1);
}

enum epa_status fused_layout_make(const struct epa_moe *m, const struct epa_world *world,
                                  uint32_t transport_flags, const struct fused_config *c,
                                  struct fused_layout *out, struct epa_error *err)
{
    enum epa_status status = fused_check(m, world, c, false, err);
    struct fused_layout l = {
        .size = world->size,
        .experts = m->experts,
        .max_tokens = m->max_tokens,
        .topk = m->topk,
        .hidden = m->hidden,
        .ffn = m->mlp.ffn,
        .up_rows = epa_mlp_up_rows(&m->mlp),
        .group = m->fp8_group_size,
        .inter_group = m->mlp.fp8_group_size,
        .dtype = (enum epa_dtype)m->dtype,
        .weights = (enum epa_dtype)m->mlp.dtype,
        .fp8 = c->dispatch_dtype == ALGO_DTYPE_FP8,
        .dedup = c->dedup,
        .padded = c->recv_layout == FUSED_PADDED,
        .gather = c->combine_mode == FUSED_GATHER,
        .puts = algo_puts(world, transport_flags),
    };
    uint64_t signals;

    if (status == EPA_OK)
        status = check_rows(m, world, err);
    if (status != EPA_OK)
        return status;
    l.local = l.experts / l.size;
    if (l.weights == EPA_FP8_E4M3) {
        l.row_groups = l.hidden / l.group;
        l.inter_groups = l.ffn / l.inter_group;
    } else if (l.weights == EPA_INT8) {
        l.row_groups = l.inter_groups = 1;
    }
    count_rows(m, c, &l);
    place_regions(&l);
    signals = l.puts ? l.size * (1 + (uint64_t)l.units + (uint64_t)l.chunks * l.out_parts) : 0;
    if (signals > UINT32_MAX)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.ready algorithm.combine_cols",
                            "fused would need %llu signals; set ready: block, and leave "
                            "combine_cols out",
                            (unsigned long long)signals);
    l.signals = (uint32_t)signals;
    *out = l;
    return EPA_OK;
}
