/* What the kernels of the nvlink transport do, done by the host while it queues them. */
#include "fake_cuda.h"

#include <sched.h>
#include <string.h>

#include "../../../plugins/transport/nvlink/kernels.h"
#include "base/clock.h"

cudaError_t nvlink_load_signal(void)
{
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t nvlink_load_limit(void)
{
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t nvlink_queue_signal(cudaStream_t stream, uint64_t *word, uint64_t value,
                                bool add)
{
    (void)stream;
    if (fake_fails())
        return cudaErrorUnknown;
    if (add)
        __atomic_fetch_add(word, value, __ATOMIC_RELEASE);
    else
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
    return cudaSuccess;
}

/* A kernel that gives up writes why, as the real ones do. */
static bool wait_for(const struct epa_device_view *v, uint32_t word, uint64_t wanted,
                     uint64_t timeout_ns, uint32_t peer)
{
    uint64_t begun = clock_ns(), seen;

    do {
        seen = __atomic_load_n(v->peer_signal[v->rank] + word, __ATOMIC_ACQUIRE);
        if (seen >= wanted)
            return true;
        sched_yield();
    } while (__atomic_load_n(v->stop, __ATOMIC_RELAXED) == 0 &&
             clock_ns() - begun < timeout_ns);
    *v->fault = (struct epa_fault){.claimed = 1,
                                   .status = __atomic_load_n(v->stop, __ATOMIC_RELAXED) != 0
                                                 ? EPA_ERR_ABORTED
                                                 : EPA_ERR_TIMEOUT,
                                   .peer = peer,
                                   .seen = seen,
                                   .wanted = wanted,
                                   .waited_ns = clock_ns() - begun};
    return false;
}

cudaError_t nvlink_queue_meet(cudaStream_t stream, const struct epa_device_view *v,
                              uint32_t word, uint64_t epoch, uint64_t timeout_ns)
{
    (void)stream;
    for (uint32_t peer = 0; peer < v->size; peer++)
        __atomic_store_n(v->peer_signal[peer] + word + v->rank, epoch, __ATOMIC_RELEASE);
    for (uint32_t peer = 0; peer < v->size; peer++)
        (void)wait_for(v, word + peer, epoch, timeout_ns, peer);
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t nvlink_queue_store(cudaStream_t stream, const struct epa_device_view *v,
                               const struct store_run *run)
{
    (void)stream;
    for (uint32_t peer = 0; peer < v->size; peer++) {
        uint32_t place = v->rank < peer ? v->rank : v->rank - 1;

        if (peer != v->rank)
            memset(v->peer_heap[peer] + run->at + place * run->part, (int)v->rank,
                   run->part);
    }
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t nvlink_queue_ping(cudaStream_t stream, const struct epa_device_view *v,
                              const struct ping_run *run)
{
    uint64_t turn = run->base, *there = v->peer_signal[run->peer] + run->word + v->rank;

    (void)stream;
    for (uint32_t batch = 0; batch < run->batches; batch++) {
        uint64_t begun = clock_ns();

        for (uint32_t i = 0; i < run->turns; i++) {
            turn++;
            if (run->times != NULL)
                __atomic_store_n(there, turn, __ATOMIC_RELEASE);
            if (!wait_for(v, run->word + run->peer, turn, run->timeout_ns, run->peer))
                return cudaSuccess;
            if (run->times == NULL)
                __atomic_store_n(there, turn, __ATOMIC_RELEASE);
        }
        if (run->times != NULL)
            run->times[batch] = clock_ns() - begun;
    }
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}
