/* AllGather and GEMM on GPUs: the protocol between ranks, and the work that a call queues.
 *
 * The heap consists of two buffer sets, which calls use alternately. A set has room for the rows of
 * A of all ranks, unchanged, at the same offsets on every rank. A rank's rows are divided into
 * chunks. Each receiver has a word per chunk. The sender of the chunk sets the word to e, the
 * number of the call:
 *
 *   sender  the source; or, with two levels and a source on another node, the rank of the
 *           receiver's node that has the source's place and to which the source has pushed the
 *           chunk
 *   push    the word states that the chunk is in the receiver's set; between nodes, where only puts
 *           reach, the sender puts it from its own set (ag_gemm_far.cu)
 *   pull    (within a node) the word states that the chunk can be loaded from the sender's set;
 *           after the load, the receiver sets a word of its own
 *
 * Warps of the kernel move rows. Alternatively copy engines push the rank's own rows: copies on a
 * separate stream, each followed by a copy of e, so that neither needs a multiprocessor. Copy
 * engines can also forward the rows of other nodes: the stream waits for the gate of a chunk, a
 * word that a mover of the kernel opens after it has seen e in the word of the chunk. The stream
 * does not wait for the word itself, since such a wait has no time limit and compares with a
 * constant, while in a graph only the device knows e. A mover that gives up opens the gates of all
 * chunks, so that the stream ends in any case; it does not write e, which the copies would forward
 * to the words of the receivers. The extent
 * of a copy is fixed when the copy is queued, but only the device knows the number of rows. Copy
 * engines therefore copy the full room of a rank, and the rank's rows begin at a fixed place in a
 * set. (max_rows rows of `a` must be readable.) The number e of a call is in device memory, one
 * word per set, which the kernel of the previous call writes: a graph that is launched again
 * continues to count.
 *
 * The kernel ends after it has seen e in the words of all chunks of all ranks, including ranks
 * without rows. No barrier is needed, and two sets are enough (call e uses set e % 2):
 *   (1) Call e begins after e - 1 has ended here, so all ranks have begun e - 1, and the earlier
 *       work on their streams has ended. This includes e - 2, the last call that used the set of e,
 *       so no rank reads that set any more.
 *   (2) The stream waits for the copies of e at its end, so their sources are not overwritten
 *       before: neither `a`, nor forwarded rows (their source puts rows of e + 2 after it has seen
 *       e + 1 in this rank's words), nor e in device memory, which the kernel of e + 1 overwrites
 *       for e + 2. Each gate is closed again before e + 1 begins.
 *   (3) Words only increase. A word has one sender, whose calls do not overlap.
 *
 * Products by cuBLASLt (product: library): copy engines push own rows as before, and cuBLASLt
 * multiplies the rows of each rank, own rows first. A small kernel waits for the words of a rank
 * before the product of its rows (ag_gemm_parts.cu). The last of these kernels counts the call, like
 * the persistent kernel. So (1) to (3) hold, and a rank may multiply by cuBLASLt while others use the
 * persistent kernel.
 *
 * Rows for nodes that only puts reach are copied and put by another kernel (ag_gemm_far.cu), before
 * this kernel, or beside it on multiprocessors that this kernel leaves free.
 *
 * All blocks of a kernel are resident, so warps may wait for other warps and for other ranks. A
 * mover waits for words from other nodes and, with pull, for words from its own node. The senders
 * of those words set them before they wait for any word that depends on this rank. */
#include "ag_gemm_cuda.h"

#include "ag_gemm_copies.h"
#include "ag_gemm_device.h"
#include "ag_gemm_far.h"
#include "ag_gemm_kernels.h"
#include "ag_gemm_layout.h"
#include "ag_gemm_out_fp8.h"
#include "ag_gemm_parts.h"
#include "ag_gemm_profile.h"
#include "ag_gemm_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "cublaslt.h"
#include "device_setup.h"
#include "side_stream.h"

enum { MAPS = 4, CLUSTER_K = 4096 };

_Static_assert((int)AG_GEMM_TILE_ROWS == (int)GEMM_ROWS, "rows of a tile");
_Static_assert((int)AG_GEMM_TILE_COLS == 2 * (int)GEMM_BOX, "columns of a tile, at most");

/* Cached tensor map of rows at the caller's address `a`. */
struct own_map {
    const void *a;
    struct gemm_rows_map map;
};

