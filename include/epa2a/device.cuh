/* For kernels: stores to peers, signals, and bounded waits. The transport provides an
 * epa_device_view, which a kernel takes by value. Signals count up, and waits compare with >=.
 *
 * Order: all threads of a block store to a peer, the block synchronizes, one thread calls
 * epa_dev_signal(). A thread that acquires the signal then sees the stores of the whole block. */
#ifndef EPA2A_DEVICE_CUH
#define EPA2A_DEVICE_CUH

#include <epa2a/ptx.cuh>
#include <epa2a/transport.h>

/* In a wait: polls per read of the clock, and reads of the clock per read of the host's stop word.
 * If a poll takes milliseconds, as in an emulator, fewer clock reads are needed per read of the
 * stop word. */
enum { EPA_DEV_POLLS = 32 };
#ifndef EPA_DEV_STOP_POLLS
#define EPA_DEV_STOP_POLLS 64
#endif

/* A pause of the rank's process (SIGSTOP, Ctrl-Z, a frozen cgroup) does not count as waiting time,
 * although kernels run on during the pause. A time limit has this number of parts. A part counts
 * only if the host's beat has moved since the end of the previous part, so that a pause counts as
 * two parts at most: its begin and its end. A kernel also counts a single part if its thread did
 * not run for longer, as on a GPU that several processes share. All ranks of a suspended run skip
 * the pause. Ranks that wait for one stopped rank have a beat, and count all of their time. */
enum { EPA_DEV_PARTS = 4 };

/* Description of a wait, for the host's error message. */
struct epa_dev_wait {
    uint32_t stage, what, peer, index;
};

/* Sets a signal of a peer. Release: the peer sees all stores and observations of this thread before
 * the value. Pairs with the acquire in epa_dev_wait_for() of the peer. */
EPA_DEV void epa_dev_signal(const epa_device_view &v, uint32_t signal, uint64_t value,
                            uint32_t peer)
{
    epa_dev_store_release(v.peer_signal[peer] + signal, value);
}

/* Records the reason why this rank's kernels stop waiting; only the first call counts. */
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
    if (f->host == NULL)
        return;
    f->host->stage = w.stage;
    f->host->what = w.what;
    f->host->peer = w.peer;
    f->host->index = w.index;
    f->host->seen = seen;
    f->host->wanted = wanted;
    f->host->waited_ns = waited_ns;
    __threadfence_system();
    *(volatile int32_t *)&f->host->status = status;
}

/* State of a polling loop; all 0 at its start. */
struct epa_dev_poll {
    uint32_t polls;
    uint32_t parts; /* counted parts of the time limit */
    uint32_t beat;  /* the host's beat at the end of the last part */
    uint64_t start; /* of the current part */
};

/* After the time-out the caller polls once more, so that a thread that was suspended for that long
 * finds data that arrived meanwhile. */
EPA_DEV bool epa_dev_poll_is_last(const struct epa_dev_poll *p)
{
    return p->parts == EPA_DEV_PARTS;
}

/* Called between two polls: reads the clock and the stop word at intervals. Returns true if the
 * caller must leave the loop; the reason is recorded then. */
EPA_DEV bool epa_dev_poll_expired(const epa_device_view &v, struct epa_dev_poll *p,
                                  uint64_t timeout_ns, struct epa_dev_wait w, uint64_t seen,
                                  uint64_t wanted)
{
    const uint64_t part_ns = timeout_ns / EPA_DEV_PARTS;
    uint64_t now;
    uint32_t beat;
    bool stop;

    if (++p->polls % EPA_DEV_POLLS != 0)
        return false;
    now = epa_dev_time();
    p->start = p->start == 0 ? now : p->start;
    if (*(volatile uint32_t *)&v.fault->claimed != 0)
        return true;
    stop = p->polls % (EPA_DEV_POLLS * EPA_DEV_STOP_POLLS) == 0 &&
           *(const volatile uint32_t *)v.stop != 0;
    if (!stop && !epa_dev_poll_is_last(p)) {
        if (now - p->start > part_ns) {
            beat = v.beat == NULL ? p->beat + 1 : *(const volatile uint32_t *)v.beat;
            p->parts += beat != p->beat;
            p->beat = beat;
            p->start = now;
            p->polls -= epa_dev_poll_is_last(p); /* read the clock again after the last poll */
        }
        return false;
    }
    epa_dev_fault(v, stop ? EPA_ERR_ABORTED : EPA_ERR_TIMEOUT, w, seen, wanted,
                  p->parts * part_ns + (now - p->start));
    return true;
}

/* Waits until this rank's own `signal` is at least `wanted`. Returns false after the time-out or
 * once a rank has failed: the kernel must exit. One thread. */
EPA_DEV bool epa_dev_wait_for(const epa_device_view &v, uint32_t signal, uint64_t wanted,
                              uint64_t timeout_ns, struct epa_dev_wait w)
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
