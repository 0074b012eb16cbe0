/* Exchange with ranks of other nodes. After the kernel of a sending stage, a kernel lets the
 * transport put the data that the stage stored in mirrors of their heaps, one block per rank.
 * Before the kernel of a receiving stage, a kernel waits for the puts of those ranks. */
#include <epa2a/ring.cuh>

#include "token_flag_far.h"
#include "token_flag_send.cuh"

/* Puts the counts before the first chunk, and the rows stored since the last call. The flag of this
 * source follows the rows of the last chunk, the number of rows put so far follows the last but
 * one. Called by one thread for one rank. */
EPA_DEV bool far_put_rows(const struct tf_far_args &f, uint32_t peer, uint64_t epoch,
                          struct epa_dev_wait w)
{
    const struct tf_args &a = f.a;
    const char *mirror = a.c.v.peer_heap[peer];
    uint64_t counts = tf_counts_of(a, epoch, a.c.v.rank);
    uint32_t begin = a.chunk == 0 ? 0 : __ldcg(a.counters->put + peer);
    uint32_t rows = __ldcg(a.counters->sent + peer);
    uint64_t at = a.comm + ((uint64_t)a.c.v.rank * a.source_rows + begin) * a.wire_bytes;
    uint64_t bytes = (uint64_t)(rows - begin) * a.wire_bytes;

    a.counters->put[peer] = rows;
    if (a.chunk == 0 && !epa_dev_far_put(f.v, f.ring, counts, mirror + counts, a.c.local * 8, peer,
                                         a.c.timeout_ns, w))
        return false;
    if (a.chunk + 2 < a.chunks)
        return bytes == 0 ||
               epa_dev_far_put(f.v, f.ring, at, mirror + at, bytes, peer, a.c.timeout_ns, w);
    return epa_dev_far_put_signal(f.v, f.ring, at, mirror + at, bytes,
                                  a.last ? a.c.signal + epoch % 2 * a.c.v.size + a.c.v.rank
                                         : tf_early_signal(a, epoch, a.c.v.rank),
                                  tf_count_flag(epoch, rows), peer, a.c.timeout_ns, w);
}

EPA_DEV bool far_put_outputs(const struct tf_far_args &f, uint32_t peer, uint64_t epoch,
                             struct epa_dev_wait w)
{
    const struct tf_args &a = f.a;
    uint64_t at = a.outputs + (uint64_t)a.c.v.rank * a.source_rows * a.slot_bytes;

    return epa_dev_far_put_signal(f.v, f.ring, at, a.c.v.peer_heap[peer] + at,
                                  (uint64_t)__ldcg(a.received + peer) * a.slot_bytes,
                                  a.c.signal + 2 * a.c.v.size + a.c.v.rank, epoch, peer,
                                  a.c.timeout_ns, w);
}

/* One block, with a thread per rank. */
static __global__ void __launch_bounds__(EPA_DEVICE_RANKS)
    exchange(const __grid_constant__ struct tf_far_args f)
{
    const struct tf_args &a = f.a;
    uint64_t epoch = __ldcg(a.c.calls) + 1; /* the receiving kernel will count this call */
    uint32_t peer = threadIdx.x, stage = a.c.stage;

    if (peer == 0 && stage == TF_DISPATCH_SEND) /* the next chunk counts its tokens from 0 */
        a.c.taken[epoch % 2][0] = 0;
    if (peer >= a.c.v.size || !epa_dev_is_far(f.v, peer))
        return;
    if (stage == TF_DISPATCH_SEND)
        (void)far_put_rows(f, peer, epoch, {stage, TF_WAIT_RING, peer, 0});
    else if (stage == TF_COMBINE_SEND)
        (void)far_put_outputs(f, peer, epoch, {stage, TF_WAIT_RING, peer, 0});
    else if (stage == TF_DISPATCH_RECV)
        (void)epa_dev_wait_for(f.v, a.c.signal + epoch % 2 * a.c.v.size + peer,
                               tf_count_flag(epoch, 0), a.c.timeout_ns,
                               {stage, TF_WAIT_ROWS, peer, 0});
    else
        (void)epa_dev_wait_for(f.v, a.c.signal + 2 * a.c.v.size + peer, epoch, a.c.timeout_ns,
                               {stage, TF_WAIT_OUTPUTS, peer, 0});
}

static int queue(void *stream, const void *args)
{
    exchange<<<1, EPA_DEVICE_RANKS, 0, static_cast<cudaStream_t>(stream)>>>(
        *static_cast<const struct tf_far_args *>(args));
    return cudaGetLastError();
}

struct device_far tf_far(void)
{
    return {(const void *)exchange, queue};
}
