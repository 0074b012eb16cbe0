/* fused on GPUs: queues the kernel of a call (fused_layer.cuh) and explains its time-outs. */
#include "fused_cuda.h"

#include "fused_cuda_layout.h"
#include "fused_halves.h"
#include "fused_layer.h"
#include "fused_trace.h"

#include <stdlib.h>
#include <string.h>

#include "../../common/algo_host.h"

struct fused_cuda {
    struct device d; /* first */
    struct fused_cuda_layout l;
    struct fused_args *args; /* arguments that all calls share, except those in d; aligned like
                              * tensor maps */
    uint32_t blocks;
    struct fused_count_args rows; /* of the last call, for the GEMMs alone */
};

/* BATCH_BYTES: rows that a warp sends before it counts them, 4 to 16 rows. SUMS: sums that a warp
 * computes before it sets their flags, if a block has at least SUMS_FROM tokens. */
enum { BATCH_BYTES = 16 << 10, SUMS = 4, SUMS_FROM = 80 };

static void place_private(struct device *d, char *memory, uint64_t *at)
{
    struct fused_cuda *c = (struct fused_cuda *)d;
    const struct fused_cuda_layout *l = &c->l;
    struct fused_args *a = c->args;
    uint64_t slots = (uint64_t)l->size * l->max_tokens;
    uint64_t packed = (uint64_t)l->local * FUSED_COLUMNS * GEMM_BLOCK; /* per tile and block of K */
    uint64_t counters = FUSED_COUNTERS + l->experts + 3 * (uint64_t)l->blocks;
    bool listed = l->sorted && l->waves == 1;

    a->up = device_take(memory, at, packed * l->up_tiles * l->up_steps);
    a->down = device_take(memory, at, packed * l->down_tiles * l->down_steps);
    a->act_rows = device_take(memory, at, l->capacity * l->ffn * l->element_bytes);
    a->act_row_scales = device_take(memory, at, l->capacity * l->act_groups * sizeof(float));
    a->y = device_take(memory, at, l->capacity * l->hidden * 2);
    a->state = device_take(memory, at, counters * sizeof(*a->state));
    for (uint32_t i = 0; i < 2; i++)
        a->sum[i] = device_take(memory, at, 4 * (1 + (uint64_t)l->waves * l->experts + l->size));
    a->list =
        device_take(memory, at, listed ? (uint64_t)l->max_tokens * l->topk * sizeof(*a->list) : 0);
    a->quantised = device_take(
        memory, at, listed && l->sends_fp8 ? (uint64_t)l->max_tokens * l->message_bytes : 0);
    a->done = device_take(memory, at, slots * sizeof(*a->done));
    a->place = device_take(memory, at, slots * l->topk * sizeof(*a->place));
    a->queue = device_take(memory, at, (l->ways.apart ? l->capacity : slots) * sizeof(*a->queue));
    a->ways.row_of =
        device_take(memory, at, listed && l->ways.once ? (uint64_t)l->max_tokens * l->topk * 4 : 0);
    a->ways.widened = device_take(memory, at, l->widens ? l->capacity * l->hidden * 2 : 0);
    c->rows.start = device_take(memory, at, l->local * sizeof(*c->rows.start));
    c->rows.count = device_take(memory, at, l->local * sizeof(*c->rows.count));
    /* Last, so that the other offsets do not depend on the trace. */
    if (d->stamps)
        a->notes = device_take(
            memory, at, fused_intervals(l->blocks, l->up_tiles, l->down_tiles) * sizeof(*a->notes));
}

/* ---- calls ---- */

/* Queues a call. `steps`: blocks of K that each tile multiplies; 0: all. */
static enum epa_status queue_call(struct fused_cuda *c, struct epa_moe *m, uint32_t steps)
{
    struct fused_args a = *c->args;
    struct fused_kernel_kind kind = c->l.kind;
    cudaLaunchConfig_t config = {.gridDim = {c->blocks, 1, 1},
                                 .blockDim = {FUSED_THREADS, 1, 1},
                                 .dynamicSmemBytes = c->d.shared_bytes[0],
                                 .stream = c->d.backend->stream};
    cudaError_t code = cudaSetDevice(c->d.backend->device);
    const void *kernel;
    uint32_t last;

