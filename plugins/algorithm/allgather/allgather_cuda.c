/* allgather on GPUs: the protocol, and what is queued for a call.
 *
 * A call is a kernel. It counts calls in device memory, as epochs e = 1, 2, ..., so that a graph
 * can be launched again and again; the host takes buffer sets in turn, and a graph keeps those
 * it was recorded with. All blocks are resident, so they may wait for those of peers.
 *
 * Pushed, blocks load this rank's rows once and store each 16 bytes at the same offset of its
 * own set and of all peers' sets. Pulled, they store them in the own set alone, and load those
 * of peers from theirs. The block that is the last to store its part of a chunk sets the word
 * of that chunk at all peers to e, by a release: pushed, the chunk is in place there; pulled,
 * it can be loaded. The kernel ends when it has seen e in the words of all chunks of all peers,
 * and nothing is read or written after it.
 *
 * Why no barrier is needed, and two sets are enough (allgather_host.c has the same for hosts):
 * kernel e begins (griddepcontrol.wait) after e - 1 ended, which saw the signals e - 1 of all
 * peers; so each peer's kernel e - 1 has begun, and what its stream held before has ended.
 *   - Pushed: what a peer has in the set of e is its output of e - 2, which was valid until its
 *     call e - 1 began.
 *   - Pulled: only the rank itself writes its set. Peers loaded from its part of the set of e in
 *     kernel e - 2, which has ended.
 *   - In place: what writes the own part for e is queued between e - 1 and e.
 *   - A word is set once in a call, by one thread, and kernels of calls do not overlap.
 *
 * Ranks of other nodes are signalled by a put of the chunk from the own set, which the transport's
 * thread carries out after the kernel may have ended. The own set of e is written again by call
 * e + 2: after kernel e + 1 has seen the signals e + 1 of all peers, which they gave after kernel e
 * had ended there, that is after they had this rank's chunks of e. */
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "allgather_cuda.h"

struct ag_cuda {
    struct epa_algorithm base; /* first */
    struct ag_layout l;
    struct epa_transport *t;
    struct epa_backend *backend;
    uint64_t heap;
    struct ag_args args; /* what is the same in all calls */
    void *memory;        /* of this rank alone: args.calls, then args.stored */
    uint64_t epoch;      /* on the host: which set is next */
    uint32_t blocks;
    bool pdl;              /* a kernel may be set up while the one before runs */
    struct epa_error last; /* of the host's making */
};

static struct ag_cuda *cuda_of(struct epa_algorithm *a)
{
    return (struct ag_cuda *)a; /* base is the first member */
}

static uint64_t set_offset(const struct ag_cuda *c, uint64_t epoch)
{
    return c->heap + epoch % AG_SETS * c->l.set_bytes;
}

static char *set_of(const struct ag_cuda *c, uint64_t epoch)
{
    return c->t->peer_heap[c->t->rank] + set_offset(c, epoch);
}

static const void *kernel_of(const struct ag_cuda *c)
{
    return ag_kernel(c->l.pull, c->t->ring != NULL);
}

static enum epa_status launch(struct ag_cuda *c, struct ag_args *args)
{
    cudaLaunchAttribute pdl = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                               .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t config = {.gridDim = {c->blocks, 1, 1},
                                 .blockDim = {AG_THREADS, 1, 1},
                                 .stream = c->backend->stream,
                                 .attrs = &pdl,
                                 .numAttrs = c->pdl ? 1 : 0};
    cudaError_t code = cudaSetDevice(c->backend->device);

    if (code == cudaSuccess)
        code = cudaLaunchKernelExC(&config, kernel_of(c), (void *[]){args});
    if (code == cudaSuccess)
        return EPA_OK;
    return epa_fail(&c->last, EPA_ERR_SYSTEM, "launching a kernel on GPU %d: %s",
                    c->backend->device, cudaGetErrorString(code));
}

static enum epa_status gather(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ag_cuda *c = cuda_of(a);
    struct epa_allgather *g = &problem->u.allgather;
    struct ag_args args = c->args;

    c->epoch++;
    g->epoch = c->epoch;
    g->out = set_of(c, c->epoch);
    g->next_out = set_of(c, c->epoch + 1);
    g->signal = c->args.signal;
    g->chunks = c->l.pull ? 0 : c->l.chunks;
    g->chunk_rows = c->l.chunk_rows;
    args.set = set_offset(c, c->epoch);
    args.rows = g->rows;
    args.in = g->in;
    return launch(c, &args);
}

static const struct epa_stage stages[] = {
    {.name = "allgather", .kind = EPA_STAGE_WHOLE, .run = gather},
};

static void explain(struct epa_algorithm *a, struct epa_error *err)
{
    const struct ag_cuda *c = cuda_of(a);
    const struct epa_fault *f = &c->backend->fault;

    if (f->status != EPA_OK && f->what == AG_FOR_ROOM)
        (void)epa_fail(err, (enum epa_status)f->status,
                       "waited %.3f s for room in the ring of puts between nodes, for chunk %u to "
                       "rank %u: %llu are taken, wants %llu",
                       (double)f->waited_ns * 1e-9, f->index, f->peer, (unsigned long long)f->seen,
                       (unsigned long long)f->wanted);
    else if (f->status != EPA_OK)
        (void)epa_fail(err, (enum epa_status)f->status,
                       "waited %.3f s for chunk %u of rank %u: its signal is %llu, wants %llu",
                       (double)f->waited_ns * 1e-9, f->index, f->peer, (unsigned long long)f->seen,
                       (unsigned long long)f->wanted);
    else if (c->last.status != EPA_OK)
        (void)epa_fail(err, c->last.status, "%s", c->last.text);
}

