/* allgather on GPUs: the protocol, and the kernel launch of a call.
 *
 * A call is one kernel. Device memory contains the count of calls, epochs e = 1, 2, ..., so that a
 * graph can be launched repeatedly. The host assigns buffer sets in turn; a graph keeps the sets of
 * its recording. All blocks are resident, so they may wait for blocks of peers.
 *
 * In mode push, blocks load this rank's rows once and store each 16 bytes at the same offset of the
 * own set and of all peers' sets. In mode pull, blocks store the rows in the own set only, and load
 * the peers' rows from the peers' sets. The block that stores the last part of a chunk sets the
 * word of the chunk at all peers to e with a release. In mode push, the chunk is then in place at
 * the peers; in mode pull, peers may load it. The kernel ends when it has seen e in the words of
 * all chunks of all peers, and it accesses no rows afterwards.
 *
 * The kernel needs no barrier, and two sets suffice (allgather_host.c has the proof for hosts).
 * Kernel e begins (griddepcontrol.wait) after kernel e - 1 has ended, which saw the signals e - 1
 * of all peers. So kernel e - 1 of each peer has begun, and all earlier work of the peer's stream
 * has ended.
 *   - push: the set of e at a peer contains the peer's output of e - 2, which was valid until its
 *     call e - 1 began.
 *   - pull: only the owner writes its set. Peers loaded from the owner's part of the set of e in
 *     kernel e - 2, which has ended.
 *   - In place: the writer of the own part for e is queued between e - 1 and e.
 *   - One thread sets a word, once in a call, and the kernels of calls do not overlap.
 *
 * Ranks of other nodes receive the signal by a put of the chunk from the own set. The transport's
 * thread may make the put after the end of the kernel. Call e + 2 writes the own set of e again. It
 * starts after kernel e + 1 has seen the signals e + 1 of all peers. Peers send these after the end
 * of their kernel e, thus after the arrival of this rank's chunks of e. */
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "../../common/device_setup.h"
#include "allgather_cuda.h"
#include "allgather_kernels.h"

struct ag_cuda {
    struct epa_algorithm base; /* first member */
    struct ag_layout l;
    struct epa_transport *t;
    struct epa_backend *backend;
    uint64_t heap;
    struct ag_args args; /* arguments that all calls share */
    void *memory;        /* device memory of this rank: counters and stamps of args */
    uint64_t epoch;      /* number of the last call, counted by the host */
    uint32_t blocks;
    bool pdl;                /* a kernel may be set up while the previous one runs */
    struct epa_error last;   /* last error of host calls */
    struct epa_trace *trace; /* NULL: the run has no profile */
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

static enum epa_status launch_gather(struct epa_algorithm *a, struct epa_problem *problem)
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
    {.name = "allgather", .kind = EPA_STAGE_WHOLE, .run = launch_gather},
};

static void explain_fault(struct epa_algorithm *a, struct epa_error *err)
{
    const struct ag_cuda *c = cuda_of(a);
    const struct epa_fault *f = &c->backend->fault;

    if (f->status != EPA_OK && f->what == AG_FOR_ROOM)
        (void)epa_fail(epa_awaits(err, f->peer), (enum epa_status)f->status,
                       "waited %.3f s for room in the ring of puts between nodes, for chunk %u to "
                       "rank %u: the proxy has taken %llu puts, wants %llu",
                       (double)f->waited_ns * 1e-9, f->index, f->peer, (unsigned long long)f->seen,
                       (unsigned long long)f->wanted);
    else if (f->status != EPA_OK)
        (void)epa_fail(epa_awaits(err, f->peer), (enum epa_status)f->status,
                       "waited %.3f s for chunk %u of rank %u: its signal is %llu, wants %llu",
                       (double)f->waited_ns * 1e-9, f->index, f->peer, (unsigned long long)f->seen,
                       (unsigned long long)f->wanted);
    else if (c->last.status != EPA_OK)
        (void)epa_fail_key(err, c->last.status, c->last.key, "%s", c->last.text);
}

