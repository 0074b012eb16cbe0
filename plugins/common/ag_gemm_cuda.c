/* AllGather and GEMM on GPUs: the protocol between ranks, and what is queued for a call.
 *
 * The heap is two buffer sets, which calls use in turn; a set has room for the rows of A of all ranks,
 * at the same places everywhere, as they are given. A rank's rows are cut into chunks. Each chunk has
 * a word at each receiver, which its sender sets to e, the number of the call:
 *
 *   sender  the source; or with two levels and from another node, the rank of the receiver's node whose
 *           place is that of the source, to which the source has pushed it
 *   push    the chunk is in the receiver's set
 *   pull    (within a node) it can be loaded from the sender's set; when that is done, the receiver
 *           sets a word of its own
 *
 * Rows are moved by warps of the kernel; or this rank's own are pushed by copy engines: copies on a
 * stream of their own, each followed by a copy of e, so that no multiprocessor is needed for either.
 * What copy engines are to copy is fixed when it is queued, and how many rows there are only the device
 * knows: so they copy the room that a rank has, and its rows begin at a fixed place in a set. (The
 * reader of `a` must be able to read max_rows rows.) A call's e stands in device memory, written by the
 * kernel of the call before, for either set one: a graph that is launched again goes on counting.
 *
 * The kernel ends when it has seen e in the words of all chunks of all ranks, also of those without
 * rows. Why no barrier is needed, and two sets are enough (call e uses set e % 2):
 *   (1) Call e begins when e - 1 has ended here, so all ranks have begun e - 1, and what their streams
 *       held before has ended: e - 2, the last call that used the set of e. Nobody reads it any more.
 *   (2) The stream waits for the copies of e at its end, so that what they read is not written before:
 *       neither `a`, nor e in device memory, which the kernel of e + 1 writes anew for e + 2.
 *   (3) Words only count up. A word has one sender, whose calls do not overlap.
 *
 * All blocks of a kernel are resident, so warps may wait for others, and for other ranks. A mover waits
 * for words of other nodes, and, pulled, of its own; those are sent before their sender waits for any
 * that depends on this rank. */
#include "ag_gemm_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include <epa2a/packets.h>

enum {
    PAGE = 4096,
    MAPS = 4,
    ROWS = GEMM_ROWS,
    ENGINE_BYTES = 8 << 20 /* of a rank's rows, from which on copy engines move them */
};

struct ag_layout {
    uint32_t size, max_rows, groups, chunks, chunk_rows, panels;
    uint64_t row_bytes, scales_at, set_bytes;
    bool two_level, padded;
};

/* The map of rows that were given lately. */
struct own_map {
    const void *a;
    struct gemm_rows_map map;
};

struct ag_cuda {
    struct epa_algorithm base; /* first */
    const char *name;
    struct ag_gemm_config config;
    struct ag_layout l;
    struct epa_transport *t;
    struct epa_backend *backend;
    uint64_t heap;
    int dtype;
    uint32_t blocks;
    uint64_t calls; /* that were queued; this one's set is calls % AG_GEMM_SETS */
    char *memory;   /* of this rank alone */
    uint64_t *next_call[AG_GEMM_SETS];
    struct ag_gemm_args *args;      /* what is the same in all calls */
    struct gemm_rows_map *gathered; /* [AG_GEMM_SETS] */
    struct own_map *own;            /* [MAPS] */
    uint32_t owns;
    /* Copy engines; NULL: multiprocessors move rows. */
    cudaStream_t engines;
    cudaEvent_t begun, copied;
    struct epa_error last; /* of the host's making */
};

static struct ag_cuda *cuda_of(struct epa_algorithm *a)
{
    return (struct ag_cuda *)a; /* base is the first member */
}

/* ---- the layout ---- */