    c->d.last.status = EPA_OK;
    kind.input = device_input_of(c->l.sends_fp8, m->dtype, m->x_dtype);
    kernel = fused_kernel(kind);
    if (kernel == NULL)
        return device_fail(&c->d, EPA_ERR_CONFIG, "", "%s", FUSED_NO_FP8_INPUT);
    m->epoch = ++c->d.epoch;
    a.c = device_args_of(&c->d, m, 0, 0);
    a.c.stamps = a.c.stamped != 0 ? a.c.stamps : NULL;
    if (steps != 0)
        a.up_steps = a.down_steps = steps;
    last = a.ways.part == FUSED_PART_UP ? FUSED_PART_DOWN : a.ways.part;
    for (; a.ways.part <= last && code == cudaSuccess; a.ways.part++)
        code = cudaLaunchKernelExC(&config, kernel, (void *[]){&a});
    return code == cudaSuccess ? EPA_OK : device_call_failed(&c->d, "launching a kernel", code);
}

static enum epa_status run_layer(struct epa_algorithm *base, struct epa_problem *problem)
{
    return queue_call((struct fused_cuda *)base, &problem->u.moe, 0);
}

/* Tiles wait, are counted and stored as in a layer, and multiply one block of K. */
static enum epa_status run_moving(struct epa_algorithm *base, struct epa_problem *problem)
{
    return queue_call((struct fused_cuda *)base, &problem->u.moe, 1);
}

static cudaError_t queue_products(const struct fused_cuda *c)
{
    return fused_queue_products(&c->l, c->args, device_own(&c->d, c->args->recv), c->blocks,
                                &c->rows, c->d.backend->stream);
}

static enum epa_status run_products(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct fused_cuda *c = (struct fused_cuda *)base;
    cudaError_t code = cudaSetDevice(c->d.backend->device);

    (void)problem;
    c->d.last.status = EPA_OK;
    if (code == cudaSuccess)
        code = queue_products(c);
    return code == cudaSuccess ? EPA_OK : device_call_failed(&c->d, "launching products", code);
}

static const struct epa_stage stages[] = {
    {.name = "layer", .kind = EPA_STAGE_WHOLE, .run = run_layer},
};

static const struct epa_stage halves[EPA_PARTS] = {
    {.name = "dispatch and combine", .kind = EPA_STAGE_WHOLE, .run = run_moving},
    {.name = "gemms", .kind = EPA_STAGE_WHOLE, .run = run_products},
};

/* Parts of the messages about waits of tiles. */
static const struct {
    const char *who, *what, *state;
} of_tile[] = {
    [FUSED_WAIT_ROWS] = {"tiles", "its rows", "have arrived"},
    [FUSED_WAIT_EXPERT] = {"tiles", "all rows of the expert", "have arrived"},
    [FUSED_WAIT_COPIES] = {"tiles", "the tail to copy its rows", "are copied"},
    [FUSED_WAIT_ACTS] = {"output tiles", "the intermediate", "halves of tiles are ready"},
};

static void explain_fault(const struct epa_fault *f, uint32_t rank, struct epa_error *err)
{
    double waited = (double)f->waited_ns * 1e-9;
    enum epa_status status = (enum epa_status)f->status;
    unsigned long long seen = f->seen, wanted = f->wanted;

    switch ((enum fused_wait)f->what) {
    case FUSED_WAIT_ROOM:
        (void)epa_fail_key(
            err, EPA_ERR_CONFIG, "algorithm.capacity",
            "%llu rows, in whole blocks, go to rank %u, and algorithm.capacity leaves "
            "room for %llu; raise it, or set it to 0 for the worst case",
            seen, f->peer, wanted);
        return;
    case FUSED_WAIT_COUNTS:
    case FUSED_WAIT_CHOICES:
        (void)epa_fail(epa_awaits(err, f->peer), status,
                       "call %llu: waited %.3f s for %s of rank %u: the last are of call %llu",
                       wanted, waited, f->what == FUSED_WAIT_COUNTS ? "counts" : "choices", f->peer,
                       seen);
        return;
    case FUSED_WAIT_TOKEN:
        (void)epa_fail(epa_awaits(err, f->peer), status,
                       "tiles of rank %u: waited %.3f s for the row of token %u of rank %u: its "
                       "flag is %llu, not %llu",
                       rank, waited, f->index, f->peer, seen, wanted);
        return;
    case FUSED_WAIT_ROWS:
    case FUSED_WAIT_EXPERT:
    case FUSED_WAIT_COPIES:
    case FUSED_WAIT_ACTS:
        (void)epa_fail(err, status,
                       "%s of block %u, of expert %u of rank %u: waited %.3f s for %s: %llu of "
                       "%llu %s",
                       of_tile[f->what].who, f->index, f->peer, rank, waited, of_tile[f->what].what,
                       seen, wanted, of_tile[f->what].state);
        return;
    case FUSED_WAIT_OUTPUTS:
        (void)epa_fail(err, status,
                       "rank %u: waited %.3f s for expert outputs: fewer than %u tokens have "
                       "complete outputs",
                       rank, waited, f->index + 1);
        return;
    case FUSED_WAIT_BLOCK:
        (void)epa_fail(err, status,
                       "sums of block %u of rank %u: waited %.3f s for its outputs: %llu of %llu "
                       "halves of tiles are ready",
                       f->index, rank, waited, seen, wanted);
        return;
    case FUSED_WAIT_PARTIAL:
        (void)epa_fail(epa_awaits(err, f->peer), status,
                       "waited %.3f s for the sum of rank %u for my token %u: its flag is %llu, "
                       "not %llu",
                       waited, f->peer, f->index, seen, wanted);
        return;
    }
}

