/* For kernels: storing to peers, signals, and waits that end. The transport gives an
 * epa_device_view, which a kernel takes by value. Signals count up, are waited for with >=.
 *
 * Order: all threads of a block store to a peer, the block synchronizes, one thread calls
 * epa_dev_signal(): who then acquires the signal sees the stores of the whole block. */
#ifndef EPA2A_DEVICE_CUH
#define EPA2A_DEVICE_CUH

#include <epa2a/ptx.cuh>
#include <epa2a/transport.h>

/* In a wait: polls between two looks at the clock, and looks between two at the host. */
enum { EPA_DEV_POLLS = 32, EPA_DEV_STOP_POLLS = 64 };

/* Who waits for what, for the sentence that the host makes of it. */
struct epa_dev_wait {
    uint32_t stage, what, peer, index;
};

/* All that this thread has stored, or seen stored, comes before the value. Pairs with the
 * acquire in epa_dev_wait_for() of the peer. */
static __device__ __forceinline__ void
epa_dev_signal(const epa_device_view &v, uint32_t signal, uint64_t value, uint32_t peer)
{
    epa_dev_store_release(v.peer_signal[peer] + signal, value);
}

/* Records why this rank's kernels give up; the first to do so is believed. */
static __device__ __noinline__ void epa_dev_fault(const epa_device_view &v, int32_t status,
                                                  struct epa_dev_wait w, uint64_t seen,
                                                  uint64_t wanted, uint64_t waited_ns)
{
    struct epa_fault *f = v.fault;

    if (atomicCAS(&f->claimed, 0u, 1u) != 0u)
        return;
    f->stage = w.stage;
    f->what = w.what;
    f->peer = w.peer;
    f->index = w.index;
    f->seen = seen;
    f->wanted = wanted;
    f->waited_ns = waited_ns;
    __threadfence();
    *(volatile int32_t *)&f->status = status;
}

/* How long a loop that polls has been at it; all 0 to begin with. */
struct epa_dev_poll {
    uint32_t polls, looks;
    uint64_t start;
    bool late; /* the time is up: the next poll, of all that is waited for, is the last */
};

/* Between two polls: now and then looks at the clock, and at whether a rank has failed.
 * False: it is time to leave; why has been recorded. When the time is up it lets the caller
 * poll once more: who was stopped for that long finds all that has come meanwhile. */
static __device__ __forceinline__ bool
epa_dev_poll_expired(const epa_device_view &v, struct epa_dev_poll *p, uint64_t timeout_ns,
                struct epa_dev_wait w, uint64_t seen, uint64_t wanted)
{
    uint64_t now;
    bool stop, late;

    if (++p->polls % EPA_DEV_POLLS != 0)
        return true;
    now = epa_dev_time();
    p->start = p->start == 0 ? now : p->start;
    if (*(volatile uint32_t *)&v.fault->claimed != 0)
        return false;
    stop = ++p->looks % EPA_DEV_STOP_POLLS == 0 && *(const volatile uint32_t *)v.stop != 0;
    late = now - p->start > timeout_ns;
    if (!stop && !(late && p->late)) {
        p->late = late;
        p->polls -= late; /* and looks at the clock again then */
        return true;
    }
    epa_dev_fault(v, stop ? EPA_ERR_ABORTED : EPA_ERR_TIMEOUT, w, seen, wanted,
                  now - p->start);
    return false;
}

/* Until this rank's own `signal` is at least `wanted`; false when the time is up or a rank
 * has failed: the kernel must leave then. One thread. */
static __device__ __forceinline__ bool epa_dev_wait_for(const epa_device_view &v,
                                                        uint32_t signal, uint64_t wanted,
                                                        uint64_t timeout_ns,
                                                        struct epa_dev_wait w)
{
    const uint64_t *word = v.peer_signal[v.rank] + signal;
    struct epa_dev_poll poll = {};
    uint64_t seen;

    while ((seen = epa_dev_load_acquire(word)) < wanted)
        if (epa_dev_poll_expired(v, &poll, timeout_ns, w, seen, wanted))
            return false;
    return true;
}

#endif