static enum epa_status check_shape(const char *name, const struct epa_ag_gemm *g,
                                   const struct epa_world *world, const struct ag_gemm_config *c,
                                   struct epa_error *err)
{
    if (world->size > EPA_DEVICE_RANKS)
        return epa_fail(err, EPA_ERR_CONFIG, "%s on GPUs takes 1 to %d ranks, not %u", name,
                        EPA_DEVICE_RANKS, world->size);
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
    if (c->tile_cols != GEMM_BOX && c->tile_cols != 2 * GEMM_BOX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s on GPUs needs algorithm.tile_cols of %d or %d, not %u", name, GEMM_BOX,
                        2 * GEMM_BOX, c->tile_cols);
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

static enum epa_status layout_make(const char *name, const struct epa_ag_gemm *g,
                                   const struct epa_world *world, const struct ag_gemm_config *c,
                                   struct ag_layout *out, struct epa_error *err)
{
    uint32_t bands = (g->max_rows + ROWS - 1) / ROWS + 1;
    uint64_t all = (uint64_t)world->size * g->max_rows;
    bool fp8 = g->dtype == EPA_FP8_E4M3;
    struct ag_layout l = {
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
    l.chunk_rows = (g->max_rows + c->chunks - 1) / c->chunks;
    l.chunk_rows = l.chunk_rows > 0 ? l.chunk_rows : 1;
    l.chunks = (g->max_rows + l.chunk_rows - 1) / l.chunk_rows;
    l.chunks = l.chunks > 0 ? l.chunks : 1;
    l.panels = l.size * ((bands + c->panel - 1) / c->panel);
    l.scales_at = epa_round_up(all * l.row_bytes, PAGE);
    l.set_bytes = l.scales_at + epa_round_up(all * l.groups * sizeof(float), PAGE);
    l.set_bytes = l.set_bytes > 0 ? l.set_bytes : PAGE;
    *out = l;
    return EPA_OK;
}

static void *take(char *memory, uint64_t *at, uint64_t bytes)
{
    void *p = memory != NULL ? memory + *at : NULL;

    *at += epa_round_up(bytes, 256);
    return p;
}

/* The rank's own memory; from NULL it only counts. */
static uint64_t place_private(const struct ag_layout *l, uint32_t blocks, char *memory,
                              struct ag_gemm_args *a, uint64_t **next_call)
{
    uint64_t at = 0, words = (uint64_t)l->size * l->chunks;

    a->count = take(memory, &at, blocks * sizeof(*a->count));
    a->stored = take(memory, &at, (2 * words + 2) * sizeof(*a->stored));
    a->placed = take(memory, &at, (words + 2) * sizeof(*a->placed));
    a->taken[0] = take(memory, &at, l->panels * sizeof(uint32_t));
    a->taken[1] = take(memory, &at, l->panels * sizeof(uint32_t));
    for (uint32_t i = 0; i < AG_GEMM_SETS; i++)
        next_call[i] = take(memory, &at, sizeof(**next_call));
    return at;
}

enum epa_status ag_gemm_cuda_plan(const char *name, const struct epa_ag_gemm *g,
                                  const struct epa_world *world, const struct ag_gemm_config *c,
                                  struct epa_footprint *out, struct epa_error *err)
{
    uint64_t *next_call[AG_GEMM_SETS];
    struct ag_gemm_args none;
    struct ag_layout l;
    enum epa_status status = layout_make(name, g, world, c, &l, err);