static enum epa_status trace_tiles(const struct device *d)
{
    return fused_trace_tiles(d->backend, d->trace, ((const struct fused_cuda *)d)->args,
                             d->args.warps);
}

static const struct device_kind fused_kind = {
    .name = "fused",
    .stages = 1,
    .halves = 1,
    .phase =
        {
            [FUSED_PHASE_LAYOUT] = "layout",
            [FUSED_PHASE_DISPATCH] = "dispatch",
            [FUSED_PHASE_TILES] = "tiles",
            [FUSED_PHASE_SEND] = "combine, send",
            [FUSED_PHASE_SUM] = "combine, sum",
            [FUSED_PHASE_TAIL] = "tail",
        },
    .place = place_private,
    .trace = trace_tiles,
    .explain = explain_fault,
};

/* ---- set-up ---- */

static enum epa_status make_maps(struct fused_cuda *c, struct epa_error *err)
{
    const struct fused_cuda_layout *l = &c->l;
    struct fused_args *a = c->args;
    int dtype = l->kind.fp8 ? EPA_FP8_E4M3 : l->kind.f16 ? EPA_F16 : EPA_BF16;
    char *rows = l->widens ? a->ways.widened : device_own(&c->d, a->recv);
    uint64_t stride = l->widens ? 2 * (uint64_t)l->hidden : l->message_bytes;

    if (!gemm_map_rows(&a->rows, dtype, rows, l->rows, l->hidden, stride) ||
        !gemm_map_rows(&a->act, dtype, a->act_rows, l->capacity, l->ffn,
                       (size_t)l->ffn * l->element_bytes))
        return epa_fail(
            err, EPA_ERR_UNSUPPORTED,
            "fused: the driver of GPU %d cannot create tensor maps of rows of %u and %u "
            "channels",
            c->d.backend->device, l->hidden, l->ffn);
    return EPA_OK;
}

static uint32_t limit_blocks(uint32_t n, uint32_t blocks)
{
    return n == 0 || n > blocks ? blocks : n;
}

static void fill_ways(const struct fused_cuda *c, struct fused_ways *out)
{
    struct fused_ways w = c->l.ways;

    w.dispatchers = limit_blocks(w.dispatchers, c->blocks);
    w.tails = limit_blocks(w.tails, c->blocks);
    /* At least one block returns sums. */
    if (w.reducers >= c->blocks)
        w.reducers = c->blocks - 1;
    w.combiners = limit_blocks(w.combiners, c->blocks - w.reducers);
    w.row_of = out->row_of;
    w.widened = c->l.widens ? out->widened : NULL;
    *out = w;
}

