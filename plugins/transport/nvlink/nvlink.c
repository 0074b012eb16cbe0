/* NVLink transport: GPU memory of all ranks, mapped by all, for kernels that load and store. The
 * functions here are for set-up and for tests, as kernels do the work. With between_nodes that is so
 * within a node, and ranks of others are reached by a proxy (far.h).
 *
 * Copies and signals go through one stream, whose order is all the order there is: what is
 * queued later is seen later. Barriers go through host memory (exchange_page.c). */
#include "far.h"
#include "memory.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum nvlink_failed_at {
    FAILED_QUIET = FAILED_OTHER,
    FAILED_PEAK,
    FAILED_CUDA,
    FAILED_FAR,
};

enum { PINNED_WORDS = 16 };

static const uint32_t FAR = UINT32_MAX;

struct nvlink {
    struct epa_transport base; /* first: a pointer to it is one to all of this */
    struct epa_transport_ops ops;
    struct epa_bootstrap *boot, *node; /* node: of the ranks that memory is mapped of */
    struct far_boot node_boot;
    struct far *far;                 /* NULL: all ranks are of this node */
    uint32_t near[EPA_DEVICE_RANKS]; /* of each rank: its number in `node`, or FAR */
    struct epa_backend *backend;
    struct driver driver;
    struct gpu gpu[EPA_DEVICE_RANKS];
    struct memory memory;
    struct epa_device_view view;
    cudaStream_t stream, reads; /* puts and signals, in order; copies of words back */
    cudaEvent_t event[2];
    uint64_t *pinned; /* [PINNED_WORDS]: where words are copied to */
    /* Of device_peak(), whose words count up, too: runs of stores; turns with each rank. */
    uint64_t meets, turns[EPA_DEVICE_RANKS];
    struct failure failure;
};

/* For what a GPU does in microseconds: longer means that it does nothing any more. */
static const uint64_t stuck_ns = 60000000000u;

static struct nvlink *nvlink_of(struct epa_transport *t)
{
    return (struct nvlink *)t;
}

/* Records a failed call of CUDA. */
static enum epa_status nvlink_cuda(struct nvlink *n, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return EPA_OK;
    (void)cudaGetLastError();
    n->failure = (struct failure){
        .at = FAILED_CUDA, .status = EPA_ERR_SYSTEM, .code = (int)error, .what = what};
    return EPA_ERR_SYSTEM;
}

/* Until the stream is empty; or, where that is to be heeded, a rank has failed. */
static enum epa_status nvlink_drain(struct nvlink *n, cudaStream_t stream, uint64_t timeout_ns,
                                    bool heeds_abort)
{
    static const uint32_t never = 0;
    struct epa_wait_config config = n->memory.exchange_page.wait;
    struct epa_wait wait = {.timeout_ns = timeout_ns};
    struct epa_wait_state state = {
        .kind = EPA_WAIT_DEVICE, .peer = EPA_WAIT_NOBODY, .number = EPA_WAIT_NOBODY};

    config.aborted = heeds_abort ? n->boot->aborted : &never;
    for (;;) {
        cudaError_t error = cudaStreamQuery(stream);
        enum epa_status status;

        if (error == cudaSuccess)
            return epa_wait_done(&config, &wait);
        if (error != cudaErrorNotReady)
            return nvlink_cuda(n, error, "waiting for a stream");
        status = epa_wait_turn(&config, &wait, &state);
        if (status != EPA_OK) {
            n->failure =
                (struct failure){.at = FAILED_QUIET, .status = status, .waited_ns = wait.waited_ns};
            return status;
        }
    }
}

/* Whether the proxy goes on; it may have failed at any time. */
static enum epa_status check_far(struct nvlink *n)
{
    enum epa_status status = n->far != NULL ? far_status(n->far) : EPA_OK;

    if (status != EPA_OK)
        n->failure = (struct failure){.at = FAILED_FAR, .status = status};
    return status;
}

static enum epa_status ask_far(struct nvlink *n, struct epa_descriptor what)
{
    enum epa_status status = far_ask(n->far, what);

    return status == EPA_OK || status == EPA_AGAIN ? status : check_far(n);
}

