/* In place of nvlink_peak.cu, whose kernels would take minutes on CPUs: they move gigabytes
 * and count thousands of signals. The same effects, by the thread of the stream. */
#include "fake_cuda.h"

#include <string.h>

#include "../../../plugins/transport/nvlink/kernels.h"
#include "base/clock.h"

struct queued {
    struct epa_device_view v;
    union {
        struct {
            uint64_t epoch, timeout_ns;
            uint32_t word;
        } meet;
        struct store_run store;
        struct ping_run ping;
    } u;
};

cudaError_t nvlink_load_peak(void)
{
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

/* A kernel that gives up writes why, as the real ones do. */
static bool wait_for(const struct epa_device_view *v, uint32_t word, uint64_t wanted,
                     uint64_t timeout_ns, uint32_t peer)
{
    uint64_t begun = clock_ns(), waited = 0, seen;

    /* It looks once more when the time is up. */
    while ((seen = __atomic_load_n(v->peer_signal[v->rank] + word, __ATOMIC_ACQUIRE)) <
               wanted &&
           waited < timeout_ns && __atomic_load_n(v->stop, __ATOMIC_RELAXED) == 0) {
        clock_pause(waited, 0);
        waited = clock_ns() - begun;
    }
    if (seen >= wanted)
        return true;
    *v->fault = (struct epa_fault){.claimed = 1,
                                   .status = __atomic_load_n(v->stop, __ATOMIC_RELAXED) != 0
                                                 ? EPA_ERR_ABORTED
                                                 : EPA_ERR_TIMEOUT,
                                   .peer = peer,
                                   .seen = seen,
                                   .wanted = wanted,
                                   .waited_ns = waited};
    return false;
}

static cudaError_t queue(cudaStream_t stream, void (*run)(void *), const struct queued *q)
{
    return fake_fails() ? cudaErrorUnknown : fake_queue(stream, run, q, sizeof(*q));
}

static void run_meet(void *data)
{
    const struct queued *q = data;
    const struct epa_device_view *v = &q->v;
    uint32_t word = q->u.meet.word;

    for (uint32_t peer = 0; peer < v->size; peer++)
        __atomic_store_n(v->peer_signal[peer] + word + v->rank, q->u.meet.epoch,
                         __ATOMIC_RELEASE);
    for (uint32_t peer = 0; peer < v->size; peer++)
        (void)wait_for(v, word + peer, q->u.meet.epoch, q->u.meet.timeout_ns, peer);
}

cudaError_t nvlink_queue_meet(cudaStream_t stream, const struct epa_device_view *v,
                              uint32_t word, uint64_t epoch, uint64_t timeout_ns)
{
    struct queued q = {.v = *v, .u.meet = {epoch, timeout_ns, word}};

    return queue(stream, run_meet, &q);
}

static void run_store(void *data)
{
    const struct queued *q = data;
    const struct epa_device_view *v = &q->v;

    for (uint32_t peer = 0; peer < v->size; peer++) {
        uint32_t place = v->rank < peer ? v->rank : v->rank - 1;

        if (peer != v->rank)
            memset(v->peer_heap[peer] + q->u.store.at + place * q->u.store.part,
                   (int)v->rank, q->u.store.part);
    }
}

cudaError_t nvlink_queue_store(cudaStream_t stream, const struct epa_device_view *v,
                               const struct store_run *run)
{
    struct queued q = {.v = *v, .u.store = *run};

    return queue(stream, run_store, &q);
}

static void run_ping(void *data)
{
    const struct queued *q = data;
    const struct epa_device_view *v = &q->v;
    const struct ping_run *run = &q->u.ping;
    uint64_t turn = run->base, *there = v->peer_signal[run->peer] + run->word + v->rank;

    for (uint32_t batch = 0; batch < run->batches; batch++) {
        uint64_t begun = clock_ns();

        for (uint32_t i = 0; i < run->turns; i++) {
            turn++;
            if (run->times != NULL)
                __atomic_store_n(there, turn, __ATOMIC_RELEASE);
            if (!wait_for(v, run->word + run->peer, turn, run->timeout_ns, run->peer))
                return;
            if (run->times == NULL)
                __atomic_store_n(there, turn, __ATOMIC_RELEASE);
        }
        if (run->times != NULL)
            run->times[batch] = clock_ns() - begun;
    }
}

cudaError_t nvlink_queue_ping(cudaStream_t stream, const struct epa_device_view *v,
                              const struct ping_run *run)
{
    struct queued q = {.v = *v, .u.ping = *run};

    return queue(stream, run_ping, &q);
}
