/* Event timing and graphs. */
#include "graph.h"

#include "flush.h"
#include "state.h"
#include "stream.h"

#include <stdlib.h>

struct epa_graph {
    cudaGraphExec_t exec;
};

/* ---- time ---- */

enum epa_status cuda_mark(struct epa_backend *base, uint32_t i)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter(c);

    if (status != EPA_OK)
        return status;
    if (i >= CUDA_MARKS)
        return epa_fail(&c->last, EPA_ERR_UNSUPPORTED, "cuda: mark %u of %d", i, CUDA_MARKS);
    /* External: each replay of a graph records the event again. */
    status = cuda_check(
        c,
        cudaEventRecordWithFlags(c->mark[i], c->base.stream,
                                 c->capturing ? cudaEventRecordExternal : cudaEventRecordDefault),
        "cudaEventRecord");
    if (status == EPA_OK)
        c->marked |= UINT64_C(1) << i;
    return status;
}

enum epa_status cuda_elapsed(struct epa_backend *base, uint32_t i, uint32_t j, double *ns)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter_eager(c, "elapsed");
    float ms = 0;

    if (status != EPA_OK)
        return status;
    if (i >= CUDA_MARKS || j >= CUDA_MARKS || (c->marked >> i & 1) == 0 ||
        (c->marked >> j & 1) == 0)
        return epa_fail(&c->last, EPA_ERR_UNSUPPORTED,
                        "cuda: no time between marks %u and %u: not both were made", i, j);
    status =
        cuda_check(c, cudaEventElapsedTime(&ms, c->mark[i], c->mark[j]), "cudaEventElapsedTime");
    if (status == EPA_OK)
        *ns = (double)ms * 1e6;
    return status;
}

/* ---- graphs ---- */

enum epa_status cuda_capture_begin(struct epa_backend *base)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter_eager(c, "capture_begin");

    if (status == EPA_OK)
        status = cuda_flush_make(c);
    if (status == EPA_OK)
        status =
            cuda_check(c, cudaStreamBeginCapture(c->base.stream, cudaStreamCaptureModeThreadLocal),
                       "cudaStreamBeginCapture");
    c->capturing = c->capturing || status == EPA_OK;
    return status;
}

void cuda_graph_destroy(struct epa_backend *base, struct epa_graph *graph)
{
    struct cuda *c = (struct cuda *)base;

    if (graph == NULL)
        return;
    if (!c->lost && graph->exec != NULL && cudaSetDevice(c->base.device) == cudaSuccess)
        (void)cudaGraphExecDestroy(graph->exec);
    free(graph);
}

static enum epa_status instantiate(struct cuda *c, cudaGraph_t recorded, struct epa_graph **out)
{
    struct epa_graph *graph = calloc(1, sizeof(*graph));
    enum epa_status status;

    if (graph == NULL)
        return epa_fail(&c->last, EPA_ERR_NOMEM, "cuda: no memory for a graph");
    status = cuda_check(c, cudaGraphInstantiate(&graph->exec, recorded, 0), "cudaGraphInstantiate");
    if (status == EPA_OK)
        status = cuda_check(c, cudaGraphUpload(graph->exec, c->base.stream), "cudaGraphUpload");
    if (status == EPA_OK)
        status = cuda_drain(c, false);
    if (status == EPA_OK)
        *out = graph;
    else
        cuda_graph_destroy(&c->base, graph);
    return status;
}

enum epa_status cuda_capture_end(struct epa_backend *base, struct epa_graph **out)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter(c);
    cudaGraph_t recorded = NULL;

    if (status != EPA_OK)
        return status;
    if (!c->capturing)
        return epa_fail(&c->last, EPA_ERR_UNSUPPORTED, "cuda: capture_end without a capture_begin");
    c->capturing = false;
    status = cuda_check(c, cudaStreamEndCapture(c->base.stream, &recorded), "cudaStreamEndCapture");
    if (status == EPA_OK)
        status = instantiate(c, recorded, out);
    if (recorded != NULL)
        (void)cudaGraphDestroy(recorded);
    return status;
}

enum epa_status cuda_graph_launch(struct epa_backend *base, struct epa_graph *graph)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter_eager(c, "graph_launch");

    return status != EPA_OK
               ? status
               : cuda_check(c, cudaGraphLaunch(graph->exec, c->base.stream), "cudaGraphLaunch");
}