/* Of a wait for ranks of other nodes: f is set unless the proxy failed. */
static enum epa_status waited_far(struct nvlink *n, enum epa_status status, const struct failure *f)
{
    if (status == EPA_OK || check_far(n) != EPA_OK)
        return status;
    n->failure = *f;
    if (f->at != FAILED_BARRIER)
        n->failure.at = FAILED_QUIET;
    return status;
}

static enum epa_status put(struct epa_transport *t, uint64_t dst, const void *src, size_t bytes,
                           uint32_t peer)
{
    struct nvlink *n = nvlink_of(t);

    assert(peer < t->size && dst <= t->heap_bytes && bytes <= t->heap_bytes - dst);
    if (bytes == 0) /* src may be NULL then */
        return EPA_OK;
    if (n->near[peer] == FAR)
        return ask_far(
            n, (struct epa_descriptor){
                   .op = EPA_RING_PUT, .peer = peer, .dst = dst, .src = src, .bytes = bytes});
    return nvlink_cuda(
        n, cudaMemcpyAsync(t->peer_heap[peer] + dst, src, bytes, cudaMemcpyDefault, n->stream),
        "a copy to a peer");
}

static uint32_t far_op(enum epa_signal_op op)
{
    return op == EPA_SIGNAL_ADD ? EPA_RING_ADD : EPA_RING_SET;
}

static enum epa_status raise_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                    enum epa_signal_op op, uint32_t peer)
{
    struct nvlink *n = nvlink_of(t);

    assert(signal < n->memory.params.signals && peer < t->size);
    if (n->near[peer] == FAR)
        return ask_far(n, (struct epa_descriptor){
                              .op = far_op(op), .peer = peer, .value = value, .signal = signal});
    return nvlink_cuda(n,
                       nvlink_queue_signal(n->stream, n->view.peer_signal[peer] + signal, value,
                                           op == EPA_SIGNAL_ADD),
                       "queueing a signal");
}

static enum epa_status put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t signal, uint64_t value,
                                  enum epa_signal_op op, uint32_t peer)
{
    struct nvlink *n = nvlink_of(t);
    enum epa_status status;

    if (n->near[peer] == FAR)
        return ask_far(n, (struct epa_descriptor){.op = EPA_RING_PUT | far_op(op),
                                                  .peer = peer,
                                                  .dst = dst,
                                                  .src = src,
                                                  .bytes = bytes,
                                                  .value = value,
                                                  .signal = signal});
    status = put(t, dst, src, bytes, peer);
    return status == EPA_OK ? raise_signal(t, signal, value, op, peer) : status;
}

/* The stream is in order, and each signal fences. */
static enum epa_status fence(struct epa_transport *t, uint32_t peer)
{
    struct nvlink *n = nvlink_of(t);

    if (n->near[peer] == FAR)
        far_fence(n->far, peer);
    return EPA_OK;
}

static enum epa_status quiet(struct epa_transport *t)
{
    struct nvlink *n = nvlink_of(t);
    enum epa_status status = nvlink_drain(n, n->stream, stuck_ns, true);
    struct failure f;

    if (status != EPA_OK || n->far == NULL)
        return status;
    status = far_quiet(n->far, stuck_ns, &f);
    return waited_far(n, status, &f);
}

/* Copies a word of this rank's back. Behind no put: on a stream of its own. It is done
 * before `aborted` is looked at, so that what has come is seen even then. */
static enum epa_status look_at(struct nvlink *n, uint32_t signal, uint64_t *out)
{
    enum epa_status status;

    assert(signal < n->memory.params.signals);
    status = nvlink_cuda(n,
                         cudaMemcpyAsync(n->pinned, n->view.peer_signal[n->base.rank] + signal,
                                         sizeof(*out), cudaMemcpyDeviceToHost, n->reads),
                         "a copy of a signal");
    if (status == EPA_OK)
        status = nvlink_drain(n, n->reads, stuck_ns, false);
    if (status == EPA_OK)
        *out = *n->pinned;
    return status;
}

static uint64_t read_signal(struct epa_transport *t, uint32_t signal)
{
    uint64_t value = 0; /* also where the GPU has failed, as all else says then */

    (void)look_at(nvlink_of(t), signal, &value);
    return value;
}

