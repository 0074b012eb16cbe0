/* device_peak(): kernels measure the bandwidth and latency of the links. See README.md. */
#include "peak.h"

#include "state.h"
#include "stream.h"

#include <string.h>

enum { STORE_LEAST = 64 << 10 }; /* minimum bytes to one peer; fewer do not load the link */

/* Time limits: of a measuring kernel for another rank, and of all queued work. */
static const uint64_t kernel_wait_ns = 5000000000u, kernels_ns = 60000000000u;

/* Copies OWN_TIME and the following fault to n->pinned; returns an error if a kernel timed out. */
static enum epa_status fetch_time(struct nvlink *n, const uint64_t *own)
{
    struct epa_fault fault;
    enum epa_status status =
        nvlink_cuda(n,
                    cudaMemcpyAsync(n->pinned, own + OWN_TIME, sizeof(uint64_t) + sizeof(fault),
                                    cudaMemcpyDeviceToHost, n->stream),
                    "a copy of what was measured");

    if (status == EPA_OK)
        status = nvlink_drain(n, n->stream, &(struct epa_wait){.timeout_ns = kernels_ns}, true);
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

enum epa_status nvlink_device_peak(struct epa_transport *t, const struct epa_peak_run *run,
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