struct ag_cuda {
    struct epa_algorithm base; /* first */
    const char *name;
    struct ag_gemm_config config;
    struct ag_gemm_layout l;
    struct epa_transport *t;
    struct epa_backend *backend;
    uint64_t heap;
    int dtype;
    bool out_fp8;
    const void *kernel;
    uint32_t blocks, shared_bytes;
    uint32_t far;   /* mask of ranks of other nodes to which this rank puts its rows */
    bool early;     /* a kernel may be set up while the previous kernel runs: no copies lie between
                   * them */
    uint64_t calls; /* number of queued calls; the current set is calls % AG_GEMM_SETS */
    void *memory;   /* private memory of this rank */
    uint64_t *next_call[AG_GEMM_SETS];
    struct ag_gemm_args *args;      /* arguments that all calls share */
    struct gemm_rows_map *gathered; /* [AG_GEMM_SETS] */
    struct own_map *own;            /* [MAPS] */
    uint32_t owns;
    struct side_stream engines;    /* stream of the copy engines; none: multiprocessors move rows */
    struct side_stream puts;       /* stream of put_far(); none: the main stream */
    struct ag_gemm_copies *copies; /* NULL: the run has no profile */
    struct cublaslt *library;      /* NULL: the kernel multiplies. With l.parts: for the rows of one
                                    * rank */
    char by[160];                  /* description of the multiplying library, and the rule */
    float *scales;                 /* FP8 with l.parts: [size][groups][max_rows], for cuBLASLt */
    struct epa_error last;         /* error of the host code */
    struct epa_trace *trace;       /* NULL: the run has no profile */
};

static struct ag_cuda *cuda_of(struct epa_algorithm *a)
{
    return (struct ag_cuda *)a; /* base is the first member */
}

/* ---- calls ---- */

/* Returns the tensor map of the rows at `a`; creates it on first use. */
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

/* Returns the address of this rank's current set in the heap of a rank. */
static char *set_at(const struct ag_cuda *c, uint32_t rank)
{
    return c->t->peer_heap[rank] + c->heap + set_of(c) * c->l.set_bytes;
}

/* Rows of a rank that copy engines move. */
struct rows_from {
    uint32_t source;
    const char *rows, *scales; /* its first row, and the scales of this row */
};

/* Queues copies of a chunk of rows, of their scales and of the word `number` to one rank. */
static cudaError_t copy_chunk(struct ag_cuda *c, const struct rows_from *from, uint32_t chunk,
                              const uint64_t *number, uint32_t peer)
{
    const struct ag_gemm_layout *l = &c->l;
    uint32_t first = chunk * l->chunk_rows;
    uint64_t n = l->max_rows - first < l->chunk_rows ? l->max_rows - first : l->chunk_rows;
    uint64_t row = (uint64_t)from->source * l->max_rows + first;
    uint64_t scales = l->groups * sizeof(float);
    char *set = set_at(c, peer);
    uint64_t *word =
        c->args->v.peer_signal[peer] + c->args->signal + from->source * l->chunks + chunk;
    cudaStream_t stream = c->engines.stream;
    cudaError_t code = cudaMemcpyAsync(set + row * l->row_bytes, from->rows + first * l->row_bytes,
                                       n * l->row_bytes, cudaMemcpyDeviceToDevice, stream);

    if (code == cudaSuccess && l->groups != 0)
        code = cudaMemcpyAsync(set + l->scales_at + row * scales, from->scales + first * scales,
                               n * scales, cudaMemcpyDeviceToDevice, stream);
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(word, number, sizeof(*word), cudaMemcpyDeviceToDevice, stream);
    return code;
}

/* Queues copies of a chunk to the ranks of a mask. The order begins with the rank before this one,
 * so that each receiver has one sender at a time. */
static cudaError_t copy_to_all(struct ag_cuda *c, const struct rows_from *from, uint32_t chunk,
                               const uint64_t *number, uint32_t ranks)
{
    uint32_t me = c->t->rank, size = c->l.size;
    cudaError_t code = cudaSuccess;

    for (uint32_t i = 1; i < size && code == cudaSuccess; i++) {
        uint32_t peer = (me + size - i) % size;

        if ((ranks >> peer & 1) == 0)
            continue;
        code = copy_chunk(c, from, chunk, number, peer);
        if (code == cudaSuccess)
            code = ag_gemm_copies_end(c->copies, c->engines.stream, peer);
    }
    return code;
}

/* Queues the copies of own rows. */
static cudaError_t push_by_engines(struct ag_cuda *c, const struct epa_ag_gemm *g)
{
    const struct rows_from own = {c->t->rank, g->a, (const char *)g->a_scale};
    cudaError_t code = cudaSuccess;

    for (uint32_t chunk = 0; chunk < c->l.chunks && code == cudaSuccess; chunk++)
        code = copy_to_all(c, &own, chunk, c->next_call[set_of(c)], c->args->hop[0].store);
    return code;
}

/* Queues the copies of rows of other nodes to this node, each after a wait for its gate, in the
 * order of ag_gemm_open_gates(). Called after the launch of the kernel that opens the gates: without
 * this kernel, the stream would wait forever. */