static enum epa_status wait_signal(struct epa_transport *t, uint32_t signal,
                                   enum epa_compare compare, uint64_t value, uint64_t timeout_ns)
{
    struct nvlink *n = nvlink_of(t);
    struct epa_wait_config config = n->memory.exchange_page.wait;
    struct epa_wait wait = {.timeout_ns = timeout_ns};
    struct failure f = {.at = FAILED_SIGNAL, .compare = compare, .signal = signal, .want = value};

    config.spin_ns = UINT64_MAX; /* a look is a copy, which takes its time */
    for (;;) {
        enum epa_status status = look_at(n, signal, &f.seen);
        struct epa_wait_state state;

        if (status != EPA_OK)
            return status;
        if (wait_reached(f.seen, compare, value))
            return epa_wait_done(&config, &wait);
        status = check_far(n);
        if (status != EPA_OK)
            return status;
        state = wait_state_of(&f);
        f.status = epa_wait_turn(&config, &wait, &state);
        f.waited_ns = wait.waited_ns;
        if (f.status != EPA_OK) {
            n->failure = f;
            return f.status;
        }
    }
}

static enum epa_status progress(struct epa_transport *t)
{
    struct nvlink *n = nvlink_of(t);

    return epa_aborted(n->boot) ? EPA_ERR_ABORTED : check_far(n); /* the GPU goes on by itself */
}

/* What is left of a time. */
static uint64_t rest_of(uint64_t timeout_ns, uint64_t begun)
{
    uint64_t waited = epa_now_ns() - begun;

    return timeout_ns > waited ? timeout_ns - waited : 0;
}

static enum epa_status pass_node_barrier(struct nvlink *n, uint64_t timeout_ns)
{
    struct failure f;
    enum epa_status status = exchange_page_barrier(&n->memory.exchange_page, timeout_ns, &f);

    if (status == EPA_OK)
        return status;
    if (n->far != NULL && f.missing > 0) /* of this node */
        f.first_missing = n->node_boot.member[f.first_missing];
    n->failure = f;
    return status;
}

/* Ranks of other nodes are told before this one waits for its own. */
static enum epa_status pass_far_barrier(struct nvlink *n, uint64_t timeout_ns, uint64_t begun)
{
    struct failure f;
    enum epa_status status = far_quiet(n->far, rest_of(timeout_ns, begun), &f);

    if (status == EPA_OK)
        status = far_arrive(n->far, rest_of(timeout_ns, begun), &f);
    if (status != EPA_OK)
        return waited_far(n, status, &f);
    status = pass_node_barrier(n, rest_of(timeout_ns, begun));
    if (status != EPA_OK)
        return status;
    status = far_await(n->far, rest_of(timeout_ns, begun), &f);
    return waited_far(n, status, &f);
}

static enum epa_status pass_barrier(struct epa_transport *t, uint64_t timeout_ns)
{
    struct nvlink *n = nvlink_of(t);
    uint64_t begun = epa_now_ns();
    enum epa_status status = nvlink_drain(n, n->stream, timeout_ns, true);

    if (status != EPA_OK)
        return status;
    return n->far != NULL ? pass_far_barrier(n, timeout_ns, begun)
                          : pass_node_barrier(n, rest_of(timeout_ns, begun));
}

static enum epa_status meet_in_set_up(struct nvlink *n)
{
    enum epa_status status = n->boot->barrier(n->boot);

    if (status != EPA_OK)
        n->failure = (struct failure){.at = FAILED_SET_UP, .status = status};
    return status;
}

static enum epa_status reset_signals(struct epa_transport *t)
{
    struct nvlink *n = nvlink_of(t);
    size_t bytes = n->memory.params.signals * sizeof(uint64_t);
    enum epa_status status = quiet(t);

    if (status == EPA_OK)
        status = meet_in_set_up(n); /* nobody signals any more */
    if (status == EPA_OK && bytes > 0)
        status = nvlink_cuda(n, cudaMemsetAsync(n->view.peer_signal[t->rank], 0, bytes, n->stream),
                             "zeroing signals");
    if (status == EPA_OK)
        status = quiet(t);
    if (status == EPA_OK)
        status = meet_in_set_up(n); /* nobody signals yet */
    return status;
}

