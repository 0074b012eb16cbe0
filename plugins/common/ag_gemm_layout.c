/* AllGather and GEMM on GPUs: layout of the heap, routes between ranks and their order, and
 * messages about rows that have not arrived. */
#include "ag_gemm_layout.h"

#include "ag_gemm_device.h"

#include <stdio.h>

#include <epa2a/packets.h>

#include "cublaslt.h"
#include "device_setup.h"
#include "gemm_host.h"

enum {
    PAGE = 4096,
    ROWS = GEMM_ROWS,
    ENGINE_BYTES = 1 << 20, /* bytes of a rank's rows from which copy engines move them */
    CHUNKS = 4,
    LIBRARY_US = 100,     /* time of the product of a rank's rows from which cuBLASLt is faster */
    CHUNK_BYTES = 4 << 20 /* the overhead of a chunk equals the transfer time of 1.5 MiB: two
                           * copies, rows and word */
};

/* Rates of an H200 for the choice of chunks and of the product: bytes/s of its links, and flop/s. */
static const double link_rate = 350e9, rate16 = 750e12, rate8 = 1300e12;

/* ---- products by cuBLASLt ---- */

/* Returns the estimated time of the product of a rank's rows in microseconds. */
static double part_us(const struct epa_ag_gemm *g)
{
    return 2.0 * g->max_rows * g->max_n * g->k / (g->dtype == EPA_FP8_E4M3 ? rate8 : rate16) * 1e6;
}

/* Returns the estimated time of the transfer of a rank's rows in microseconds. */
static double transfer_us(const struct epa_ag_gemm *g, const struct ag_gemm_layout *l)
{
    return (double)g->max_rows * (double)l->row_bytes / link_rate * 1e6;
}

/* Returns the reason why cuBLASLt cannot multiply the rows of each rank, or NULL. *key: the options
 * at fault. */
static const char *refuse_parts(const struct epa_ag_gemm *g, const struct epa_world *world,
                                const struct ag_gemm_config *c, const char **key)
{
    if (g->out_fp8) {
        *key = "algorithm.product gemm.out_dtype";
        return "cuBLASLt has no C in fp8 with a scale for each row and 128 columns";
    }
    if (c->mode == AG_GEMM_PULL || c->mover == AG_GEMM_SM) {
        *key = "algorithm.product algorithm.mode algorithm.mover";
        return "cuBLASLt needs mode: push by copy engines";
    }
    *key = "algorithm.product ranks_per_node";
    return world->local_size < world->size ? "cuBLASLt needs all ranks on one node" : NULL;
}

/* Selects cuBLASLt for long products that hide the transfer of as many rows. Depends only on values
 * that all ranks share. */
static enum epa_status choose_product(const char *name, const struct epa_ag_gemm *g,
                                      const struct epa_world *world, const struct ag_gemm_config *c,
                                      struct ag_gemm_layout *l, struct epa_error *err)
{
    const double us = part_us(g), transfer = transfer_us(g, l);
    const char *key;

    if (c->product == AG_GEMM_OWN)
        return EPA_OK;
    l->refused = refuse_parts(g, world, c, &key);
    if (l->refused != NULL && c->product == AG_GEMM_LIBRARY)
        return epa_fail_key(err, EPA_ERR_CONFIG, key, "%s: algorithm.product: library: %s", name,
                            l->refused);
    l->parts = l->refused == NULL &&
               (c->product == AG_GEMM_LIBRARY || (us >= LIBRARY_US && us >= transfer));
    return EPA_OK;
}

void ag_gemm_describe_rule(const struct epa_ag_gemm *g, const struct ag_gemm_layout *l, char *out,
                           size_t bytes)
{
    if (l->refused != NULL)
        snprintf(out, bytes, "product: auto: %s", l->refused);
    else
        snprintf(out, bytes,
                 "product: auto: %.3g us for a rank's rows, %.3g us to move them; cuBLASLt from %d "
                 "us",
                 part_us(g), transfer_us(g, l), LIBRARY_US);
}

/* ---- the layout ---- */

