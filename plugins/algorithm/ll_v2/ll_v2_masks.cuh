/* Masks of ranks, in kernels of their own, so that other kernels have no code for masks.
 *
 * Kernels send nothing to a rank with a mask, and neither wait for it nor read its data. A thread
 * that waits for a rank longer than the time limit sets the mask of this rank.
 *
 * All blocks of a receiving kernel use the masks that the first block has found (agreed). If a
 * thread gives up another rank (lost), other threads may have used data of this rank, so the last
 * block repeats the work of all blocks without the rank. Data of the other ranks have all arrived
 * then.
 *
 * Another rank may wait for the lost rank, too, and be late for this reason. Waiting threads
 * therefore set a signal at all ranks from time to time (ALIVE), and the time of a wait for a rank
 * with this signal does not count. Threads whose time does not count set no signal, so two ranks
 * cannot wait for each other forever. */
#ifndef LL_V2_MASKS_CUH
#define LL_V2_MASKS_CUH

#include "../../common/algo_cuda.cuh"
#include "ll_v2_device.h"

/* Returns the bit mask of ranks with masks. Called by one warp. */
EPA_DEV uint32_t ll_masks_of(const struct ll_args &a)
{
    const volatile int32_t *mask = a.masks;

    return __ballot_sync(EPA_DEV_ALL, epa_dev_lane() < a.c.v.size && mask[epa_dev_lane()] != 0);
}

/* The bit mask of ranks that the block leaves out. */
EPA_DEV uint32_t *ll_left_out(void)
{
    __shared__ uint32_t ranks;

    return &ranks;
}

EPA_DEV bool ll_is_left_out(uint32_t rank)
{
    return (*ll_left_out() >> rank & 1) != 0;
}

/* The block leaves out the ranks that have masks now. Called by all threads. */
EPA_DEV void ll_leave_out_masked(const struct ll_args &a)
{
    if (threadIdx.x < EPA_DEV_WARP) {
        uint32_t masks = ll_masks_of(a);

        if (epa_dev_lane() == 0)
            *ll_left_out() = masks;
    }
    __syncthreads();
}

/* The block leaves out the ranks of the first block of this call. Called by all threads. */
EPA_DEV void ll_leave_out_agreed(const struct ll_args &a, uint64_t epoch)
{
    unsigned long long *agreed = &a.loss->agreed;

    if (threadIdx.x < EPA_DEV_WARP) {
        uint32_t masks = ll_masks_of(a);

        if (epa_dev_lane() == 0) {
            unsigned long long mine = (unsigned long long)epoch << 32 | masks;
            unsigned long long old = *(volatile unsigned long long *)agreed;

            if ((uint32_t)(old >> 32) != (uint32_t)epoch) {
                unsigned long long seen = atomicCAS(agreed, old, mine);

                old = seen == old ? mine : seen;
            }
            *ll_left_out() = (uint32_t)old;
        }
    }
    __syncthreads();
}

/* Arguments of waits that masks may end. */
struct ll_patience {
    const struct ll_args &v;
    uint64_t timeout_ns;
};

/* Signals the other ranks that this rank waits. Called by one thread. */
EPA_DEV void ll_tell_alive(const struct ll_args &a)
{
    for (uint32_t r = 0; r < a.c.v.size; r++)
        if (*(const volatile int32_t *)(a.masks + r) == 0)
            epa_dev_store_release(a.c.v.peer_signal[r] + a.c.signal + a.alive + a.c.v.rank,
                                  epa_dev_time());
}

/* Counts a part of the time limit, unless the rank itself waits, or this process pauses. Keeps 16 bits of
 * the last ALIVE and of the host's beat. */
EPA_DEV void ll_count_part(const struct ll_args &a, struct epa_dev_poll *p, uint32_t peer)
{
    const volatile uint64_t *alive = a.c.v.peer_signal[a.c.v.rank] + a.c.signal + a.alive + peer;
    uint32_t beat = a.c.v.beat == NULL ? p->beat + 1 : *(const volatile uint32_t *)a.c.v.beat;
    uint32_t now = (uint32_t)(*alive >> 20) << 16 | (beat & 0xffff), changed = now ^ p->beat;

    p->beat = now;
    if (changed >> 16 != 0)
        return;
    p->parts += (changed & 0xffff) != 0;
    ll_tell_alive(a);
}

/* The same as the function of device.cuh, but a time-out sets the mask of the rank. Also returns true
 * for a rank with a mask. */
