/* Implements ag_gemm_copies.h. */
#include "ag_gemm_copies.h"

#include <stdio.h>
#include <stdlib.h>

#include <epa2a/trace_kernel.h>

enum { TRIES = 8, DRAIN_S = 10 };
#define WAITED UINT32_MAX /* in `to`: end of a wait */

struct ag_gemm_copies {
    uint32_t most, n;   /* n: copies and waits of the last call */
    cudaEvent_t *event; /* [most + 2]: begin, end of each copy, and the event of the host's clock */
    uint32_t *to;       /* [most] */
};

struct ag_gemm_copies *ag_gemm_copies_create(uint32_t n)
{
    struct ag_gemm_copies *c = calloc(1, sizeof(*c));
    bool ok = c != NULL;

    if (!ok)
        return NULL;
    c->most = n;
    c->event = calloc(n + 2, sizeof(*c->event));
    c->to = calloc(n + 1, sizeof(*c->to));
    ok = c->event != NULL && c->to != NULL;
    for (uint32_t i = 0; i < n + 2 && ok; i++)
        ok = cudaEventCreate(&c->event[i]) == cudaSuccess;
    if (ok)
        return c;
    ag_gemm_copies_destroy(c);
    return NULL;
}

void ag_gemm_copies_destroy(struct ag_gemm_copies *c)
{
    if (c == NULL)
        return;
    for (uint32_t i = 0; i < c->most + 2 && c->event != NULL; i++)
        if (c->event[i] != NULL)
            (void)cudaEventDestroy(c->event[i]);
    free(c->event);
    free(c->to);
    free(c);
}

/* Records an event also in each launch of a graph. */
static cudaError_t record(cudaEvent_t event, cudaStream_t stream)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t code = cudaStreamIsCapturing(stream, &capture);

    return code != cudaSuccess ? code
                               : cudaEventRecordWithFlags(event, stream,
                                                          capture == cudaStreamCaptureStatusActive
                                                              ? cudaEventRecordExternal
                                                              : cudaEventRecordDefault);
}

cudaError_t ag_gemm_copies_begin(struct ag_gemm_copies *c, cudaStream_t stream)
{
    if (c == NULL)
        return cudaSuccess;
    c->n = 0;
    return record(c->event[0], stream);
}

cudaError_t ag_gemm_copies_end(struct ag_gemm_copies *c, cudaStream_t stream, uint32_t to)
{
    if (c == NULL || c->n == c->most)
        return cudaSuccess;
    c->to[c->n++] = to;
    return record(c->event[c->n], stream);
}

cudaError_t ag_gemm_copies_waited(struct ag_gemm_copies *c, cudaStream_t stream)
{
    return ag_gemm_copies_end(c, stream, WAITED);
}

/* Waits for the stream; not for ever, since a rank writes its trace also after the failure of another
 * rank. */
static cudaError_t drain(cudaStream_t stream)
{
    uint64_t begin = epa_now_ns();
    cudaError_t code;

    while ((code = cudaStreamQuery(stream)) == cudaErrorNotReady &&
           epa_now_ns() - begin < DRAIN_S * UINT64_C(1000000000)) {
    }
    return code;
}

/* Records `event` and finds its time on the host. *error_ns: the uncertainty. Returns 0 after a
 * failure. */
static uint64_t find_time(cudaEvent_t event, cudaStream_t stream, uint64_t *error_ns)
{
    uint64_t begin = epa_now_ns(), end;

    if (cudaEventRecord(event, stream) != cudaSuccess || drain(stream) != cudaSuccess) {
        (void)cudaGetLastError(); /* clears "not ready" */
        return 0;
    }
    end = epa_now_ns();
    *error_ns = (end - begin + 1) / 2;
    return begin + (end - begin) / 2;
}

static void add_copy(struct epa_trace *trace, uint32_t to, uint32_t block, uint32_t lane,
                     uint64_t begin_ns, uint64_t end_ns, uint64_t error_ns)
{
    char name[EPA_TRACE_NAME_BYTES];

    snprintf(name, sizeof(name), "copy to rank %u", to);
    epa_trace_add_beside(&trace->beside[EPA_TRACE_KERNELS],
                         &(struct epa_trace_event){
                             .begin_ns = begin_ns,
                             .end_ns = end_ns,
                             .bytes = error_ns,
                             .value = epa_trace_place(block, 0, EPA_TRACE_TOKEN),
                             .peer = EPA_TRACE_NOBODY,
                             .signal = lane,
                             .name = epa_trace_name(trace, name),
                             .kind = EPA_TRACE_SLICE,
                         });
}

void ag_gemm_copies_write(const struct ag_gemm_copies *c, cudaStream_t stream,
                          struct epa_trace *trace, uint32_t block, uint32_t lane)
{
    uint64_t now = 0, error_ns = UINT64_MAX, begin_ns = 0;
    cudaEvent_t last = c != NULL ? c->event[c->most + 1] : NULL;

    for (int i = 0; i < TRIES && c != NULL && c->n > 0; i++) {
        uint64_t error, at = find_time(last, stream, &error);
        float ms;

        if (at == 0)
            return;
        if (error >= error_ns)
            continue;
        /* The distance to the begin makes the times of tries comparable. */
        if (cudaEventElapsedTime(&ms, c->event[0], last) != cudaSuccess) {
            (void)cudaGetLastError(); /* a recorded graph has not run: there are no copies */
            return;
        }
        now = at - (uint64_t)((double)ms * 1e6);
        error_ns = error;
    }
    begin_ns = now;
    for (uint32_t i = 0; c != NULL && i < c->n; i++) {
        uint64_t end_ns;
        float ms;

        if (cudaEventElapsedTime(&ms, c->event[0], c->event[i + 1]) != cudaSuccess)
            return;
        end_ns = now + (uint64_t)((double)ms * 1e6);
        if (c->to[i] != WAITED)
            add_copy(trace, c->to[i], block, lane, begin_ns, end_ns, error_ns);
        begin_ns = end_ns;
    }
}