static enum epa_status check_shape(const char *name, const struct epa_ag_gemm *g,
                                   const struct epa_world *world, const struct ag_gemm_config *c,
                                   struct epa_error *err)
{
    if (world->size > AG_GEMM_RANKS)
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks", "%s on GPUs takes 1 to %d ranks, not %u",
                            name, AG_GEMM_RANKS, world->size);
    if (g->max_n == 0 || g->k == 0 || g->k % 8 != 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "gemm.k",
                            "%s needs gemm.k (%u) to be a multiple of 8, and columns (%u)", name,
                            g->k, g->max_n);
    if (g->dtype == EPA_FP8_E4M3 && g->k % 16 != 0)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "gemm.k gemm.dtype",
            "%s on GPUs with gemm.dtype: fp8 needs gemm.k (%u) to be a multiple of 16", name, g->k);
    if ((uint64_t)world->size * g->max_rows > INT32_MAX - ROWS)
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks",
                            "%s: %u ranks of up to %u rows are too many", name, world->size,
                            g->max_rows);
    if (c->tile_cols != 0 && c->tile_cols != GEMM_BOX && c->tile_cols != 2 * GEMM_BOX)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.tile_cols",
                            "%s on GPUs needs algorithm.tile_cols of %d or %d, not %u", name,
                            GEMM_BOX, 2 * GEMM_BOX, c->tile_cols);
    if (c->cluster == 2 && c->tile_cols == GEMM_BOX)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.cluster",
                            "%s: algorithm.cluster: 2 needs algorithm.tile_cols of %d, not %u",
                            name, 2 * GEMM_BOX, c->tile_cols);
    if (c->cluster == 2 && (c->comm_blocks % 2 != 0 || c->blocks == 1))
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "algorithm.cluster",
            "%s: algorithm.cluster: 2 needs algorithm.blocks (%u) of two or more, and "
            "algorithm.comm_blocks (%u) that are even",
            name, c->blocks, c->comm_blocks);
    if (c->mode == AG_GEMM_PULL &&
        (c->mover == AG_GEMM_COPY_ENGINE || c->forward == AG_GEMM_COPY_ENGINE))
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.mode algorithm.mover algorithm.forward",
                            "%s: copy engines push rows; set algorithm.mode: push, or "
                            "algorithm.mover and algorithm.forward: sm",
                            name);
    if (c->two_level && world->size % world->local_size != 0)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "algorithm.gather ranks_per_node",
            "%s with gather: 2d needs as many ranks on each node: %u ranks are not a "
            "multiple of ranks_per_node (%u); set gather: 1d",
            name, world->size, world->local_size);
    return EPA_OK;
}

/* Returns the number of chunks per rank. One chunk is enough if the gather takes less time than the
 * multiplication of the rank's own rows. */
static uint32_t choose_chunks(const struct epa_ag_gemm *g, const struct ag_gemm_layout *l)
{
    uint64_t bytes = g->max_rows * l->row_bytes, n = bytes / CHUNK_BYTES;
    double gather = (double)bytes * (l->size - 1) / link_rate;
    double own = 2.0 * g->max_rows * g->max_n * g->k / (l->groups != 0 ? rate8 : rate16);

    if (l->two_level)
        return CHUNKS;
    return gather < own || n == 0 ? 1 : n < CHUNKS ? (uint32_t)n : CHUNKS;
}

enum epa_status ag_gemm_layout_make(const char *name, const struct epa_ag_gemm *g,
                                    const struct epa_world *world, const struct ag_gemm_config *c,
                                    struct ag_gemm_layout *out, struct epa_error *err)
{
    uint32_t bands = (g->max_rows + ROWS - 1) / ROWS + 2; /* bands of a rank, rounded up to whole
                                                           * clusters */
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

    if (status == EPA_OK)
        status = choose_product(name, g, world, c, &l, err);
    if (status != EPA_OK)
        return status;
    l.engines = c->mover == AG_GEMM_COPY_ENGINE || l.parts ||
                (c->mover == AG_GEMM_AUTO && c->mode == AG_GEMM_PUSH &&
                 g->max_rows * l.row_bytes >= ENGINE_BYTES);
    l.forwards = c->forward == AG_GEMM_COPY_ENGINE && l.two_level && world->local_size > 1;
    l.padded = l.engines || l.forwards;
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

uint64_t ag_gemm_place_private(const struct ag_gemm_layout *l, uint32_t blocks, uint64_t notes,
                               char *memory, struct ag_gemm_args *a, uint64_t **next_call)
{
    uint64_t at = 0, words = (uint64_t)l->size * l->chunks;

    a->count = device_take(memory, &at, blocks * sizeof(*a->count));
    a->stored = device_take(memory, &at, (2 * words + 2 + l->chunks) * sizeof(*a->stored));
    a->placed = device_take(memory, &at, (words + 2) * sizeof(*a->placed));
    a->gate = device_take(memory, &at, l->forwards ? words * sizeof(*a->gate) : 0);
    a->forwarded = device_take(memory, &at, l->forwards ? words * sizeof(*a->forwarded) : 0);
    a->taken[0] = device_take(memory, &at, l->panels * sizeof(uint32_t));
    a->taken[1] = device_take(memory, &at, l->panels * sizeof(uint32_t));
    for (uint32_t i = 0; i < AG_GEMM_SETS; i++)
        next_call[i] = device_take(memory, &at, sizeof(**next_call));
    a->notes = device_take(memory, &at, notes * sizeof(*a->notes));
    if (notes == 0)
        a->notes = NULL;
    return at;
}

enum epa_status ag_gemm_cuda_plan(const char *name, const struct epa_ag_gemm *g,
                                  const struct epa_world *world, const struct ag_gemm_config *c,
                                  struct epa_footprint *out, struct epa_error *err)
{
    uint64_t *next_call[AG_GEMM_SETS];
    struct ag_gemm_args none;
    struct ag_gemm_layout l;
    enum epa_status status = ag_gemm_layout_make(name, g, world, c, &l, err);