static cudaError_t forward_by_engines(struct ag_cuda *c)
{
    const struct ag_gemm_layout *l = &c->l;
    const char *set = set_at(c, c->t->rank);
    cudaError_t code = cudaSuccess;

    for (uint32_t chunk = 0; chunk < l->chunks && code == cudaSuccess; chunk++)
        for (uint32_t h = 1; h < c->args->hops && code == cudaSuccess; h++) {
            const struct ag_gemm_hop *hop = &c->args->hop[h];
            uint64_t row = (uint64_t)hop->source * l->max_rows;
            const struct rows_from far = {hop->source, set + row * l->row_bytes,
                                          set + l->scales_at + row * l->groups * sizeof(float)};
            uint32_t word = hop->source * l->chunks + chunk;

            code = side_stream_take(&c->engines, c->args->gate + word);
            if (code == cudaSuccess)
                code = ag_gemm_copies_waited(c->copies, c->engines.stream);
            if (code == cudaSuccess)
                code = copy_to_all(c, &far, chunk, c->args->forwarded + word, hop->store);
        }
    return code;
}

/* Begins the stream of the copy engines, and queues the copies that need no kernel. */
static cudaError_t begin_engines(struct ag_cuda *c, const struct epa_ag_gemm *g)
{
    cudaError_t code = side_stream_begin(&c->engines, c->backend->stream);

    if (code == cudaSuccess)
        code = ag_gemm_copies_begin(c->copies, c->engines.stream);
    return code == cudaSuccess && c->args->engines ? push_by_engines(c, g) : code;
}

/* Queues the other copies, and ends the stream of the copy engines. */
static cudaError_t end_engines(struct ag_cuda *c)
{
    cudaError_t code = c->args->forwards ? forward_by_engines(c) : cudaSuccess;

    return code == cudaSuccess ? side_stream_end(&c->engines) : code;
}

/* Queues the puts of own rows to ranks of other nodes, before the main kernel or beside it. */
static cudaError_t put_far(const struct ag_cuda *c, const struct ag_gemm_args *a)
{
    const struct ag_gemm_layout *l = &c->l;
    const struct ag_gemm_far_args far = {.a = *a,
                                         .number = c->next_call[set_of(c)],
                                         .ring = *c->t->ring,
                                         .peers = c->far,
                                         .copied = a->stored + 2 * l->size * l->chunks + 2};
    cudaError_t code;

    if (c->puts.stream == NULL)
        return ag_gemm_far_queue(c->backend->stream, c->backend->multiprocessors, &far);
    code = side_stream_begin(&c->puts, c->backend->stream);
    if (code == cudaSuccess)
        code = ag_gemm_far_queue(c->puts.stream, c->config.put_blocks, &far);
    return code == cudaSuccess ? side_stream_end(&c->puts) : code;
}

static cudaLaunchAttribute cluster_attribute(const struct ag_cuda *c)
{
    return (cudaLaunchAttribute){.id = cudaLaunchAttributeClusterDimension,
                                 .val.clusterDim = {c->config.cluster, 1, 1}};
}

/* Launches a kernel that gathers, multiplies, or both. */
static enum epa_status launch_kernel(struct ag_cuda *c, const struct epa_ag_gemm *g, bool moves,
                                     bool multiplies)
{
    const struct gemm_rows_map *own = map_own(c, g);
    struct ag_gemm_args a = *c->args;
    cudaLaunchAttribute attrs[2];
    cudaLaunchConfig_t config = {.gridDim = {c->blocks, 1, 1},
                                 .blockDim = {AG_GEMM_THREADS, 1, 1},
                                 .dynamicSmemBytes = c->shared_bytes,
                                 .stream = c->backend->stream,
                                 .attrs = attrs};
    cudaError_t code = cudaSuccess;

    if (own == NULL)
        return epa_fail(&c->last, EPA_ERR_CONFIG, "A at %p is not at a multiple of 16 bytes", g->a);
    if (c->early)
        attrs[config.numAttrs++] =
            (cudaLaunchAttribute){.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                  .val.programmaticStreamSerializationAllowed = 1};
    if (c->config.cluster > 1)
        attrs[config.numAttrs++] = cluster_attribute(c);
    a.own = *own;
    a.gathered = c->gathered[set_of(c)];
    a.set_rows = c->heap + set_of(c) * c->l.set_bytes;
    a.set_scales = a.set_rows + c->l.scales_at;
    a.moves = moves;
    a.multiplies = multiplies;
    a.comm_blocks = moves ? a.comm_blocks : 0;
    a.wide = g->n * epa_ag_gemm_c_bytes(g) % 16 == 0 && (uintptr_t)g->c % 16 == 0;
    a.rows = g->rows;
    a.a = g->a;
    a.a_scale = g->a_scale;
    a.c = g->c;
    a.c_scale = g->c_scale;
    a.next_call = c->next_call[(set_of(c) + 1) % AG_GEMM_SETS];
    if (moves && c->far != 0)
        code = put_far(c, &a);
    if (code == cudaSuccess)
        code = cudaLaunchKernelExC(&config, c->kernel, (void *[]){&a});
    return device_check_call(&c->last, c->backend, code, "launching a kernel");
}