enum { STORE_LEAST = 64 << 10 }; /* bytes to one peer: less shows nothing of links */

/* Longest wait of a kernel that measures for another rank; for all that is queued. */
static const uint64_t kernel_wait_ns = 5000000000u, kernels_ns = 60000000000u;

/* Brings OWN_TIME and the fault behind it to n->pinned; a kernel that gave up is an error. */
static enum epa_status fetch_time(struct nvlink *n, const uint64_t *own)
{
    struct epa_fault fault;
    enum epa_status status =
        nvlink_cuda(n,
                    cudaMemcpyAsync(n->pinned, own + OWN_TIME, sizeof(uint64_t) + sizeof(fault),
                                    cudaMemcpyDeviceToHost, n->stream),
                    "a copy of what was measured");

    if (status == EPA_OK)
        status = nvlink_drain(n, n->stream, kernels_ns, true);
    if (status != EPA_OK)
        return status;
    memcpy(&fault, n->pinned + 1, sizeof(fault));
    if (fault.claimed == 0)
        return EPA_OK;
    n->failure = (struct failure){.at = FAILED_PEAK,
                                  .status = fault.status,
                                  .peer = fault.peer,
                                  .want = fault.wanted,
                                  .seen = fault.seen,
                                  .waited_ns = fault.waited_ns};
    return fault.status;
}

static cudaError_t queue_stores(struct nvlink *n, const struct epa_device_view *view,
                                const struct epa_peak_run *run)
{
    uint32_t blocks = n->backend->multiprocessors > 0 ? n->backend->multiprocessors : 1;
    cudaError_t error = nvlink_queue_meet(n->stream, view, n->memory.params.signals + OWN_MEET,
                                          ++n->meets, kernel_wait_ns);

    if (error == cudaSuccess)
        error = cudaEventRecord(n->event[0], n->stream);
    if (error == cudaSuccess)
        error = nvlink_queue_stores(n->stream, view, run->bytes, run->passes, blocks);
    if (error == cudaSuccess)
        error = cudaEventRecord(n->event[1], n->stream);
    return error;
}

static cudaError_t queue_turns(struct nvlink *n, const struct epa_device_view *view,
                               const struct epa_peak_run *run, uint64_t *own)
{
    const struct ping_run ping = {.peer = run->peer,
                                  .word = n->memory.params.signals + OWN_PING,
                                  .turns = run->turns,
                                  .base = n->turns[run->peer] + 1,
                                  .timeout_ns = kernel_wait_ns,
                                  .time = own + OWN_TIME};

    n->turns[run->peer] += run->turns + 1;
    return nvlink_queue_ping(n->stream, view, &ping);
}

static enum epa_status device_peak(struct epa_transport *t, const struct epa_peak_run *run,
                                   double *ns)
{
    struct nvlink *n = nvlink_of(t);
    struct epa_device_view view = n->view;
    uint64_t *own = view.peer_signal[t->rank] + n->memory.params.signals;
    enum epa_status status;
    cudaError_t error;
    float ms = 0;

    *ns = 0;
    if (run->bytes > 0 && run->bytes < STORE_LEAST)
        return EPA_OK;
    view.fault = (struct epa_fault *)(void *)(own + OWN_FAULT);
    error = cudaMemsetAsync(own + OWN_TIME, 0, (OWN_WORDS - OWN_TIME) * sizeof(*own), n->stream);
    if (error == cudaSuccess)
        error = run->bytes > 0 ? queue_stores(n, &view, run) : queue_turns(n, &view, run, own);
    status = nvlink_cuda(n, error, "queueing kernels that measure");
    if (status == EPA_OK)
        status = fetch_time(n, own);
    if (status == EPA_OK && run->bytes > 0)
        status =
            nvlink_cuda(n, cudaEventElapsedTime(&ms, n->event[0], n->event[1]), "timing stores");
    if (status == EPA_OK)
        *ns = run->bytes > 0 ? (double)ms * 1e6 : (double)n->pinned[0];
    return status;
}