    if (status != EPA_OK)
        return status;
    *out = (struct epa_footprint){
        .heap_bytes = AG_GEMM_SETS * l.set_bytes,
        .device_bytes = ag_gemm_place_private(&l, 0, 0, NULL, &none, next_call),
        .signals = l.size * l.chunks,
        .in_flight = 1,
        .flops = 2.0 * world->size * g->max_rows * g->max_n * g->k,
        .u.ag_gemm = {.row_bytes = l.row_bytes + l.groups * sizeof(float),
                      .control_bytes = (uint64_t)l.chunks * sizeof(uint64_t),
                      .two_level = c->two_level,
                      .all_room = c->library != AG_GEMM_KERNELS || l.parts},
    };
    if (c->library != AG_GEMM_KERNELS) /* workspace, and a copy of C for the timing of algorithms */
        out->device_bytes += CUBLASLT_WORKSPACE + (uint64_t)l.size * l.max_rows * g->max_n * 2;
    if (l.parts)
        out->device_bytes += CUBLASLT_WORKSPACE + (uint64_t)l.max_rows * g->max_n * 2 +
                             (uint64_t)l.size * l.max_rows * l.groups * sizeof(float);
    return EPA_OK;
}

/* ---- routes ---- */

enum epa_status ag_gemm_find_routes(const char *name, const struct ag_gemm_layout *l,
                                    const struct ag_gemm_config *c, const struct epa_world *w,
                                    struct ag_gemm_args *a, struct epa_error *err)
{
    uint32_t me = w->rank, size = w->size, mates = 0, far = 0, turn[AG_GEMM_RANKS];
    bool pull = c->mode == AG_GEMM_PULL;
    struct gemm_places places, *r = &places;
    enum epa_status status = gemm_find_places(name, w, l->two_level, r, err);

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
        a->sender[s] = (uint8_t)(passed ? gemm_rank_at(r, r->node[me], r->place[s]) : s);
        if (pull && s != me && (near || passed))
            a->loaded |= (uint16_t)(1u << s);
        turn[s] = c->order == AG_GEMM_NONE ? s : gemm_turn_of(r, me, s);
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

/* ---- failures ---- */

void ag_gemm_explain_fault(const struct ag_gemm_layout *l, const struct ag_gemm_args *a,
                           const struct epa_fault *f, struct epa_error *err)
{
    uint32_t first = f->index * l->chunk_rows, rows = f->what >> 8;
    uint32_t end = first + l->chunk_rows < l->max_rows ? first + l->chunk_rows : l->max_rows;
    uint32_t sender = a->sender[f->peer % AG_GEMM_RANKS];
    char what[64] = "";

    switch ((enum ag_gemm_wait)(f->what & 0xff)) {
    case AG_GEMM_WAIT_TILE:
        snprintf(what, sizeof(what), "tile of rows %u to %u: ", f->stage, f->stage + rows - 1);
        break;
    case AG_GEMM_WAIT_PANEL:
        snprintf(what, sizeof(what), "tile with row %u: ", f->stage);
        break;
    case AG_GEMM_WAIT_PASS:
        snprintf(what, sizeof(what), "to pass on: ");
        break;
    case AG_GEMM_WAIT_LOAD:
        snprintf(what, sizeof(what), "to load: ");
        break;
    case AG_GEMM_WAIT_RING:
        (void)epa_fail(epa_awaits(err, f->peer), (enum epa_status)f->status,
                       "waited %.3f s for room in the ring of puts between nodes, for rows %u to "
                       "%u to rank %u: the proxy has taken %llu puts, wants %llu",
                       (double)f->waited_ns * 1e-9, first, end > first ? end - 1 : first, f->peer,
                       (unsigned long long)f->seen, (unsigned long long)f->wanted);
        return;
    case AG_GEMM_WAIT_END:
        break;
    }
    (void)epa_fail(epa_awaits(epa_awaits(err, sender), f->peer), (enum epa_status)f->status,
                   "waited %.3f s: %srows %u to %u of rank %u, from rank %u (its signal is %llu, "
                   "wants %llu)",
                   (double)f->waited_ns * 1e-9, what, first, end > first ? end - 1 : first, f->peer,
                   sender, (unsigned long long)f->seen, (unsigned long long)f->wanted);
}