/* ---- products by cuBLASLt ---- */

static cudaError_t await_part(struct ag_cuda *c, uint32_t source, bool last)
{
    const struct ag_gemm_await await = {
        .v = c->args->v,
        .timeout_ns = c->args->timeout_ns,
        .signal = c->args->signal,
        .chunks = c->l.chunks,
        .source = source,
        .number = c->next_call[set_of(c)],
        .next_call = last ? c->next_call[(set_of(c) + 1) % AG_GEMM_SETS] : NULL,
    };

    return ag_gemm_await_queue(c->backend->stream, &await);
}

/* Queues the product of the rows of a rank. */
static enum epa_status queue_part(struct ag_cuda *c, const struct epa_ag_gemm *g, uint32_t source)
{
    const struct ag_gemm_layout *l = &c->l;
    uint64_t row = (uint64_t)source * l->max_rows;
    bool own = source == c->t->rank;
    const char *set = set_at(c, c->t->rank), *rows = own ? g->a : set + row * l->row_bytes;
    const float *scales = (const float *)(const void *)(set + l->scales_at) + row * l->groups;
    const struct ag_gemm_transpose turn = {.from = own ? g->a_scale : scales,
                                           .to = c->scales + row * l->groups,
                                           .rows = l->max_rows,
                                           .groups = l->groups};
    cudaError_t code =
        l->groups != 0 ? ag_gemm_transpose_queue(c->backend->stream, &turn) : cudaSuccess;

    return code != cudaSuccess
               ? device_check_call(&c->last, c->backend, code, "launching a kernel")
               : cublaslt_multiply(c->library, rows, l->groups != 0 ? turn.to : NULL,
                                   (char *)g->c + row * g->n * 2, &c->last);
}

/* Queues the products of the rows of all ranks, each behind the arrival of these rows. */
static enum epa_status queue_parts(struct ag_cuda *c, const struct epa_ag_gemm *g, bool gathers,
                                   bool multiplies)
{
    const struct ag_gemm_layout *l = &c->l;
    const struct ag_gemm_gaps gaps = {.rows = g->rows,
                                      .c = g->c,
                                      .size = l->size,
                                      .max_rows = l->max_rows,
                                      .vectors = g->n * 2 / 16};
    uint32_t me = c->t->rank;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < l->size && status == EPA_OK; i++) {
        uint32_t source = (me + i) % l->size;

        if (gathers && i > 0)
            status =
                device_check_call(&c->last, c->backend, await_part(c, source, i == l->size - 1),
                                  "launching a kernel");
        if (status == EPA_OK && multiplies)
            status = queue_part(c, g, source);
    }
    if (status == EPA_OK && multiplies && l->size > 1)
        status =
            device_check_call(&c->last, c->backend, ag_gemm_gaps_queue(c->backend->stream, &gaps),
                              "launching a kernel");
    return status;
}

/* ---- stages ---- */

/* Queues only the product, of gathered rows. */
static enum epa_status queue_product(struct ag_cuda *c, const struct epa_ag_gemm *g)
{
    const char *rows = c->t->peer_heap[c->t->rank] + c->heap + set_of(c) * c->l.set_bytes;

    return c->library != NULL && !c->l.parts
               ? cublaslt_multiply(c->library, rows, NULL, g->c, &c->last)
               : launch_kernel(c, g, false, true);
}