/* ---- set-up ---- */

static void destroy(struct epa_algorithm *a)
{
    struct ag_cuda *c = cuda_of(a);

    if (c->memory != NULL)
        c->backend->ops->free(c->backend, c->memory);
    free(c);
}

static enum epa_status check_device(const struct ag_cuda *c, struct epa_error *err)
{
    int device = c->backend->device, major = 0;
    cudaError_t code = cudaSetDevice(device);

    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "allgather: GPU %d: %s", device,
                        cudaGetErrorString(code));
    if (major < 9)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "allgather: GPU %d has compute capability %d.x; its kernels need 9.0",
                        device, major);
    if (c->t->view == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "allgather: the transport gives kernels no way to other ranks");
    if (c->heap + c->l.heap_bytes > c->t->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG, "allgather: the heap of %llu bytes is too small",
                        (unsigned long long)c->t->heap_bytes);
    return EPA_OK;
}

/* Loads the kernel: one that is loaded when it is first launched may have to wait for others
 * that wait for it. Blocks that are resident at once, and no more than there are parts of the
 * most rows that there can be: pulled, of all ranks; pushed, of this one. */
static enum epa_status count_blocks(struct ag_cuda *c, uint32_t most, struct epa_error *err)
{
    const struct ag_layout *l = &c->l;
    const void *kernel = kernel_of(c);
    uint64_t chunk_bytes = (uint64_t)l->chunk_rows * l->row_bytes;
    uint64_t parts = (chunk_bytes + AG_PART_BYTES - 1) / AG_PART_BYTES * l->chunks;
    struct cudaFuncAttributes attributes;
    int n = 0, all = 0;
    cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);

    if (code == cudaSuccess)
        code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, kernel, AG_THREADS, 0);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, c->backend->device);
    if (code != cudaSuccess || n == 0)
        return epa_fail(
            err, EPA_ERR_SYSTEM, "allgather: loading its kernel on GPU %d: %s", c->backend->device,
            n == 0 && code == cudaSuccess ? "no room for a block" : cudaGetErrorString(code));
    /* Where ranks share a device, a kernel set up early would take the room of theirs. */
    c->pdl = c->backend->multiprocessors == (uint32_t)all;
    c->blocks = c->backend->multiprocessors * (uint32_t)(n < 2 ? n : 2);
    if (most != 0 && most < c->blocks)
        c->blocks = most;
    parts *= l->pull ? l->size : 1;
    if (parts < c->blocks)
        c->blocks = (uint32_t)parts;
    return EPA_OK;
}

static enum epa_status alloc_counters(struct ag_cuda *c, struct epa_error *err)
{
    struct epa_backend *b = c->backend;
    size_t calls = c->blocks * sizeof(*c->args.calls);
    size_t bytes = calls + c->l.chunks * sizeof(*c->args.stored);
    struct epa_error why = {EPA_OK, ""};
    enum epa_status status = b->ops->alloc(b, bytes, &c->memory);

    if (status == EPA_OK)
        status = b->ops->fill(b, c->memory, 0, bytes);
    if (status == EPA_OK)
        status = b->ops->sync(b);
    if (status != EPA_OK) {
        b->ops->explain(b, &why);
        return epa_fail(err, status, "allgather: setting up on GPU %d: %s", b->device, why.text);
    }
    c->args.calls = c->memory;
    c->args.stored = (uint32_t *)(void *)((char *)c->memory + calls);
    return EPA_OK;
}

enum epa_status ag_cuda_create(const struct epa_algorithm_params *p, const struct ag_layout *l,
                               struct epa_algorithm **out, struct epa_error *err)
{
    const struct ag_config *config = p->config;
    struct ag_cuda *c = calloc(1, sizeof(*c));
    enum epa_status status;

    if (c == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "allgather: no memory");
    c->base = (struct epa_algorithm){
        .stages = stages, .n_stages = 1, .explain = explain, .destroy = destroy};
    c->l = *l;
    c->t = p->transport;
    c->backend = p->backend;
    c->heap = p->heap;
    status = check_device(c, err);
    if (status == EPA_OK)
        status = count_blocks(c, config->blocks, err);
    if (status != EPA_OK) {
        destroy(&c->base);
        return status;
    }
    c->args = (struct ag_args){.v = *p->transport->view,
                               .timeout_ns = p->timeout_ns,
                               .signal = p->signal,
                               .chunks = l->chunks,
                               .chunk_rows = l->chunk_rows,
                               .row_bytes = l->row_bytes};
    if (c->t->ring != NULL)
        c->args.ring = *c->t->ring;
    status = alloc_counters(c, err);
    if (status != EPA_OK) {
        destroy(&c->base);
        return status;
    }
    *out = &c->base;
    return EPA_OK;
}