    if (status != EPA_OK)
        return status;
    *out = (struct epa_footprint){
        .heap_bytes = AG_GEMM_SETS * l.set_bytes,
        .device_bytes = place_private(&l, 0, NULL, &none, next_call),
        .signals = l.size * l.chunks,
        .in_flight = 1,
        .flops = 2.0 * world->size * g->max_rows * g->n * g->k,
        .u.ag_gemm = {.row_bytes = l.row_bytes + l.groups * sizeof(float),
                      .control_bytes = (uint64_t)l.chunks * sizeof(uint64_t),
                      .two_level = l.two_level},
    };
    return EPA_OK;
}

/* ---- calls ---- */

EPA_PRINTF(3, 4)
static enum epa_status fail(struct ag_cuda *c, enum epa_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(c->last.text, sizeof(c->last.text), fmt, args);
    va_end(args);
    c->last.status = status;
    return status;
}

static enum epa_status check_call(struct ag_cuda *c, cudaError_t code, const char *what)
{
    return code == cudaSuccess ? EPA_OK
                               : fail(c, EPA_ERR_SYSTEM, "%s on GPU %d: %s", what,
                                      c->backend->device, cudaGetErrorString(code));
}

/* The map of rows at `a`: made when they are first given there. */
static const struct gemm_rows_map *map_own(struct ag_cuda *c, const struct epa_ag_gemm *g)
{
    struct own_map *m;

    for (uint32_t i = 0; i < MAPS; i++)
        if (c->own[i].a == g->a)
            return &c->own[i].map;
    m = &c->own[c->owns++ % MAPS];
    m->a =
        gemm_map_rows(&m->map, c->dtype, g->a, c->l.max_rows, g->k, c->l.row_bytes) ? g->a : NULL;
    return m->a != NULL ? &m->map : NULL;
}

static uint32_t set_of(const struct ag_cuda *c)
{
    return (uint32_t)(c->calls % AG_GEMM_SETS);
}

/* This rank's rows of a chunk, their scales and the word to one rank. */
static cudaError_t push_chunk(struct ag_cuda *c, const struct epa_ag_gemm *g, uint32_t chunk,
                              uint32_t peer)
{
    const struct ag_layout *l = &c->l;
    uint32_t me = c->t->rank, first = chunk * l->chunk_rows;
    uint64_t n = l->max_rows - first < l->chunk_rows ? l->max_rows - first : l->chunk_rows;
    uint64_t row = (uint64_t)me * l->max_rows + first, scales = l->groups * sizeof(float);
    char *set = c->t->peer_heap[peer] + c->heap + set_of(c) * l->set_bytes;
    uint64_t *word = c->args->v.peer_signal[peer] + c->args->signal + me * l->chunks + chunk;
    cudaError_t code =
        cudaMemcpyAsync(set + row * l->row_bytes, (const char *)g->a + first * l->row_bytes,
                        n * l->row_bytes, cudaMemcpyDeviceToDevice, c->engines);

    if (code == cudaSuccess && l->groups != 0)
        code = cudaMemcpyAsync(set + l->scales_at + row * scales,
                               (const char *)g->a_scale + first * scales, n * scales,
                               cudaMemcpyDeviceToDevice, c->engines);
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(word, c->next_call[set_of(c)], sizeof(*word),
                               cudaMemcpyDeviceToDevice, c->engines);
    return code;
}

/* Beside what is queued next. The rank before this one is first: one sender to a receiver at a time. */
static cudaError_t push_by_engines(struct ag_cuda *c, const struct epa_ag_gemm *g)
{
    uint32_t me = c->t->rank, size = c->l.size;
    cudaError_t code = cudaEventRecord(c->begun, c->backend->stream);

    if (code == cudaSuccess)
        code = cudaStreamWaitEvent(c->engines, c->begun, 0);
    for (uint32_t chunk = 0; chunk < c->l.chunks && code == cudaSuccess; chunk++)
        for (uint32_t i = 1; i < size && code == cudaSuccess; i++) {
            uint32_t peer = (me + size - i) % size;

            if ((c->args->hop[0].store >> peer & 1) != 0)
                code = push_chunk(c, g, chunk, peer);
        }
    return code == cudaSuccess ? cudaEventRecord(c->copied, c->engines) : code;
}

/* A kernel that gathers, multiplies, or both. */
static enum epa_status launch(struct ag_cuda *c, const struct epa_ag_gemm *g, bool moves,
                              bool multiplies)
{
    const struct gemm_rows_map *own = map_own(c, g);
    struct ag_gemm_args a = *c->args;
    cudaLaunchConfig_t config = {.gridDim = {c->blocks, 1, 1},
                                 .blockDim = {384, 1, 1},
                                 .dynamicSmemBytes = ag_gemm_shared_bytes(),
                                 .stream = c->backend->stream};
    cudaError_t code;

    if (own == NULL)
        return fail(c, EPA_ERR_CONFIG, "A at %p is not at a multiple of 16 bytes", g->a);
    a.own = *own;
    a.gathered = c->gathered[set_of(c)];
    a.set_rows = c->heap + set_of(c) * c->l.set_bytes;
    a.set_scales = a.set_rows + c->l.scales_at;
    a.moves = moves;
    a.multiplies = multiplies;
    a.comm_blocks = moves ? a.comm_blocks : 0;
    a.wide = g->n % 8 == 0 && (uintptr_t)g->c % 16 == 0;
    a.rows = g->rows;
    a.a = g->a;
    a.a_scale = g->a_scale;
    a.c = g->c;
    a.next_call = c->next_call[(set_of(c) + 1) % AG_GEMM_SETS];
    code = cudaLaunchKernelExC(&config, ag_gemm_kernel(c->dtype), (void *[]){&a});
    return check_call(c, code, "launching a kernel");
}

static enum epa_status run_parts(struct epa_algorithm *base, struct epa_problem *problem,
                                 bool gathers, bool multiplies)
{
    struct ag_cuda *c = cuda_of(base);
    const struct epa_ag_gemm *g = &problem->u.ag_gemm;
    bool engines = gathers && c->engines != NULL && c->l.size > 1;
    enum epa_status status;

    c->last.status = EPA_OK;
    c->calls += gathers;
    status = check_call(c, cudaSetDevice(c->backend->device), "cudaSetDevice");
    if (status == EPA_OK && engines)
        status = check_call(c, push_by_engines(c, g), "queueing copies");
    if (status == EPA_OK)
        status = launch(c, g, gathers, multiplies && (c->config.overlap || !gathers));
    if (status == EPA_OK && gathers && multiplies && !c->config.overlap)
        status = launch(c, g, false, true);
    if (status == EPA_OK && engines)
        status = check_call(c, cudaStreamWaitEvent(c->backend->stream, c->copied, 0),
                            "waiting for copies");
    return status;
}

static enum epa_status run_both(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_parts(a, problem, true, true);
}

static enum epa_status run_gather(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_parts(a, problem, true, false);
}

static enum epa_status run_gemm(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_parts(a, problem, false, true);
}

static const struct epa_stage stages[] = {
    {.name = "ag_gemm", .kind = EPA_STAGE_WHOLE, .run = run_both},
};

static const struct epa_stage parts[EPA_PARTS] = {
    {.name = "gather", .kind = EPA_STAGE_WHOLE, .run = run_gather},
    {.name = "gemm", .kind = EPA_STAGE_WHOLE, .run = run_gemm},
};

/* ---- what went wrong ---- */

static void explain_fault(const struct ag_cuda *c, const struct epa_fault *f, struct epa_error *err)
{
    uint32_t first = f->index * c->l.chunk_rows, rows = f->what >> 8;
    uint32_t end =
        first + c->l.chunk_rows < c->l.max_rows ? first + c->l.chunk_rows : c->l.max_rows;
    uint32_t sender = c->args->sender[f->peer % EPA_DEVICE_RANKS];
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
    case AG_GEMM_WAIT_END:
        break;
    }
    (void)epa_fail(err, (enum epa_status)f->status,
                   "waited %.3f s: %srows %u to %u of rank %u, from rank %u (its signal is %llu, "
                   "wants %llu)",
                   (double)f->waited_ns * 1e-9, what, first, end > first ? end - 1 : first, f->peer,
                   sender, (unsigned long long)f->seen, (unsigned long long)f->wanted);
}

static void explain(struct epa_algorithm *a, struct epa_error *err)
{
    const struct ag_cuda *c = cuda_of(a);

    if (c->backend->fault.status != EPA_OK)
        explain_fault(c, &c->backend->fault, err);
    else if (c->last.status != EPA_OK)
        (void)epa_fail(err, c->last.status, "%s", c->last.text);
}

/* ---- who sends to whom ---- */

struct routes {
    uint32_t node[EPA_DEVICE_RANKS], place[EPA_DEVICE_RANKS], nodes, per_node;
};

static enum epa_status find_places(const struct ag_cuda *c, const struct epa_world *w,
                                   struct routes *out, struct epa_error *err)
{
    uint32_t ranks_of[EPA_DEVICE_RANKS] = {0};