/* ---- the profile ---- */

static const char *const phases[AG_PHASES] = {
    [AG_PHASE_SEND] = "send", [AG_PHASE_PULL] = "pull", [AG_PHASE_WAIT] = "wait"};

static void write_trace(struct epa_algorithm *a)
{
    struct ag_cuda *c = cuda_of(a);
    const struct device_stamped stamped = {.stamp = c->args.stamps,
                                           .warps = c->blocks * AG_WARPS,
                                           .block_warps = AG_WARPS,
                                           .stages = 1,
                                           .phases = AG_PHASES,
                                           .name = phases};

    a->trace_end = NULL;
    device_report_stamps("allgather", c->backend,
                         device_add_stamps(c->backend, c->trace, &stamped));
}

/* ---- set-up ---- */

static void destroy_cuda(struct epa_algorithm *a)
{
    struct ag_cuda *c = cuda_of(a);

    if (a->trace_end != NULL && c->memory != NULL && c->epoch > 0 &&
        c->backend->fault.status == EPA_OK)
        write_trace(a);
    if (c->memory != NULL)
        c->backend->ops->free(c->backend, c->memory);
    free(c);
}

/* Computes the number of blocks: at most the resident blocks, `most`, and the number of parts of a
 * call. The rows of all ranks count in mode pull, the rows of this rank in mode push. */
static enum epa_status count_blocks(struct ag_cuda *c, uint32_t most, struct epa_error *err)
{
    const struct ag_layout *l = &c->l;
    const struct device_code code = {kernel_of(c), "allgather", AG_THREADS, 0};
    uint64_t chunk_bytes = (uint64_t)l->chunk_rows * l->row_bytes;
    uint64_t parts = (chunk_bytes + AG_PART_BYTES - 1) / AG_PART_BYTES * l->chunks;
    uint32_t n = 0;
    enum epa_status status = device_load_kernel("allgather", c->backend, &code, &n, err);

    c->pdl = device_is_whole(c->backend);
    c->blocks = device_waiting_blocks(c->backend, n);
    if (most != 0 && most < c->blocks)
        c->blocks = most;
    parts *= l->pull ? l->size : 1;
    if (parts < c->blocks)
        c->blocks = (uint32_t)parts;
    return status;
}

/* Places counters and stamps. With memory NULL it only counts. Returns the number of bytes. */
static uint64_t place_counters(struct ag_cuda *c, char *memory)
{
    uint64_t at = 0, stamps = c->base.trace_end != NULL ? c->blocks * AG_WARPS * AG_PHASES : 0;

    c->args.calls = device_take(memory, &at, c->blocks * sizeof(*c->args.calls));
    c->args.stored = device_take(memory, &at, c->l.chunks * sizeof(*c->args.stored));
    c->args.stamps = device_take(memory, &at, stamps * sizeof(*c->args.stamps));
    if (stamps == 0)
        c->args.stamps = NULL;
    return at;
}

static enum epa_status alloc_counters(struct ag_cuda *c, struct epa_error *err)
{
    uint64_t bytes = place_counters(c, NULL);
    enum epa_status status = device_alloc_cleared("allgather", c->backend, bytes, &c->memory, err);

    if (status == EPA_OK)
        (void)place_counters(c, c->memory);
    return status;
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
        .stages = stages, .n_stages = 1, .explain = explain_fault, .destroy = destroy_cuda};
    c->l = *l;
    c->t = p->transport;
    c->backend = p->backend;
    c->heap = p->heap;
    c->trace = p->trace;
    if (p->trace != NULL && p->backend->ops->clock != NULL)
        c->base.trace_end = write_trace;
    status = device_check("allgather", p, l->heap_bytes, false, err);
    if (status == EPA_OK)
        status = count_blocks(c, config->blocks, err);
    if (status != EPA_OK) {
        destroy_cuda(&c->base);
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
        destroy_cuda(&c->base);
        return status;
    }
    *out = &c->base;
    return EPA_OK;
}