static void explain(struct epa_transport *t, struct epa_error *err)
{
    struct nvlink *n = nvlink_of(t);
    const struct failure *f = &n->failure;
    const char *why = wait_why(f);
    double waited_s = (double)f->waited_ns * 1e-9;

    if (n->far != NULL && far_status(n->far) != EPA_OK && far_status(n->far) != EPA_ERR_ABORTED) {
        far_explain(n->far, err);
        return;
    }
    switch (f->at) {
    case FAILED_FAR:
        (void)epa_fail(err, f->status, "nvlink: rank %u ended its proxy%s", t->rank, why);
        break;
    case FAILED_QUIET:
        (void)epa_fail(err, f->status,
                       "nvlink: rank %u waited %.3f s for its own copies and signals%s", t->rank,
                       waited_s, why);
        break;
    case FAILED_PEAK:
        (void)epa_fail(err, f->status,
                       "nvlink: rank %u waited %.3f s for rank %u while link peak was "
                       "measured, it is at %" PRIu64 " of %" PRIu64 "%s",
                       t->rank, waited_s, f->peer, f->seen, f->want, why);
        break;
    case FAILED_CUDA:
        (void)epa_fail(err, f->status, "nvlink: rank %u on GPU %d: %s: %s", t->rank,
                       n->backend->device, f->what, cudaGetErrorString((cudaError_t)f->code));
        break;
    default:
        wait_explain("nvlink", t, n->boot, f, err);
        break;
    }
}

/* ---- opening and closing ---- */

enum {
    FLAGS = EPA_TRANSPORT_HOST | EPA_TRANSPORT_DEVICE | EPA_TRANSPORT_LOAD_STORE |
            EPA_TRANSPORT_SIGNAL_ADD | EPA_TRANSPORT_ANY_SOURCE,
};

/* For what was queued to end, on close. */
static const uint64_t leave_ns = 10000000000u;

struct config {
    int memory; /* enum memory_kind */
    const char *between_nodes;
};

/* Also of what is half open. Lost: a GPU that does not finish keeps what it may still use
 * until the process ends; to take it away would be to wait for it. */
static void destroy(struct nvlink *n, bool lost)
{
    for (uint32_t i = 0; i < 2 && !lost; i++) {
        if (n->event[i] != NULL)
            (void)cudaEventDestroy(n->event[i]);
    }
    if (!lost) {
        memory_finish(&n->memory);
        if (n->stream != NULL)
            (void)cudaStreamDestroy(n->stream);
        if (n->reads != NULL)
            (void)cudaStreamDestroy(n->reads);
        if (n->pinned != NULL)
            (void)cudaFreeHost(n->pinned);
    }
    exchange_page_finish(&n->memory.exchange_page);
    (void)cudaGetLastError(); /* nobody else is to stumble over it */
    free(n);
}

/* What this rank still runs in the memory of others ends first: kernels are bounded, and
 * the backend tells them to leave where a rank has failed. */
static void nvlink_close(struct epa_transport *t)
{
    struct nvlink *n = (struct nvlink *)t;
    bool lost;

    (void)n->backend->ops->sync(n->backend);
    lost = !far_close(n->far);
    n->far = NULL;
    lost = lost || nvlink_drain(n, n->stream, leave_ns, false) == EPA_ERR_TIMEOUT ||
           nvlink_drain(n, n->reads, leave_ns, false) == EPA_ERR_TIMEOUT ||
           cudaStreamQuery(n->backend->stream) == cudaErrorNotReady;
    destroy(n, lost);
}

static const struct epa_transport_ops nvlink_ops = {
    .put = put,
    .put_signal = put_signal,
    .signal = raise_signal,
    .fence = fence,
    .quiet = quiet,
    .read = read_signal,
    .wait = wait_signal,
    .progress = progress,
    .barrier = pass_barrier,
    .reset = reset_signals,
    .device_peak = device_peak,
    .explain = explain,
    .close = nvlink_close,
};

enum { BOOT_ID = 40 };

/* Nodes may be made of one host (ranks_per_node), which this transport reaches all of. *here: how
 * many ranks there are on this rank's. */
static enum epa_status count_host(struct epa_bootstrap *boot, uint32_t *here, struct epa_error *err)
{
    const struct epa_world *world = &boot->world;
    char mine[BOOT_ID] = "", all[EPA_DEVICE_RANKS][BOOT_ID];
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    enum epa_status status;

