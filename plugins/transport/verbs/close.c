/* Closes the verbs transport. */
#include "close.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "connect.h"
#include "device.h"
#include "sources.h"
#include "waits.h"

/* Time limit of close(): for the arrival of other ranks and for the last acknowledgements. */
static const uint64_t leave_ns = 2000000000u;
static const struct timespec linger = {.tv_nsec = 1000000};

/* A destroyed queue pair sends no acknowledgements, and a peer that waits for one would regard this
 * rank as dead. Unless a rank has failed, all ranks therefore pass a last barrier and linger. */
static void leave(struct verbs *v)
{
    bool in_step = v->failure.at != FAILED_BARRIER && !v->queues.failure.failed;

    if (v->base.size == 1 || !in_step || epa_aborted(v->boot))
        return;
    if (verbs_barrier(&v->base, leave_ns) == EPA_OK)
        (void)verbs_drain(v, leave_ns);
    (void)nanosleep(&linger, NULL);
}

void verbs_close(struct epa_transport *t)
{
    struct verbs *v = (struct verbs *)t;

    if (v->connected)
        leave(v);
    disconnect_all(&v->queues);
    sources_finish(&v->sources);
    if (v->heap_mr != NULL)
        ibv_dereg_mr(v->heap_mr);
    if (v->mr != NULL)
        ibv_dereg_mr(v->mr);
    if (v->pinned_mr != NULL)
        ibv_dereg_mr(v->pinned_mr);
    device_close(&v->device);
    if (v->pinned != NULL)
        munmap(v->pinned, v->pinned_bytes);
    segments_finish(&v->segments);
    if (v->queues.queue != NULL) {
        free(v->queues.queue[0].wr);
        free(v->queues.queue[0].sge);
    }
    free(v->queues.queue);
    free(v->ordered);
    free(v->peer_heap);
    free(v);
}