    *out = (struct routes){.nodes = 0};
    for (uint32_t r = 0; r < w->size; r++) {
        uint32_t node = w->node != NULL ? w->node[r] : 0;

        out->node[r] = node;
        out->place[r] = ranks_of[node]++;
        out->nodes = node + 1 > out->nodes ? node + 1 : out->nodes;
    }
    out->per_node = ranks_of[out->node[w->rank]];
    for (uint32_t i = 0; i < out->nodes && c->l.two_level; i++)
        if (ranks_of[i] != out->per_node)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s with gather: 2d needs as many ranks on each node: node %u has %u, "
                            "and that of rank %u has %u; set gather: 1d",
                            c->name, i, ranks_of[i], w->rank, out->per_node);
    return EPA_OK;
}

static uint8_t rank_at(const struct routes *r, uint32_t node, uint32_t place)
{
    uint8_t rank = 0;

    while (r->node[rank] != node || r->place[rank] != place)
        rank++;
    return rank;
}

/* Own rows' tiles first, then those of the ranks after this one in its node, then of the nodes after
 * it: as the ranks after this one push to it first, their rows are the first to arrive. */
static uint32_t turn_of(const struct ag_cuda *c, const struct routes *r, uint32_t me, uint32_t rank)
{
    uint32_t node = (r->node[rank] + r->nodes - r->node[me]) % r->nodes;

    if (c->config.order == AG_GEMM_NONE)
        return rank;
    return node * c->l.size + (r->place[rank] + c->l.size - r->place[me]) % c->l.size;
}