static enum epa_status run_parts(struct epa_algorithm *base, struct epa_problem *problem,
                                 bool gathers, bool multiplies)
{
    struct ag_cuda *c = cuda_of(base);
    const struct epa_ag_gemm *g = &problem->u.ag_gemm;
    bool engines = gathers && c->engines.stream != NULL && c->l.size > 1;
    bool parts = c->l.parts && c->library != NULL;
    enum epa_status status;

    c->last.status = EPA_OK;
    c->calls += gathers;
    multiplies = multiplies && g->n != 0;
    status =
        device_check_call(&c->last, c->backend, cudaSetDevice(c->backend->device), "cudaSetDevice");
    if (status == EPA_OK && engines)
        status = device_check_call(&c->last, c->backend, begin_engines(c, g), "queueing copies");
    if (status == EPA_OK && parts)
        status = queue_parts(c, g, gathers, multiplies);
    else if (status == EPA_OK && gathers)
        status = launch_kernel(c, g, true, multiplies && c->config.overlap);
    if (status == EPA_OK && engines)
        status = device_check_call(&c->last, c->backend, end_engines(c), "queueing copies");
    if (status == EPA_OK && gathers)
        status =
            device_check_call(&c->last, c->backend, side_stream_join(&c->puts, c->backend->stream),
                              "waiting for puts");
    if (status == EPA_OK && multiplies && !parts && !(gathers && c->config.overlap))
        status = queue_product(c, g);
    if (status == EPA_OK && engines)
        status = device_check_call(&c->last, c->backend,
                                   side_stream_join(&c->engines, c->backend->stream),
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

/* ---- failures ---- */

static void explain_ag_gemm(struct epa_algorithm *a, struct epa_error *err)
{
    const struct ag_cuda *c = cuda_of(a);

    if (c->backend->fault.status != EPA_OK)
        ag_gemm_explain_fault(&c->l, c->args, &c->backend->fault, err);
    else if (c->last.status != EPA_OK)
        (void)epa_fail_key(err, c->last.status, c->last.key, "%s", c->last.text);
}

/* ---- set-up ---- */

static void write_trace(struct epa_algorithm *base)
{
    struct ag_cuda *c = cuda_of(base);

    base->trace_end = NULL;
    ag_gemm_copies_write(c->copies, c->engines.stream, c->trace, c->blocks,
                         c->blocks * AG_GEMM_WARPS * AG_GEMM_INTERVALS);
    ag_gemm_trace_write(c->name, c->backend, c->trace, c->args, c->blocks);
}

static void destroy_ag_gemm(struct epa_algorithm *base)
{
    struct ag_cuda *c = cuda_of(base);

    if (base->trace_end != NULL && c->memory != NULL && c->calls > 0 &&
        c->backend->fault.status == EPA_OK)
        write_trace(base);
    cublaslt_destroy(c->library);
    if (c->scales != NULL)
        c->backend->ops->free(c->backend, c->scales);
    ag_gemm_copies_destroy(c->copies);
    side_stream_close(&c->engines);
    side_stream_close(&c->puts);
    if (c->memory != NULL)
        c->backend->ops->free(c->backend, c->memory);
    free(c->args);
    free(c->gathered);
    free(c->own);
    free(c);
}

/* Leaves ranks that the kernels cannot store to for the puts, and opens the stream of the puts. */
static enum epa_status find_far(struct ag_cuda *c, struct epa_error *err)
{
    const struct epa_device_view *v = c->t->view;
    struct ag_gemm_hop *own = &c->args->hop[0];
    cudaError_t code;

    for (uint32_t r = 0; r < c->l.size && c->t->ring != NULL; r++)
        if (v->peer_heap[r] == NULL && (own->store >> r & 1) != 0)
            c->far |= 1u << r;
    own->store &= (uint16_t)~c->far;
    own->signal &= (uint16_t)~c->far;
    if (c->far == 0)
        return EPA_OK;
    code = ag_gemm_far_load();
    if (code == cudaSuccess && c->config.put_blocks != 0)
        code = side_stream_open(SIDE_STREAM_PUTS, &c->puts);
    return code == cudaSuccess
               ? EPA_OK
               : epa_fail(err, EPA_ERR_SYSTEM, "%s: the kernel of puts to other nodes: %s", c->name,
                          cudaGetErrorString(code));
}

static enum epa_status load_kernel_code(struct ag_cuda *c, struct epa_error *err)
{
    struct device_code code = {.name = c->name, .threads = AG_GEMM_THREADS};
    uint32_t n = 0;

    c->kernel =
        c->base.trace_end != NULL
            ? ag_gemm_profile_kernel(c->dtype, c->out_fp8, c->config.tile_cols, c->config.cluster)
            : (c->out_fp8 ? ag_gemm_out_fp8_kernel : ag_gemm_kernel)(c->dtype, c->config.tile_cols,
                                                                     c->config.cluster);
    c->shared_bytes = ag_gemm_shared_bytes(c->config.tile_cols, c->config.cluster);
    code.kernel = c->kernel;
    code.shared_bytes = c->shared_bytes;
    return device_load_kernel(c->name, c->backend, &code, &n, err);
}

/* Returns true if tiles are long, of 16-bit values, and clusters need no more rounds of tiles than
 * single blocks. */
static bool clusters_pay(const struct ag_cuda *c, const struct epa_ag_gemm *g, uint64_t bands,
                         uint64_t columns)
{
    uint64_t blocks = c->blocks - c->config.comm_blocks, pairs = (bands + 1) / 2 * columns;

    return c->config.tile_cols == 2 * GEMM_BOX && c->config.comm_blocks % 2 == 0 &&
           g->dtype != EPA_FP8_E4M3 && g->k >= CLUSTER_K && device_is_whole(c->backend) &&
           blocks >= 2 &&
           (pairs + blocks / 2 - 1) / (blocks / 2) <= (bands * columns + blocks - 1) / blocks;
}

/* Limits c->blocks to clusters that are all resident. */
static enum epa_status count_clusters(struct ag_cuda *c, struct epa_error *err)
{
    cudaLaunchAttribute size = cluster_attribute(c);
    cudaLaunchConfig_t config = {.gridDim = {c->blocks - c->blocks % c->config.cluster, 1, 1},
                                 .blockDim = {AG_GEMM_THREADS, 1, 1},
                                 .dynamicSmemBytes = c->shared_bytes,
                                 .attrs = &size,
                                 .numAttrs = 1};
    int n = 0;
    cudaError_t code;

    code = cudaOccupancyMaxActiveClusters(&n, c->kernel, &config);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: clusters of %u blocks on GPU %d: %s", c->name,
                        c->config.cluster, c->backend->device, cudaGetErrorString(code));
    if (c->blocks > (uint32_t)n * c->config.cluster)
        c->blocks = (uint32_t)n * c->config.cluster;
    c->blocks -= c->blocks % c->config.cluster;
    return EPA_OK;
}

/* Chooses the tile size and a number of blocks that are all resident, and loads their kernel. */
static enum epa_status load_kernel(struct ag_cuda *c, const struct epa_ag_gemm *g,
                                   struct epa_error *err)
{
    uint64_t bands = ((uint64_t)c->l.size * c->l.max_rows + GEMM_ROWS - 1) / GEMM_ROWS;
    uint64_t columns = (g->n + 2 * GEMM_BOX - 1) / (2 * GEMM_BOX);
    uint32_t reserved = c->far != 0 ? c->config.put_blocks : 0;
    bool asked = c->config.cluster == 2;
    enum epa_status status;

    if (reserved != 0 && reserved + (asked ? 2 : 1) > c->backend->multiprocessors)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.put_blocks",
                            "%s: algorithm.put_blocks (%u) leaves none of %u multiprocessors to "
                            "multiply%s",
                            c->name, reserved, c->backend->multiprocessors,
                            asked ? " in clusters of two" : "");
    c->blocks = c->backend->multiprocessors - reserved;
    if (c->config.blocks != 0 && c->config.blocks < c->blocks)
        c->blocks = c->config.blocks;
    if (c->config.tile_cols == 0)
        c->config.tile_cols = bands * columns < c->blocks && !asked ? GEMM_BOX : 2 * GEMM_BOX;
    if (c->config.cluster == 0)
        c->config.cluster = clusters_pay(c, g, bands, columns) ? 2 : 1;
    status = load_kernel_code(c, err);
    if (status == EPA_OK && c->config.cluster > 1)
        status = count_clusters(c, err);
    if (status == EPA_OK && c->config.comm_blocks >= c->blocks)
        status = epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.comm_blocks",
                              "%s: algorithm.comm_blocks (%u) leaves none of %u blocks to multiply",
                              c->name, c->config.comm_blocks, c->blocks);
    return status;
}

