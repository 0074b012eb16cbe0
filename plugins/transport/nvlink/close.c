/* Closes the nvlink transport. */
#include "close.h"

#include <stdlib.h>

#include "far.h"
#include "memory.h"
#include "stream.h"

/* Time limit of close() for queued work. */
static const uint64_t leave_ns = 10000000000u;

void nvlink_destroy(struct nvlink *n, bool lost)
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
    segments_finish(&n->memory.pages); /* host memory, which a hanging GPU does not use */
    (void)cudaGetLastError();          /* clears the error for later callers of CUDA */
    free(n);
}

/* First waits for kernels of this rank that use the memory of other ranks: kernels have time limits,
 * and the backend stops them if a rank has failed. */
void nvlink_close(struct epa_transport *t)
{
    struct nvlink *n = (struct nvlink *)t;
    struct epa_wait wait = {.timeout_ns = leave_ns}, reads = wait;
    bool lost;

    (void)n->backend->ops->sync(n->backend);
    lost = !far_close(n->far);
    n->far = NULL;
    lost = lost || nvlink_drain(n, n->stream, &wait, false) == EPA_ERR_TIMEOUT ||
           nvlink_drain(n, n->reads, &reads, false) == EPA_ERR_TIMEOUT ||
           cudaStreamQuery(n->backend->stream) == cudaErrorNotReady;
    nvlink_destroy(n, lost);
}