static void find_routes(struct ag_cuda *c, const struct routes *r)
{
    struct ag_gemm_args *a = c->args;
    uint32_t me = c->t->rank, size = c->l.size, mates = 0, far = 0, turn[EPA_DEVICE_RANKS];
    bool pull = c->config.mode == AG_GEMM_PULL;

    for (uint32_t s = 0; s < size; s++) {
        bool near = r->node[s] == r->node[me], same = r->place[s] == r->place[me];
        bool passed = !near && c->l.two_level && !same;
        uint32_t i = s;

        if (near && s != me)
            mates |= 1u << s;
        else if (s != me && !passed)
            far |= 1u << s;
        a->sender[s] = passed ? rank_at(r, r->node[me], r->place[s]) : (uint8_t)s;
        if (pull && s != me && (near || passed))
            a->loaded |= (uint16_t)(1u << s);
        turn[s] = turn_of(c, r, me, s);
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
    for (uint32_t s = 0; s < size && c->l.two_level && mates != 0; s++)
        if ((far >> s & 1) != 0)
            a->hop[a->hops++] = (struct ag_gemm_hop){.source = (uint16_t)s,
                                                     .store = (uint16_t)(pull ? 0 : mates),
                                                     .signal = (uint16_t)mates};
}

/* ---- set-up ---- */

static void destroy(struct epa_algorithm *base)
{
    struct ag_cuda *c = cuda_of(base);

    if (c->begun != NULL)
        (void)cudaEventDestroy(c->begun);
    if (c->copied != NULL)
        (void)cudaEventDestroy(c->copied);
    if (c->engines != NULL)
        (void)cudaStreamDestroy(c->engines);
    if (c->memory != NULL)
        c->backend->ops->free(c->backend, c->memory);
    free(c->args);
    free(c->gathered);
    free(c->own);
    free(c);
}

static enum epa_status check_device(const struct ag_cuda *c, struct epa_error *err)
{
    int device = c->backend->device, major = 0;
    cudaError_t code = cudaSetDevice(device);

    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: GPU %d: %s", c->name, device,
                        cudaGetErrorString(code));
    if (major != 9)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s: GPU %d has compute capability %d.x; its kernels are for 9.0", c->name,
                        device, major);
    if (c->t->view == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s: the transport gives kernels no way to other ranks", c->name);
    if (c->heap + AG_GEMM_SETS * c->l.set_bytes > c->t->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: the heap of %llu bytes is too small", c->name,
                        (unsigned long long)c->t->heap_bytes);
    return EPA_OK;
}