/* Returns the maximum number of copies of a call by copy engines, and of waits. */
static uint32_t most_copies(const struct ag_cuda *c)
{
    uint32_t n = c->l.size - 1;

    for (uint32_t h = 1; h < c->args->hops; h++)
        n += 1 + (uint32_t)__builtin_popcount(c->args->hop[h].store);
    return n * c->l.chunks;
}

/* Opens the stream of the copy engines. If ranks share a GPU, their kernels leave no room for the
 * small kernels that implement copies within that GPU. */
static enum epa_status open_engines(struct ag_cuda *c, struct epa_error *err)
{
    const char *key = c->l.forwards ? "algorithm.forward" : "algorithm.mover";
    bool whole = device_is_whole(c->backend);
    cudaError_t code;

    c->early = whole && !c->l.padded && c->puts.stream == NULL;
    if (!whole && c->config.product == AG_GEMM_LIBRARY)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.product",
                            "%s: algorithm.product: library needs a GPU for each rank, and GPU %d "
                            "is shared; set it to own",
                            c->name, c->backend->device);
    if (!c->l.padded || (!whole && c->config.mover == AG_GEMM_AUTO && !c->l.forwards))
        return EPA_OK;
    if (!whole)
        return epa_fail_key(err, EPA_ERR_CONFIG, key,
                            "%s: %s: copy_engine needs a GPU for each rank, and GPU %d is shared; "
                            "set it to sm",
                            c->name, key, c->backend->device);
    code = side_stream_open(c->l.forwards ? SIDE_STREAM_TAKES : SIDE_STREAM_PLAIN, &c->engines);
    if (code == cudaSuccess && c->base.trace_end != NULL) {
        c->copies = ag_gemm_copies_create(most_copies(c));
        code = c->copies != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
    }
    if (code == cudaSuccess)
        return EPA_OK;
    return epa_fail_key(err, code == cudaErrorMemoryAllocation ? EPA_ERR_NOMEM : EPA_ERR_SYSTEM,
                        EPA_LIMIT_NAMED, "%s: a stream for copies: %s", c->name,
                        cudaGetErrorString(code));
}

static enum epa_status alloc_private(struct ag_cuda *c, struct epa_error *err)
{
    struct epa_backend *b = c->backend;
    uint64_t notes = c->base.trace_end != NULL ? ag_gemm_trace_notes(c->args, c->blocks) : 0;
    uint64_t bytes = ag_gemm_place_private(&c->l, c->blocks, notes, NULL, c->args, c->next_call);
    uint64_t first = 1;
    enum epa_status status = device_alloc_cleared(c->name, b, bytes, &c->memory, err);