EPA_DEV bool epa_dev_poll_expired(const struct ll_args &a, struct epa_dev_poll *p,
                                  uint64_t timeout_ns, struct epa_dev_wait w, uint64_t seen,
                                  uint64_t wanted)
{
    const epa_device_view &v = a.c.v;
    const uint64_t part_ns = timeout_ns / EPA_DEV_PARTS;
    uint64_t now;

    if (p->polls++ % EPA_DEV_POLLS != 0)
        return false;
    if (*(volatile uint32_t *)&v.fault->claimed != 0)
        return true;
    if (*(volatile int32_t *)(a.masks + w.peer) == 0) {
        now = epa_dev_time();
        p->start = p->start == 0 ? now : p->start;
        if (p->polls / EPA_DEV_POLLS % EPA_DEV_STOP_POLLS == EPA_DEV_STOP_POLLS - 1 &&
            *(const volatile uint32_t *)v.stop != 0) {
            epa_dev_fault(v, EPA_ERR_ABORTED, w, seen, wanted, now - p->start);
            return true;
        }
        if (!epa_dev_poll_is_last(p)) {
            if (now - p->start > part_ns) {
                ll_count_part(a, p, w.peer);
                p->start = now;
                p->polls -= epa_dev_poll_is_last(p); /* ask again after the last poll */
            }
            return false;
        }
        if (w.peer == v.rank) {
            epa_dev_fault(v, EPA_ERR_TIMEOUT, w, seen, wanted, timeout_ns);
            return true;
        }
        *(volatile int32_t *)(a.masks + w.peer) = 1;
    }
    atomicOr(&a.loss->lost, 1u << w.peer);
    return true;
}

/* Returns true if the kernel must end after a wait that returned false; false: the wait was for a rank
 * that is lost. */
EPA_DEV bool ll_must_end(const struct ll_args &a)
{
    return *(volatile uint32_t *)&a.c.v.fault->claimed != 0;
}

/* Combine: waits for OUTPUT of the ranks that the block does not leave out, one thread per rank. Returns
 * false if the kernel must end. Called by all threads. */
EPA_DEV bool ll_wait_live(const struct ll_args &a, uint64_t epoch)
{
    bool ok = true;

    if (threadIdx.x < a.c.v.size && !ll_is_left_out(threadIdx.x)) {
        struct epa_dev_wait w = {LL_COMBINE, LL_OUTPUT, threadIdx.x, 0};
        const uint64_t *word =
            a.c.v.peer_signal[a.c.v.rank] + a.c.signal + LL_OUTPUT * a.c.v.size + threadIdx.x;
        struct epa_dev_poll poll = {};
        uint64_t seen;

        while ((seen = epa_dev_load_acquire(word)) < epoch &&
               !epa_dev_poll_expired(a, &poll, a.c.timeout_ns, w, seen, epoch))
            continue;
        ok = !ll_must_end(a);
    }
    return __syncthreads_and(ok);
}

/* Combine: sets OUTPUT of this rank at each rank that the block does not leave out. */
EPA_DEV void ll_signal_live(const struct ll_args &a, uint64_t epoch)
{
    if (threadIdx.x < a.c.v.size && !ll_is_left_out(threadIdx.x))
        epa_dev_signal(a.c.v, a.c.signal + LL_OUTPUT * a.c.v.size + a.c.v.rank, epoch, threadIdx.x);
}

/* Returns true in all threads of the last of `blocks` blocks that call the function, which then has the
 * stores of the others. Called by all threads. */
EPA_DEV bool ll_is_last(const struct ll_args &a, uint32_t blocks)
{
    __shared__ uint32_t before;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        before = atomicInc(&a.loss->ended, blocks - 1);
    __syncthreads();
    __threadfence();
    return before == blocks - 1;
}

/* Also leaves out the ranks that were lost since the last call. Returns false without such ranks. Called
 * by all threads of the last block. */
EPA_DEV bool ll_leave_out_lost(const struct ll_args &a, uint64_t epoch)
{
    __shared__ uint32_t lost;

    __syncthreads();
    if (threadIdx.x == 0) {
        lost = *(volatile uint32_t *)&a.loss->lost;
        *(volatile uint32_t *)&a.loss->lost = 0;
        *ll_left_out() |= lost;
        a.c.taken[epoch % 2][DEV_RECEIVING] = 0; /* the block takes all units again */
        __threadfence();
    }
    __syncthreads();
    return lost != 0;
}

#endif