/* Loads the kernel: one that is loaded when it is first launched may have to wait for others that wait
 * for it. All of its blocks are resident. */
static enum epa_status count_blocks(struct ag_cuda *c, struct epa_error *err)
{
    const void *kernel = ag_gemm_kernel(c->dtype);
    uint32_t bytes = ag_gemm_shared_bytes();
    struct cudaFuncAttributes attributes;
    int n = 0;
    cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);

    if (code == cudaSuccess)
        code =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (code == cudaSuccess)
        code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, kernel, 384, bytes);
    if (code != cudaSuccess || n == 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: loading its kernel on GPU %d: %s", c->name,
                        c->backend->device,
                        code == cudaSuccess ? "no room for a block" : cudaGetErrorString(code));
    c->blocks = c->backend->multiprocessors;
    if (c->config.blocks != 0 && c->config.blocks < c->blocks)
        c->blocks = c->config.blocks;
    if (c->config.comm_blocks >= c->blocks)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: algorithm.comm_blocks (%u) leaves none of %u blocks to multiply",
                        c->name, c->config.comm_blocks, c->blocks);
    return EPA_OK;
}

/* Where ranks share a GPU, their kernels leave no room for the small kernels by which its own copies
 * are made. */
static enum epa_status open_engines(struct ag_cuda *c, struct epa_error *err)
{
    int all = 0;
    cudaError_t code =
        cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, c->backend->device);
    bool whole = c->backend->multiprocessors == (uint32_t)all;

    if (!c->l.padded || (!whole && c->config.mover == AG_GEMM_AUTO))
        return EPA_OK;
    if (!whole)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: algorithm.mover: copy_engine needs a GPU for each rank, and GPU %d is "
                        "shared; set it to sm",
                        c->name, c->backend->device);
    if (code == cudaSuccess)
        code = cudaStreamCreateWithFlags(&c->engines, cudaStreamNonBlocking);
    if (code == cudaSuccess)
        code = cudaEventCreateWithFlags(&c->begun, cudaEventDisableTiming);
    if (code == cudaSuccess)
        code = cudaEventCreateWithFlags(&c->copied, cudaEventDisableTiming);
    return code == cudaSuccess ? EPA_OK
                               : epa_fail(err, EPA_ERR_SYSTEM, "%s: a stream for copies: %s",
                                          c->name, cudaGetErrorString(code));
}

static enum epa_status alloc_private(struct ag_cuda *c, struct epa_error *err)
{
    struct epa_backend *b = c->backend;
    uint64_t bytes = place_private(&c->l, c->blocks, NULL, c->args, c->next_call), first = 1;
    struct epa_error why = {EPA_OK, ""};
    void *memory = NULL;
    enum epa_status status = b->ops->alloc(b, bytes, &memory);

    c->memory = memory;
    if (status == EPA_OK) {
        (void)place_private(&c->l, c->blocks, c->memory, c->args, c->next_call);
        status = b->ops->fill(b, c->memory, 0, bytes);
    }
    /* The first call is 1, in set 1. */
    if (status == EPA_OK)
        status = b->ops->write(b, c->next_call[1], &first, sizeof(first));
    if (status == EPA_OK)
        status = b->ops->sync(b);
    if (status == EPA_OK)
        return EPA_OK;
    b->ops->explain(b, &why);
    return epa_fail(err, status, "%s: setting up on GPU %d: %s", c->name, b->device, why.text);
}