    if (status != EPA_OK)
        return status;
    (void)ag_gemm_place_private(&c->l, c->blocks, notes, c->memory, c->args, c->next_call);
    /* The first call is call 1, in set 1. */
    status = b->ops->write(b, c->next_call[1], &first, sizeof(first));
    if (status == EPA_OK)
        status = b->ops->sync(b);
    return device_explain_setup(c->name, b, status, err);
}

static void fill_args(struct ag_cuda *c, const struct epa_algorithm_params *p)
{
    const struct epa_ag_gemm *g = &p->problem->u.ag_gemm;
    const struct ag_gemm_layout *l = &c->l;
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
    a->c_groups = epa_ag_gemm_groups(g->n);
    a->k_blocks = (g->k + block - 1) / block;
    a->step = c->config.tile_cols;
    a->columns = (g->n + a->step - 1) / a->step;
    a->panel = (c->config.panel + c->config.cluster - 1) / c->config.cluster;
    a->tile_rows = c->config.cluster * GEMM_ROWS;
    a->panels = l->panels;
    a->order = (uint32_t)c->config.order;
    a->comm_blocks = c->config.comm_blocks;
    a->padded = l->padded;
    a->across = c->config.across_ranks;
    a->engines = c->engines.stream != NULL && l->engines;
    a->forwards = l->forwards;
    a->b_scale = g->b_scale;
    a->bias = g->bias ? g->bias_of : NULL;
}

static enum epa_status make_maps(struct ag_cuda *c, const struct epa_ag_gemm *g,
                                 struct epa_error *err)
{
    const char *heap = c->t->peer_heap[c->t->rank] + c->heap;
    uint64_t rows = (uint64_t)c->l.size * c->l.max_rows;
    /* A rank without columns has no weights, but its kernel prefetches the map. */
    bool ok = gemm_map_weights(&c->args->weights, c->dtype, g->n != 0 ? g->b : heap, g->n, g->k,
                               GEMM_BOX);

    for (uint32_t i = 0; i < AG_GEMM_SETS && ok; i++)
        ok = gemm_map_rows(&c->gathered[i], c->dtype, heap + i * c->l.set_bytes, rows, g->k,
                           c->l.row_bytes);
    return ok ? EPA_OK
              : epa_fail(err, EPA_ERR_UNSUPPORTED,
                         "%s: the driver of GPU %d cannot create tensor maps of A and B", c->name,
                         c->backend->device);
}

static struct cublaslt_product product_of(const struct ag_cuda *c, const struct epa_ag_gemm *g,
                                          uint32_t rows)
{
    return (struct cublaslt_product){
        .dtype = c->dtype,
        .m = rows,
        .n = g->n,
        .k = g->k,
        .a = c->t->peer_heap[c->t->rank] + c->heap,
        .b = g->b,
        .bias = g->bias ? g->bias_of : NULL,
        .a_scale = c->scales,
        .b_scale = g->b_scale,
    };
}

/* Opens cuBLASLt for one matrix of all rows in order, so own rows are also copied into the set. If
 * cuBLASLt does not support the problem, own kernels multiply, unless the user requested cuBLASLt. */
static enum epa_status open_library(struct ag_cuda *c, const struct epa_ag_gemm *g,
                                    struct epa_error *err)
{
    const struct cublaslt_product product = product_of(c, g, c->l.size * c->l.max_rows);
    struct epa_error why = {EPA_OK, ""};
    enum epa_status status;

    if (c->config.library == AG_GEMM_KERNELS || g->n == 0)
        return EPA_OK;
    status = product.m == 0 ? epa_fail(&why, EPA_ERR_UNSUPPORTED, "A has no rows")
                            : cublaslt_create(&product, c->backend, &c->library, &why);
    if (status == EPA_OK) {
        c->args->hop[0].store |= (uint16_t)(1u << c->t->rank);
        c->early = false; /* the preceding kernels belong to cuBLASLt */
        snprintf(c->by, sizeof(c->by), "%s", cublaslt_name(c->library));
        return EPA_OK;
    }
    if (status != EPA_ERR_UNSUPPORTED || c->config.library == AG_GEMM_CUBLASLT)
        return epa_fail_key(
            err, status, "algorithm.library", "%s: library: cublaslt: %s%s", c->name, why.text,
            status == EPA_ERR_UNSUPPORTED ? "; library: auto uses own kernels" : "");
    snprintf(c->by, sizeof(c->by), "own kernels: %.140s", why.text);
    return EPA_OK;
}

/* Opens cuBLASLt for the rows of one rank. A rank on which cuBLASLt is missing or does not support
 * the number of columns uses own kernels, unless the user requested cuBLASLt. */