static void fill_args(struct fused_cuda *c, const struct fused_config *config,
                      const struct epa_mlp *mlp)
{
    const struct fused_cuda_layout *l = &c->l;
    struct fused_args *a = c->args;
    for (uint32_t i = 0; i < 2; i++)
        a->counts[i] = c->d.heap + l->counts_at + i * l->counts_bytes;
    a->recv = c->d.heap + l->recv_at;
    a->arrived = c->d.heap + l->arrived_at;
    a->partial = c->d.heap + l->partial_at;
    a->flags = c->d.heap + l->flags_at;
    a->message_bytes = l->message_bytes;
    a->scales_at = l->scales_at;
    a->meta_at = l->meta_at;
    a->capacity = (uint32_t)l->capacity;
    a->blocks = l->blocks;
    a->up_tiles = l->up_tiles;
    a->down_tiles = l->down_tiles;
    a->up_from = mlp->up;
    a->down_from = mlp->down;
    a->up_steps = l->up_steps;
    a->down_steps = l->down_steps;
    a->up_row_bytes = l->hidden * l->element_bytes;
    a->down_row_bytes = l->ffn * l->element_bytes;
    a->up_rows = l->up_rows;
    a->ffn = l->ffn;
    a->swiglu = l->swiglu;
    a->act_groups = l->act_groups;
    a->lag_tiles = config->lag * c->blocks;
    a->direct = l->direct;
    a->spread = l->spread;
    a->parts = l->parts;
    a->part_channels = l->part_channels;
    a->batch = BATCH_BYTES / l->message_bytes;
    a->batch = a->batch < 4 ? 4 : a->batch > 16 ? 16 : a->batch;
    /* One at a time for few tokens: the warp that adds up a token waits for its outputs
     * (fused_early()). */
    a->sums =
        l->parts == 1 && !l->spread && (uint64_t)l->size * l->max_tokens >= SUMS_FROM * c->blocks
            ? SUMS
            : 1;
    a->dynamic = config->queue == FUSED_DYNAMIC;
    fill_ways(c, &a->ways);
    a->up_scale = mlp->up_scale;
    a->down_scale = mlp->down_scale;
}

static void fill_count_args(struct fused_cuda *c)
{
    const struct fused_cuda_layout *l = &c->l;
    struct fused_count_args *r = &c->rows;

    for (uint32_t i = 0; i < 2; i++)
        r->packets[i] = device_own(&c->d, c->args->counts[i]);
    r->calls = c->d.calls;
    r->rank = c->d.args.v.rank;
    r->size = l->size;
    r->experts = l->experts;
    r->local = l->local;
    r->topk = l->topk;
    r->waves = l->waves;
    r->block_rows = l->block_rows;
    r->few = l->few;
    r->picks = l->kind.picks;
}

/* Packs the weights once, so that the weights of a stage are contiguous. Then queues products of no
 * rows, which loads their kernels: a recording of a graph must not load them. */
static enum epa_status pack_weights(struct fused_cuda *c, struct epa_error *err)
{
    struct fused_args a = *c->args;
    cudaLaunchConfig_t config = {
        .gridDim = {8 * c->blocks, 1, 1}, .blockDim = {256, 1, 1}, .stream = c->d.backend->stream};
    cudaError_t code;

    a.c = c->d.args;
    code = cudaLaunchKernelExC(&config, fused_pack_kernel(), (void *[]){&a});
    if (code == cudaSuccess)
        code = queue_products(c);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(c->d.backend->stream);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "fused: packing weights on GPU %d: %s",
                        c->d.backend->device, cudaGetErrorString(code));
    return EPA_OK;
}

/* Sets the bytes that cross to another rank, without the counters of arrived rows: the number of
 * additions to a counter depends on timing. */
static void fill_traffic(const struct fused_cuda_layout *l, uint32_t group,
                         struct epa_moe_footprint *out)
{
    /* Copies of quantised rows, and bulk stores, include the padding of scales. */
    bool padded = l->sorted && (l->waves > 1 || l->kind.input != DEVICE_FP8);
    uint64_t scales = l->sends_fp8 ? l->hidden / group * sizeof(float) : 0;
    uint64_t row = padded ? l->meta_at : l->scales_at + scales;

    out->control_bytes = l->counts_bytes / l->size;
    if (l->few != 0) {
        out->dispatch_row_bytes = row;
        if (l->kind.picks) /* a flag per token, also of missing tokens */
            out->control_bytes += l->max_tokens * sizeof(uint64_t);
        else
            out->dispatch_row_bytes += sizeof(uint64_t);
        out->combine_row_bytes = (uint64_t)l->hidden * 4; /* packets */
        return;
    }
    /* Metadata of a row. A row that refers to another row consists of its metadata. */
    out->dispatch_row_bytes = row + (l->ways.once ? 0 : sizeof(struct fused_meta));
    out->choice_bytes = l->ways.once ? sizeof(struct fused_meta) : 0;
    out->combine_row_bytes = (uint64_t)l->hidden * 2 + l->parts * sizeof(uint64_t); /* flags */
}