    if (file != NULL) {
        if (fgets(mine, sizeof(mine), file) == NULL)
            mine[0] = 0;
        fclose(file);
    }
    status = boot->allgather(boot, mine, sizeof(mine), all);
    if (status != EPA_OK) {
        boot->explain(boot, err);
        return status;
    }
    for (uint32_t r = 0; r < world->size; r++)
        *here += strncmp(all[r], mine, sizeof(mine)) == 0;
    return EPA_OK;
}

static enum epa_status check(const struct epa_transport_params *p, bool *one_host,
                             struct epa_error *err)
{
    const struct epa_world *world = &p->boot->world;
    uint32_t here = 0;
    enum epa_status status;

    if (p->backend == NULL || p->backend->memory != EPA_MEMORY_CUDA)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "nvlink: its heap is in the memory of a GPU; take backend: cuda");
    if (world->size > EPA_DEVICE_RANKS)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "nvlink: kernels know %d ranks at most, not %u",
                        EPA_DEVICE_RANKS, world->size);
    *one_host = true;
    if (world->local_size == world->size)
        return EPA_OK;
    status = count_host(p->boot, &here, err);
    *one_host = here == world->size;
    if (status == EPA_OK && !*one_host && p->between == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "nvlink: reaches the %u ranks of one host, not all %u; set "
                        "transport.between_nodes to a transport between hosts",
                        here, world->size);
    return status;
}

/* Descriptors where every GPU can, as then ranks may leave in any order. */
static enum epa_status choose_memory(const struct nvlink *n, int asked, enum memory_kind *out,
                                     struct epa_error *err)
{
    *out = asked == MEMORY_IPC ? MEMORY_IPC : MEMORY_VMM;
    for (uint32_t r = 0; r < n->node->world.size && *out == MEMORY_VMM; r++) {
        if (n->gpu[r].passes_memory != 0)
            continue;
        if (asked == MEMORY_VMM)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "nvlink: GPU %d (rank %u, %s) cannot pass memory by descriptors; "
                            "leave out transport.memory, or set it to ipc",
                            n->gpu[r].number, r, n->gpu[r].bus);
        *out = MEMORY_IPC;
    }
    return EPA_OK;
}

static enum epa_status create_streams(struct nvlink *n)
{
    static const char what[] = "making streams and loading kernels";
    cudaError_t error = cudaSetDevice(n->backend->device);

    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&n->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&n->reads, cudaStreamNonBlocking);
    for (uint32_t i = 0; i < 2 && error == cudaSuccess; i++)
        error = cudaEventCreate(&n->event[i]);
    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&n->pinned, PINNED_WORDS * sizeof(*n->pinned),
                              cudaHostAllocPortable);
    if (error == cudaSuccess)
        error = nvlink_load_kernels();
    return nvlink_cuda(n, error, what);
}

static void show(struct nvlink *n)
{
    struct memory *m = &n->memory;

    n->view = (struct epa_device_view){.rank = n->base.rank,
                                       .size = n->base.size,
                                       .stop = n->backend->stop,
                                       .fault = n->backend->device_fault};
    for (uint32_t r = 0; r < n->base.size; r++) {
        const struct region *region = &m->region[n->near[r] == FAR ? 0 : n->near[r]];

        if (n->near[r] == FAR)
            continue;
        n->view.peer_heap[r] = region->base + m->heap_at;
        n->view.peer_signal[r] = (uint64_t *)(void *)region->base;
    }
    n->base.flags = FLAGS;
    n->base.heap = n->view.peer_heap[n->base.rank];
    n->base.heap_bytes = m->params.heap_bytes;
    n->base.peer_heap = n->view.peer_heap;
    n->base.view = &n->view;
}

static enum epa_status set_up(struct nvlink *n, const struct epa_transport_params *p,
                              struct epa_error *err)
{
    const struct config *config = p->config;
    struct memory_params params = {.boot = n->node,
                                   .driver = &n->driver,
                                   .gpu = n->gpu,
                                   .device = p->backend->device,
                                   .heap_bytes = p->heap_bytes,
                                   .signals = p->signals};
    enum epa_status status = driver_init(&n->driver, err);

