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

#include "../../common/device_setup.h"
#include "allgather.h"

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
    return device_check_call(&c->last, c->backend, code, "launching a kernel");
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

/* Blocks that are resident at once, and no more than there are parts of the most rows that there
 * can be: pulled, of all ranks; pushed, of this one. */
static enum epa_status count_blocks(struct ag_cuda *c, uint32_t most, struct epa_error *err)
{
    const struct ag_layout *l = &c->l;
    const struct device_code code = {kernel_of(c), "allgather", AG_THREADS, 0};
    uint64_t chunk_bytes = (uint64_t)l->chunk_rows * l->row_bytes;
    uint64_t parts = (chunk_bytes + AG_PART_BYTES - 1) / AG_PART_BYTES * l->chunks;
    uint32_t n = 0;
    enum epa_status status = device_load_kernel("allgather", c->backend, &code, &n, err);

    c->pdl = device_is_whole(c->backend);
    c->blocks = c->backend->multiprocessors * (n < 2 ? n : 2);
    if (most != 0 && most < c->blocks)
        c->blocks = most;
    parts *= l->pull ? l->size : 1;
    if (parts < c->blocks)
        c->blocks = (uint32_t)parts;
    return status;
}

static enum epa_status alloc_counters(struct ag_cuda *c, struct epa_error *err)
{
    size_t calls = c->blocks * sizeof(*c->args.calls);
    size_t bytes = calls + c->l.chunks * sizeof(*c->args.stored);
    enum epa_status status = device_alloc_cleared("allgather", c->backend, bytes, &c->memory, err);

    if (status != EPA_OK)
        return status;
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
    status = device_check("allgather", p, l->heap_bytes, false, err);
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