enum epa_status fused_cuda_plan(const struct epa_moe *m, const struct epa_world *world,
                                const struct fused_config *config, struct epa_footprint *out,
                                struct epa_error *err)
{
    struct fused_args none;
    struct fused_cuda c = {.d = {.kind = &fused_kind, .sets = 1}, .args = &none};
    struct fused_cuda_layout *l = &c.l;
    enum epa_status status = fused_cuda_layout_make(m, world, config, l, err);

    if (status != EPA_OK)
        return status;
    c.d.args.local = l->local;
    *out = (struct epa_footprint){
        .heap_bytes = l->heap_bytes,
        .device_bytes = device_scratch_bytes(&c.d),
        .in_flight = 1,
        .flops = 2.0 * l->max_tokens * l->topk * l->hidden * ((double)l->up_rows + l->ffn),
        .u.moe = {.recv_rows = l->capacity,
                  .recv_entries = l->capacity,
                  .layout = EPA_LAYOUT_EXPERT,
                  .recv_dtype = l->sends_fp8 ? EPA_FP8_E4M3 : (enum epa_dtype)m->dtype,
                  .sum = l->ways.apart ? EPA_SUM_ORDERED : EPA_SUM_BY_RANK,
                  .dispatch_dedup = l->ways.once || l->few != 0,
                  .combine_dedup = !l->ways.apart,
                  .output_dtype = (enum epa_dtype)m->dtype,
                  .fused = true,
                  .fp8_sum_bits = l->kind.fp8 ? 13 : 0,
                  .dispatch_token_bytes = l->scales_at,
                  .combine_token_bytes = l->hidden * 2},
    };
    fill_traffic(l, m->fp8_group_size, &out->u.moe);
    return EPA_OK;
}

static void destroy_fused_cuda(struct epa_algorithm *base)
{
    struct fused_cuda *c = (struct fused_cuda *)base;

    free(c->args);
    device_destroy(base);
}

enum epa_status fused_cuda_create(const struct epa_algorithm_params *p, struct epa_algorithm **out,
                                  struct epa_error *err)
{
    const struct epa_moe *m = &p->problem->u.moe;
    const struct fused_config *config = p->config;
    struct fused_kernel_kind other;
    struct fused_cuda_layout l;
    struct fused_cuda *c;
    enum epa_status status = fused_cuda_layout_make(m, &p->world, config, &l, err);

    if (status == EPA_OK)
        status = device_create(&fused_kind, sizeof(*c), p, l.heap_bytes, 1, false, &c, err);
    if (status != EPA_OK)
        return status;
    c->args = aligned_alloc(_Alignof(struct fused_args), sizeof(*c->args));
    if (c->args == NULL) {
        device_destroy(&c->d.base);
        return epa_fail(err, EPA_ERR_NOMEM, "fused: no memory");
    }
    memset(c->args, 0, sizeof(*c->args));
    c->d.base.destroy = destroy_fused_cuda;
    c->d.base.stages = stages;
    c->d.base.n_stages = 1;
    c->d.base.parts = halves;
    c->d.base.n_parts = EPA_PARTS;
    l.kind.profile = c->d.stamps;
    c->l = l;
    c->d.shared_bytes[0] = fused_cuda_shared_bytes(&l, c->args);
    other = l.kind;
    other.input =
        l.kind.input == DEVICE_FP8 ? device_input_of(true, m->dtype, m->dtype) : DEVICE_FP8;
    status =
        device_set_up(&c->d,
                      (struct device_kernel[]){
                          {fused_kernel(l.kind), l.kind.fp8 ? fused_kernel(other) : NULL, "layer"}},
                      config->blocks, err);
    c->blocks = c->d.resident[0];
    if (status == EPA_OK) {
        fill_args(c, config, &m->mlp);
        fill_count_args(c);
        status = make_maps(c, err);
    }
    if (status == EPA_OK)
        status = pack_weights(c, err);
    return device_created(&c->d, status, out);
}
