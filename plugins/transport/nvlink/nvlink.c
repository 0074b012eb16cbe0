/* NVLink transport: every rank maps the GPU memory of all ranks, for kernels that load and store.
 * The functions of this file serve set-up and tests; kernels move the data. With between_nodes a
 * rank maps the ranks of its node only, and a proxy reaches the others (far.c).
 *
 * Copies and signals use one stream, whose order is the only order between them. Barriers use host
 * memory (segments.c). */
#include "nvlink.h"

#include "close.h"
#include "far.h"
#include "peak.h"
#include "state.h"
#include "stream.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* Time limit for work that a GPU completes in microseconds: a GPU that needs longer hangs. */
static const uint64_t stuck_ns = 60000000000u;

/* Returns the status of the proxy, which may fail at any time. */
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

/* Stores the failure of a wait for ranks of other nodes; `f` is set unless the proxy failed. */
static enum epa_status waited_far(struct nvlink *n, enum epa_status status, const struct failure *f)
{
    if (status == EPA_OK || check_far(n) != EPA_OK)
        return status;
    n->failure = *f;
    return status;
}

static enum epa_status put(struct epa_transport *t, uint64_t dst, const void *src, size_t bytes,
                           uint32_t peer)
{
    struct nvlink *n = nvlink_of(t);

    assert(peer < t->size && dst <= t->heap_bytes && bytes <= t->heap_bytes - dst);
    if (bytes == 0) /* src may be NULL */
        return EPA_OK;
    if (!n->near[peer])
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
    if (!n->near[peer])
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

    if (!n->near[peer])
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

/* A fence needs no work: the stream is in order, and each signal includes a fence. */
static enum epa_status fence(struct epa_transport *t, uint32_t peer)
{
    struct nvlink *n = nvlink_of(t);

    if (!n->near[peer])
        far_fence(n->far, peer);
    return EPA_OK;
}

static enum epa_status quiet(struct epa_transport *t)
{
    struct nvlink *n = nvlink_of(t);
    enum epa_status status =
        nvlink_drain(n, n->stream, &(struct epa_wait){.timeout_ns = stuck_ns}, true);
    struct failure f;

    if (status != EPA_OK || n->far == NULL)
        return status;
    status = far_quiet(n->far, stuck_ns, &f);
    return waited_far(n, status, &f);
}

/* Copies a word of this rank to the host on a separate stream, so that it waits for no put. The
 * caller reads `aborted` afterwards, so that a signal that has arrived counts even after a failure. */
static enum epa_status look_at(struct nvlink *n, uint32_t signal, uint64_t *out)
{
    enum epa_status status;

    assert(signal < n->memory.params.signals);
    status = nvlink_cuda(n,
                         cudaMemcpyAsync(n->pinned, n->view.peer_signal[n->base.rank] + signal,
                                         sizeof(*out), cudaMemcpyDeviceToHost, n->reads),
                         "a copy of a signal");
    if (status == EPA_OK)
        status = nvlink_drain(n, n->reads, &(struct epa_wait){.timeout_ns = stuck_ns}, false);
    if (status == EPA_OK)
        *out = *n->pinned;
    return status;
}

static uint64_t read_signal(struct epa_transport *t, uint32_t signal)
{
    uint64_t value = 0; /* returned if the GPU has failed: every other call reports the failure */

    (void)look_at(nvlink_of(t), signal, &value);
    return value;
}

static enum epa_status wait_signal(struct epa_transport *t, uint32_t signal,
                                   enum epa_compare compare, uint64_t value, uint64_t timeout_ns)
{
    struct nvlink *n = nvlink_of(t);
    struct epa_wait_config config = n->memory.wait;
    struct epa_wait wait = {.timeout_ns = timeout_ns};
    struct failure f = {.at = FAILED_SIGNAL, .compare = compare, .signal = signal, .want = value};

    config.spin_ns = UINT64_MAX; /* no yield: each poll is a copy and takes microseconds */
    for (;;) {
        enum epa_status status = look_at(n, signal, &f.seen);

        if (status != EPA_OK)
            return status;
        if (wait_reached(f.seen, compare, value))
            return epa_wait_done(&config, &wait);
        status = check_far(n);
        if (status != EPA_OK)
            return status;
        if (wait_turn(&config, &wait, &f) != EPA_OK) {
            n->failure = f;
            return f.status;
        }
    }
}

static enum epa_status progress(struct epa_transport *t)
{
    struct nvlink *n = nvlink_of(t);

    return epa_aborted(n->boot) ? EPA_ERR_ABORTED
                                : check_far(n); /* the GPU needs no progress of the host */
}

/* Subtracts a wait from the remaining part of a time limit. A wait counts no pause of the process,
 * which the clock would. */
static void take_wait(uint64_t *left_ns, uint64_t waited_ns)
{
    *left_ns -= waited_ns < *left_ns ? waited_ns : *left_ns;
}

static enum epa_status pass_node_barrier(struct nvlink *n, uint64_t *left_ns)
{
    struct failure f;
    enum epa_status status =
        segments_barrier(&n->memory.pages, &n->memory.wait, ++n->memory.barriers, *left_ns, &f);

    take_wait(left_ns, f.waited_ns);
    if (status != EPA_OK)
        n->failure = f;
    return status;
}

/* Signals ranks of other nodes before the wait for ranks of this node. */
static enum epa_status pass_far_barrier(struct nvlink *n, uint64_t left_ns)
{
    struct failure f;
    enum epa_status status = far_quiet(n->far, left_ns, &f);

    take_wait(&left_ns, f.waited_ns);
    if (status == EPA_OK) {
        status = far_arrive(n->far, left_ns, &f);
        take_wait(&left_ns, f.waited_ns);
    }
    if (status != EPA_OK)
        return waited_far(n, status, &f);
    status = pass_node_barrier(n, &left_ns);
    if (status != EPA_OK)
        return status;
    status = far_await(n->far, left_ns, &f);
    return waited_far(n, status, &f);
}

static enum epa_status pass_barrier(struct epa_transport *t, uint64_t timeout_ns)
{
    struct nvlink *n = nvlink_of(t);
    struct epa_wait wait = {.timeout_ns = timeout_ns};
    enum epa_status status = nvlink_drain(n, n->stream, &wait, true);

    if (status != EPA_OK)
        return status;
    take_wait(&timeout_ns, wait.waited_ns);
    return n->far != NULL ? pass_far_barrier(n, timeout_ns) : pass_node_barrier(n, &timeout_ns);
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
        status = meet_in_set_up(n); /* the last signal has arrived */
    if (status == EPA_OK && bytes > 0)
        status = nvlink_cuda(n, cudaMemsetAsync(n->view.peer_signal[t->rank], 0, bytes, n->stream),
                             "zeroing signals");
    if (status == EPA_OK)
        status = quiet(t);
    if (status == EPA_OK)
        status = meet_in_set_up(n); /* no rank signals before all are reset */
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
        (void)epa_fail(epa_awaits(err, f->peer), f->status,
                       "nvlink: rank %u waited %.3f s for rank %u while link peak was "
                       "measured, it is at %" PRIu64 " of %" PRIu64 "%s",
                       t->rank, waited_s, f->peer, f->seen, f->want, why);
        break;
    case FAILED_CUDA:
        (void)epa_fail_key(err, f->status, EPA_LIMIT_NAMED, "nvlink: rank %u on GPU %d: %s: %s",
                           t->rank, n->backend->device, f->what,
                           cudaGetErrorString((cudaError_t)f->code));
        break;
    default:
        wait_explain("nvlink", t, n->boot, f, err);
        break;
    }
}

const struct epa_transport_ops nvlink_ops = {
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
    .device_peak = nvlink_device_peak,
    .explain = explain,
    .close = nvlink_close,
};
