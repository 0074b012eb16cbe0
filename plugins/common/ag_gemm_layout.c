/* AllGather and GEMM on GPUs: the layout of the heap, who sends to whom, and in which order. */
#include "ag_gemm_cuda.h"

#include <epa2a/packets.h>

#include "device_setup.h"

enum {
    PAGE = 4096,
    ROWS = GEMM_ROWS,
    ENGINE_BYTES = 1 << 20, /* of a rank's rows, from which on copy engines move them */
    CHUNKS = 4,
    CHUNK_BYTES = 4 << 20 /* a chunk costs what 1.5 MiB take: a copy, and that of its word */
};

/* Of an H200, by which is chosen: bytes/s out of it, and flop/s. */
static const double link_rate = 350e9, rate16 = 750e12, rate8 = 1300e12;

/* ---- the layout ---- */

static enum epa_status check_shape(const char *name, const struct epa_ag_gemm *g,
                                   const struct epa_world *world, const struct ag_gemm_config *c,
                                   struct epa_error *err)
{
    if (world->size > AG_GEMM_RANKS)
        return epa_fail(err, EPA_ERR_CONFIG, "%s on GPUs takes 1 to %d ranks, not %u", name,
                        AG_GEMM_RANKS, world->size);
    if (g->n == 0 || g->k == 0 || g->k % 8 != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s needs gemm.k (%u) to be a multiple of 8, and columns (%u)", name, g->k,
                        g->n);
    if (g->dtype == EPA_FP8_E4M3 && g->k % 16 != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s on GPUs with gemm.dtype: fp8 needs gemm.k (%u) to be a multiple of 16",
                        name, g->k);
    if ((uint64_t)world->size * g->max_rows > INT32_MAX - ROWS)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: %u ranks of up to %u rows are too many", name,
                        world->size, g->max_rows);
    if (c->tile_cols != 0 && c->tile_cols != GEMM_BOX && c->tile_cols != 2 * GEMM_BOX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s on GPUs needs algorithm.tile_cols of %d or %d, not %u", name, GEMM_BOX,
                        2 * GEMM_BOX, c->tile_cols);
    if (c->cluster == 2 && c->tile_cols == GEMM_BOX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: algorithm.cluster: 2 needs algorithm.tile_cols of %d, not %u", name,
                        2 * GEMM_BOX, c->tile_cols);
    if (c->cluster == 2 && (c->comm_blocks % 2 != 0 || c->blocks == 1))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: algorithm.cluster: 2 needs algorithm.blocks (%u) of two or more, and "
                        "algorithm.comm_blocks (%u) that are even",
                        name, c->blocks, c->comm_blocks);
    if (c->mode == AG_GEMM_PULL && c->mover == AG_GEMM_COPY_ENGINE)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: copy engines push rows; set algorithm.mode: push, or "
                        "algorithm.mover: sm",
                        name);
    if (c->two_level && world->size % world->local_size != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s with gather: 2d needs as many ranks on each node: %u ranks are not a "
                        "multiple of ranks_per_node (%u); set gather: 1d",
                        name, world->size, world->local_size);
    return EPA_OK;
}

/* Of a rank's rows: one, where they are gathered while a rank multiplies its own. */
static uint32_t choose_chunks(const struct epa_ag_gemm *g, const struct ag_gemm_layout *l)
{
    uint64_t bytes = g->max_rows * l->row_bytes, n = bytes / CHUNK_BYTES;
    double gather = (double)bytes * (l->size - 1) / link_rate;
    double own = 2.0 * g->max_rows * g->n * g->k / (l->groups != 0 ? rate8 : rate16);

    if (l->two_level)
        return CHUNKS;
    return gather < own || n == 0 ? 1 : n < CHUNKS ? (uint32_t)n : CHUNKS;
}

enum epa_status ag_gemm_layout_make(const char *name, const struct epa_ag_gemm *g,
                                    const struct epa_world *world, const struct ag_gemm_config *c,
                                    struct ag_gemm_layout *out, struct epa_error *err)
{
    uint32_t bands = (g->max_rows + ROWS - 1) / ROWS + 2; /* of a rank, in whole clusters */
    uint64_t all = (uint64_t)world->size * g->max_rows;
    bool fp8 = g->dtype == EPA_FP8_E4M3;
    struct ag_gemm_layout l = {
        .size = world->size,
        .max_rows = g->max_rows,
        .groups = fp8 ? epa_ag_gemm_groups(g->k) : 0,
        .row_bytes = (uint64_t)g->k * (fp8 ? 1 : 2),
        .two_level = c->two_level && world->local_size < world->size,
    };
    enum epa_status status = check_shape(name, g, world, c, err);

    if (status != EPA_OK)
        return status;
    l.padded =
        c->mover == AG_GEMM_COPY_ENGINE || (c->mover == AG_GEMM_AUTO && c->mode == AG_GEMM_PUSH &&
                                            g->max_rows * l.row_bytes >= ENGINE_BYTES);
    l.chunks = c->chunks != 0 ? c->chunks : choose_chunks(g, &l);
    l.chunk_rows = (g->max_rows + l.chunks - 1) / l.chunks;
    l.chunk_rows = l.chunk_rows > 0 ? l.chunk_rows : 1;
    l.chunks = (g->max_rows + l.chunk_rows - 1) / l.chunk_rows;
    l.chunks = l.chunks > 0 ? l.chunks : 1;
    l.panels = l.size * ((bands + c->panel - 1) / c->panel + 1);
    l.scales_at = epa_round_up(all * l.row_bytes, PAGE);
    l.set_bytes = l.scales_at + epa_round_up(all * l.groups * sizeof(float), PAGE);
    l.set_bytes = l.set_bytes > 0 ? l.set_bytes : PAGE;
    *out = l;
    return EPA_OK;
}