    if (status == EPA_OK)
        status = gpus_meet(n->node, &n->driver, p->backend->device, n->gpu, err);
    if (status == EPA_OK)
        status = choose_memory(n, config->memory, &params.kind, err);
    if (status != EPA_OK)
        return status;
    status = create_streams(n);
    if (status != EPA_OK) {
        nvlink_ops.explain(&n->base, err);
        return status;
    }
    params.stream = n->stream;
    return memory_init(&n->memory, &params, err);
}

static void describe(struct epa_transport *t,
                     void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    far_describe(nvlink_of(t)->far, say, arg);
}

/* Which ranks are near; the others are for the proxy. */
static void split_ranks(struct nvlink *n, bool far)
{
    for (uint32_t r = 0; r < n->base.size; r++)
        n->near[r] = far ? FAR : r;
    n->node = n->boot;
    if (!far)
        return;
    far_boot_node(n->boot, &n->node_boot);
    n->node = &n->node_boot.base;
    for (uint32_t i = 0; i < n->node_boot.members; i++)
        n->near[n->node_boot.member[i]] = i;
}

/* Links to ranks of other nodes are not what device_peak() measures. */
static enum epa_status open_far(struct nvlink *n, const struct epa_transport_params *p,
                                bool one_host, struct epa_error *err)
{
    const struct far_params params = {.boot = p->boot,
                                      .backend = p->backend,
                                      .net = p->between,
                                      .one_host = one_host,
                                      .heap = n->base.heap,
                                      .signal = n->view.peer_signal[n->base.rank],
                                      .heap_bytes = p->heap_bytes,
                                      .signals = p->signals};
    enum epa_status status = far_open(&params, &n->far, err);

    if (status != EPA_OK)
        return status;
    n->ops = nvlink_ops;
    n->ops.device_peak = NULL;
    n->ops.describe = describe;
    n->base.ops = &n->ops;
    n->base.flags = (n->base.flags & ~(uint32_t)EPA_TRANSPORT_LOAD_STORE) | EPA_TRANSPORT_NODES;
    n->base.ring = far_ring(n->far);
    return EPA_OK;
}

static enum epa_status open_all(const struct epa_transport_params *p, struct epa_transport **out,
                                struct epa_error *err)
{
    const struct epa_world *world = &p->boot->world;
    bool one_host, far = p->between != NULL && world->local_size < world->size;
    enum epa_status status = check(p, &one_host, err);
    struct nvlink *n;

    if (status != EPA_OK)
        return status;
    n = calloc(1, sizeof(*n));
    if (n == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "nvlink: no memory for %u ranks", world->size);
    n->boot = p->boot;
    n->backend = p->backend;
    n->base = (struct epa_transport){.ops = &nvlink_ops, .rank = world->rank, .size = world->size};
    split_ranks(n, far);
    status = set_up(n, p, err);
    if (status == EPA_OK)
        show(n);
    if (status == EPA_OK && far)
        status = open_far(n, p, one_host, err);
    if (status != EPA_OK) {
        destroy(n, false);
        return status;
    }
    *out = &n->base;
    return EPA_OK;
}

static const char *between_nodes(const void *config)
{
    return ((const struct config *)config)->between_nodes;
}

static const struct epa_choice memories[] = {
    {"auto", MEMORY_AUTO, "vmm if every GPU supports it, else ipc"},
    {"vmm", MEMORY_VMM, "the driver's virtual memory, passed as file descriptors"},
    {"ipc", MEMORY_IPC, "CUDA IPC handles"},
    {0},
};

static const struct config defaults = {.memory = MEMORY_AUTO};

static const struct epa_option options[] = {
    {.name = "memory",
     EPA_CHOICE(struct config, memory),
     .choices = memories,
     .help = "mechanism that maps GPU memory of other ranks"},
    {.name = "between_nodes",
     EPA_STRING(struct config, between_nodes),
     .help =
         "transport to ranks of other nodes, such as ucx, with its defaults; data are staged in "
         "pinned host memory"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "nvlink",
               .summary =
                   "GPU memory of the ranks of a node, over NVLink; to other nodes by a proxy",
               .options = {options, sizeof(struct config), &defaults}},
    .flags = FLAGS,
    .memory = EPA_MEMORY_CUDA,
    .between_nodes = between_nodes,
    .open = open_all,
};