static enum epa_status open_parts(struct ag_cuda *c, const struct epa_ag_gemm *g,
                                  struct epa_error *err)
{
    struct cublaslt_product product = product_of(c, g, c->l.max_rows);
    struct epa_error why = {EPA_OK, ""};
    enum epa_status status = EPA_OK;
    char rule[128] = "product: library";

    if (c->config.product == AG_GEMM_BY_SHAPE)
        ag_gemm_describe_rule(g, &c->l, rule, sizeof(rule));
    if (!c->l.parts || c->engines.stream == NULL || g->n == 0) {
        if (c->config.product == AG_GEMM_BY_SHAPE)
            snprintf(c->by, sizeof(c->by), "own kernels; %s", rule);
        return EPA_OK;
    }
    if (product.m == 0)
        status = epa_fail(&why, EPA_ERR_UNSUPPORTED, "A has no rows");
    else if (g->n % 8 != 0)
        status = epa_fail(&why, EPA_ERR_UNSUPPORTED,
                          "rows of C with %u columns are not multiples of 16 bytes", g->n);
    else if (c->l.groups != 0 && c->l.max_rows % 4 != 0)
        status = epa_fail(&why, EPA_ERR_UNSUPPORTED,
                          "scales of %u rows are not multiples of 16 bytes", c->l.max_rows);
    if (status == EPA_OK && c->l.groups != 0) {
        void *scales = NULL;

        status = device_alloc_cleared(
            c->name, c->backend, (uint64_t)c->l.size * c->l.max_rows * c->l.groups * sizeof(float),
            &scales, &why);
        c->scales = scales;
        product.a_scale = scales;
    }
    if (g->n >= product.m)
        product.a = g->b; /* the set has no rows yet, and zeros need less power */
    if (status == EPA_OK)
        status = cublaslt_create(&product, c->backend, &c->library, &why);
    if (status == EPA_OK) {
        cudaError_t code = ag_gemm_parts_load();

        if (code != cudaSuccess)
            return epa_fail(err, EPA_ERR_SYSTEM, "%s: the kernels between products: %s", c->name,
                            cudaGetErrorString(code));
        snprintf(c->by, sizeof(c->by), "%s; %s", cublaslt_name(c->library), rule);
        return EPA_OK;
    }
    if (status != EPA_ERR_UNSUPPORTED || c->config.product == AG_GEMM_LIBRARY)
        return epa_fail_key(
            err, status, "algorithm.product", "%s: product: library: %s%s", c->name, why.text,
            status == EPA_ERR_UNSUPPORTED ? "; product: auto uses own kernels" : "");
    snprintf(c->by, sizeof(c->by), "own kernels: %.140s", why.text);
    return EPA_OK;
}

static void *alloc_zeroed(size_t bytes)
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
    enum epa_status status;

    if (c == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory", name);
    c->base = (struct epa_algorithm){.stages = stages,
                                     .n_stages = 1,
                                     .parts = parts,
                                     .n_parts = EPA_PARTS,
                                     .products_by = c->by,
                                     .explain = explain_ag_gemm,
                                     .destroy = destroy_ag_gemm};
    c->name = name;
    c->config = *config;
    c->t = p->transport;
    c->backend = p->backend;
    c->heap = p->heap;
    c->dtype = g->dtype;
    c->out_fp8 = g->out_fp8;
    c->trace = p->trace;
    if (p->trace != NULL && p->backend->ops->clock != NULL)
        c->base.trace_end = write_trace;
    snprintf(c->by, sizeof(c->by), "own kernels");
    c->args = alloc_zeroed(sizeof(*c->args));
    c->gathered = alloc_zeroed(AG_GEMM_SETS * sizeof(*c->gathered));
    c->own = alloc_zeroed(MAPS * sizeof(*c->own));
    status = ag_gemm_layout_make(name, g, &p->world, config, &c->l, err);
    if (status == EPA_OK && (c->args == NULL || c->gathered == NULL || c->own == NULL))
        status = epa_fail(err, EPA_ERR_NOMEM, "%s: no memory", name);
    if (status == EPA_OK)
        status = ag_gemm_find_routes(name, &c->l, config, &p->world, c->args, err);
    if (status == EPA_OK)
        status = device_check(name, p, AG_GEMM_SETS * c->l.set_bytes, true, err);
    if (status == EPA_OK)
        status = find_far(c, err);
    if (status == EPA_OK)
        status = load_kernel(c, g, err);
    if (status == EPA_OK)
        status = open_engines(c, err);
    if (status == EPA_OK) {
        fill_args(c, p);
        status = alloc_private(c, err);
    }
    if (status == EPA_OK)
        status = make_maps(c, g, err);
    if (status == EPA_OK)
        status = open_library(c, g, err);
    if (status == EPA_OK && c->config.overlap)
        status = open_parts(c, g, err);
    if (status != EPA_OK) {
        destroy_ag_gemm(&c->base);
        return status;
    }
    *out = &c->base;
    return EPA_OK;
}