uint64_t ag_gemm_place_private(const struct ag_gemm_layout *l, uint32_t blocks, char *memory,
                               struct ag_gemm_args *a, uint64_t **next_call)
{
    uint64_t at = 0, words = (uint64_t)l->size * l->chunks;

    a->count = device_take(memory, &at, blocks * sizeof(*a->count));
    a->stored = device_take(memory, &at, (2 * words + 2 + l->chunks) * sizeof(*a->stored));
    a->placed = device_take(memory, &at, (words + 2) * sizeof(*a->placed));
    a->taken[0] = device_take(memory, &at, l->panels * sizeof(uint32_t));
    a->taken[1] = device_take(memory, &at, l->panels * sizeof(uint32_t));
    for (uint32_t i = 0; i < AG_GEMM_SETS; i++)
        next_call[i] = device_take(memory, &at, sizeof(**next_call));
    return at;
}

/* ---- who sends to whom ---- */

struct routes {
    uint32_t node[AG_GEMM_RANKS], place[AG_GEMM_RANKS], nodes, per_node;
};

static enum epa_status find_places(const char *name, const struct ag_gemm_layout *l,
                                   const struct epa_world *w, struct routes *out,
                                   struct epa_error *err)
{
    uint32_t ranks_of[AG_GEMM_RANKS] = {0};

    *out = (struct routes){.nodes = 0};
    for (uint32_t r = 0; r < w->size; r++) {
        uint32_t node = w->node != NULL ? w->node[r] : 0;

        out->node[r] = node;
        out->place[r] = ranks_of[node]++;
        out->nodes = node + 1 > out->nodes ? node + 1 : out->nodes;
    }
    out->per_node = ranks_of[out->node[w->rank]];
    for (uint32_t i = 0; i < out->nodes && l->two_level; i++)
        if (ranks_of[i] != out->per_node)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s with gather: 2d needs as many ranks on each node: node %u has %u, "
                            "and that of rank %u has %u; set gather: 1d",
                            name, i, ranks_of[i], w->rank, out->per_node);
    return EPA_OK;
}

static uint8_t rank_at(const struct routes *r, uint32_t node, uint32_t place)
{
    uint8_t rank = 0;

    while (r->node[rank] != node || r->place[rank] != place)
        rank++;
    return rank;
}

/* Own rows' tiles first, then those of the ranks after this one in its node, then of the nodes
 * after it: as the ranks after this one push to it first, their rows are the first to arrive. */
static uint32_t turn_of(const struct ag_gemm_config *c, const struct routes *r, uint32_t size,
                        uint32_t me, uint32_t rank)
{
    uint32_t node = (r->node[rank] + r->nodes - r->node[me]) % r->nodes;

    if (c->order == AG_GEMM_NONE)
        return rank;
    return node * size + (r->place[rank] + size - r->place[me]) % size;
}

enum epa_status ag_gemm_find_routes(const char *name, const struct ag_gemm_layout *l,
                                    const struct ag_gemm_config *c, const struct epa_world *w,
                                    struct ag_gemm_args *a, struct epa_error *err)
{
    uint32_t me = w->rank, size = w->size, mates = 0, far = 0, turn[AG_GEMM_RANKS];
    bool pull = c->mode == AG_GEMM_PULL;
    struct routes places, *r = &places;
    enum epa_status status = find_places(name, l, w, r, err);

    if (status != EPA_OK)
        return status;
    for (uint32_t s = 0; s < size; s++) {
        bool near = r->node[s] == r->node[me], same = r->place[s] == r->place[me];
        bool passed = !near && l->two_level && !same;
        uint32_t i = s;

        if (near && s != me)
            mates |= 1u << s;
        else if (s != me && !passed)
            far |= 1u << s;
        a->sender[s] = passed ? rank_at(r, r->node[me], r->place[s]) : (uint8_t)s;
        if (pull && s != me && (near || passed))
            a->loaded |= (uint16_t)(1u << s);
        turn[s] = turn_of(c, r, size, me, s);
        for (; i > 0 && turn[a->turn[i - 1]] > turn[s]; i--)
            a->turn[i] = a->turn[i - 1];
        a->turn[i] = (uint8_t)s;
    }
    a->hop[0] = (struct ag_gemm_hop){
        .source = (uint16_t)me,
        .store = (uint16_t)(far | (!pull        ? mates
                                   : mates != 0 ? 1u << me
                                                : 0)),
        .signal = (uint16_t)(far | mates | (pull && mates != 0 ? 1u << me : 0))};
    a->hops = 1;
    for (uint32_t s = 0; s < size && l->two_level && mates != 0; s++)
        if ((far >> s & 1) != 0)
            a->hop[a->hops++] = (struct ag_gemm_hop){.source = (uint16_t)s,
                                                     .store = (uint16_t)(pull ? 0 : mates),
                                                     .signal = (uint16_t)mates};
    return EPA_OK;
}