static void fill_args(struct ag_cuda *c, const struct epa_algorithm_params *p)
{
    const struct epa_ag_gemm *g = &p->problem->u.ag_gemm;
    const struct ag_layout *l = &c->l;
    struct ag_gemm_args *a = c->args;
    uint32_t block = GEMM_BLOCK / (g->dtype == EPA_FP8_E4M3 ? 1 : 2);

    a->v = *p->transport->view;
    a->timeout_ns = p->timeout_ns;
    a->signal = p->signal;
    a->chunks = l->chunks;
    a->chunk_rows = l->chunk_rows;
    a->max_rows = l->max_rows;
    a->row_bytes = (uint32_t)l->row_bytes;
    a->groups = l->groups;
    a->n = g->n;
    a->k_blocks = (g->k + block - 1) / block;
    a->step = c->config.tile_cols;
    a->columns = (g->n + a->step - 1) / a->step;
    a->panel = c->config.panel;
    a->panels = l->panels;
    a->order = (uint32_t)c->config.order;
    a->comm_blocks = c->config.comm_blocks;
    a->padded = l->padded;
    a->across = c->config.across_ranks;
    a->engines = c->engines != NULL;
    a->b_scale = g->b_scale;
    a->bias = g->bias ? g->bias_of : NULL;
}

static enum epa_status make_maps(struct ag_cuda *c, const struct epa_ag_gemm *g,
                                 struct epa_error *err)
{
    uint64_t rows = (uint64_t)c->l.size * c->l.max_rows;
    bool ok = gemm_map_weights(&c->args->weights, c->dtype, g->b, g->n, g->k, GEMM_BOX);

    for (uint32_t i = 0; i < AG_GEMM_SETS && ok; i++)
        ok = gemm_map_rows(&c->gathered[i], c->dtype,
                           c->t->peer_heap[c->t->rank] + c->heap + i * c->l.set_bytes, rows, g->k,
                           c->l.row_bytes);
    return ok ? EPA_OK
              : epa_fail(err, EPA_ERR_UNSUPPORTED,
                         "%s: the driver of GPU %d makes no tensor maps of A and B", c->name,
                         c->backend->device);
}

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(_Alignof(struct ag_gemm_args), bytes);

    if (p != NULL)
        memset(p, 0, bytes);
    return p;
}

enum epa_status ag_gemm_cuda_create(const char *name, const struct epa_algorithm_params *p,
                                    const struct ag_gemm_config *config, struct epa_algorithm **out,
                                    struct epa_error *err)
{
    const struct epa_ag_gemm *g = &p->problem->u.ag_gemm;
    struct ag_cuda *c = calloc(1, sizeof(*c));
    struct routes routes;
    enum epa_status status;

    if (c == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory", name);
    c->base = (struct epa_algorithm){.stages = stages,
                                     .n_stages = 1,
                                     .parts = parts,
                                     .n_parts = EPA_PARTS,
                                     .explain = explain,
                                     .destroy = destroy};
    c->name = name;
    c->config = *config;
    c->t = p->transport;
    c->backend = p->backend;
    c->heap = p->heap;
    c->dtype = g->dtype;
    c->args = zeroed(sizeof(*c->args));
    c->gathered = zeroed(AG_GEMM_SETS * sizeof(*c->gathered));
    c->own = zeroed(MAPS * sizeof(*c->own));
    status = layout_make(name, g, &p->world, config, &c->l, err);
    if (status == EPA_OK && (c->args == NULL || c->gathered == NULL || c->own == NULL))
        status = epa_fail(err, EPA_ERR_NOMEM, "%s: no memory", name);
    if (status == EPA_OK)
        status = find_places(c, &p->world, &routes, err);
    if (status == EPA_OK)
        status = check_device(c, err);
    if (status == EPA_OK)
        status = count_blocks(c, err);
    if (status == EPA_OK)
        status = open_engines(c, err);
    if (status == EPA_OK) {
        fill_args(c, p);
        find_routes(c, &routes);
        status = alloc_private(c, err);
    }
    if (status == EPA_OK)
        status = make_maps(c, g, err);
    if (status != EPA_OK) {
        destroy(&c->base);
        return status;
    }
    *out = &c->base;
    return EPA_OK;
}
